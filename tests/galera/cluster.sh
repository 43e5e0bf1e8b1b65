# shellcheck shell=bash
# A Galera cluster on one machine, sourced by run. A node is a network namespace, a store and its mount; the server's
# data directory is all that lies on the mount. A namespace more has the switch, a bridge to which every node has a
# cable. Nothing of the system's configuration is read or changed, and no packet leaves the namespaces.
#
#   cluster_make          makes the namespaces of the nodes in NODES, and connects them
#   cluster_remove        ends all processes in the namespaces, unmounts, and removes the namespaces; idempotent
#   node_format NODE      makes a new, empty store
#   node_mount NODE       mounts it
#   node_umount NODE      unmounts it in order
#   node_check NODE       `lacuna check` of the store, which must not be mounted
#   node_start NODE [OPTION...]   starts the server; what it had when it was killed is recovered first
#   node_synced NODE      whether it is in a primary component and has everything
#   node_stop NODE        lets the server end in order
#   node_kill NODE WHAT   kill -9 of `server`, `mount` or `both`, and of what is of no use without it
#   cluster_kill          kill -9 of all servers and mounts at once
#   node_unplug NODE, node_plug NODE      takes its cable from the switch without a sign of it, and puts it back
#   node_sql NODE SQL, node_status NODE NAME
#
# Wants LACUNA, WORK and need, fail, await of tests/mount/lib.sh.

NODES=(1 2 3)
SWITCH=lacuna-$$-switch
PROVIDER=/usr/lib/galera/libgalera_smm.so
declare -A MOUNT_PID=() SERVER_PID=()

namespace() { echo "lacuna-$$-$1"; }
address() { echo "10.99.0.$1"; }
directory() { echo "$WORK/node$1"; }
data() { echo "$WORK/node$1/mnt/data"; }

# For nsenter: the network alone is another. In that of `ip netns exec` later mounts need not be seen.
network() { echo "--net=/run/netns/$(namespace "$1")"; }

cluster_make() {
    local node
    ip netns add "$SWITCH"
    ip -n "$SWITCH" link add switch type bridge
    ip -n "$SWITCH" link set switch up
    for node in "${NODES[@]}"; do
        mkdir -p "$(directory "$node")/mnt"
        chown mysql: "$(directory "$node")"
        ip netns add "$(namespace "$node")"
        ip -n "$SWITCH" link add "port$node" type veth peer name cable netns "$(namespace "$node")"
        ip -n "$SWITCH" link set "port$node" up master switch
        ip -n "$(namespace "$node")" addr add "$(address "$node")/24" dev cable
        ip -n "$(namespace "$node")" link set cable up
        ip -n "$(namespace "$node")" link set lo up
        node_configure "$node"
    done
}

# What docs/MARIADB.md says, in sizes of a test.
node_configure() {
    local node=$1 members
    members=$(for node in "${NODES[@]}"; do address "$node"; done | paste -sd ,)
    node=$1
    cat >"$(directory "$node")/my.cnf" <<END
[mariadbd]
user = mysql
datadir = $(data "$node")
socket = $(directory "$node")/sock
pid-file = $(directory "$node")/pid
bind-address = $(address "$node")
plugin-load-add = provider_lz4
innodb_compression_algorithm = lz4
innodb_compression_default = ON
innodb_flush_neighbors = 0
innodb_buffer_pool_size = 48M
innodb_log_file_size = 32M
innodb_autoinc_lock_mode = 2
binlog_format = ROW
wsrep_on = ON
wsrep_provider = $PROVIDER
wsrep_provider_options = "gcache.size=64M"
wsrep_cluster_name = lacuna-$$
wsrep_cluster_address = gcomm://$members
wsrep_node_name = node$node
wsrep_node_address = $(address "$node")
wsrep_slave_threads = 2
wsrep_sst_method = mariabackup
wsrep_sst_auth = mysql:
END
}

cluster_remove() {
    local node name
    {
        for node in "${NODES[@]}"; do
            name=$(namespace "$node")
            [ ! -e "/run/netns/$name" ] || ip netns pids "$name" | xargs --no-run-if-empty kill -KILL || true
        done
        wait "${SERVER_PID[@]}" "${MOUNT_PID[@]}" || true
    } 2>/dev/null # the shell tells of every process that was killed
    for node in "${NODES[@]}"; do
        # mountpoint(1) does not know a mount whose process is dead.
        umount --lazy "$(directory "$node")/mnt" 2>/dev/null || true
        ip netns del "$(namespace "$node")" 2>/dev/null || true
    done
    ip netns del "$SWITCH" 2>/dev/null || true
}

node_format() {
    "$LACUNA" format --size "$STORE_SIZE" --force "$(directory "$1")/store" >/dev/null
}

node_mount() {
    local node=$1 mnt
    mnt=$(directory "$node")/mnt
    nsenter "$(network "$node")" "$LACUNA" mount --foreground --allow-other --fcta --transport "${LACUNA_TRANSPORT:-auto}" \
        "$(directory "$node")/store" "$mnt" 2>>"$(directory "$node")/lacuna.log" &
    MOUNT_PID[$node]=$!
    await "node $node is not mounted" is_mounted_or_gone "$node"
    mountpoint -q "$mnt" || fail "node $node: the mount ended: $(tail -1 "$(directory "$node")/lacuna.log")"
    install -d -o mysql -g mysql "$(data "$node")"
}

is_mounted_or_gone() {
    mountpoint -q "$(directory "$1")/mnt" || ! is_alive "${MOUNT_PID[$1]}"
}

node_umount() {
    "$LACUNA" umount "$(directory "$1")/mnt"
    wait "${MOUNT_PID[$1]}" || fail "node $1: the mount did not end in order"
}

node_check() {
    local report
    report=$("$LACUNA" check "$(directory "$1")/store" 2>&1) || fail "node $1: the store is not sound: $report"
}

# A server that was killed is told how far its data goes, as Debian's unit does it: so it need not ask for all of it.
node_start() {
    local node=$1 config position=
    shift
    config=$(directory "$node")/my.cnf
    if [ -e "$(data "$node")/grastate.dat" ]; then
        position=$(node_position "$node")
        echo "node $node: has transactions up to $position"
    fi
    nsenter "$(network "$node")" mariadbd --defaults-file="$config" ${position:+--wsrep-start-position="$position"} "$@" \
        >>"$(directory "$node")/mariadbd.log" 2>&1 &
    SERVER_PID[$node]=$!
}

# The last transaction that recovery finds in a data directory, as UUID:NUMBER. Recovers by that.
node_position() {
    local node=$1 log
    log=$(directory "$node")/recovery.log
    nsenter "$(network "$node")" mariadbd --defaults-file="$(directory "$node")/my.cnf" --wsrep-recover >"$log" 2>&1 || {
        tail -20 "$log" >&2
        fail "node $node: recovery"
    }
    sed -n 's/.*WSREP: Recovered position: *//p' "$log" | tail -1
}

node_synced() {
    is_alive "${SERVER_PID[$1]}" || {
        tail -30 "$(directory "$1")/mariadbd.log" >&2
        fail "node $1: the server ended"
    }
    [ "$(node_status "$1" wsrep_ready) $(node_status "$1" wsrep_local_state_comment)" = "ON Synced" ]
}

node_stop() {
    kill -TERM "${SERVER_PID[$1]}"
    wait "${SERVER_PID[$1]}" || fail "node $1: the server did not end in order"
}

# A server whose files are gone is of no use any more: it is killed too, after it had a moment to go on.
node_kill() {
    local node=$1 what=$2
    case $what in
        server) kill -KILL "${SERVER_PID[$node]}" ;;
        mount) kill -KILL "${MOUNT_PID[$node]}" ;;
        both) kill -KILL "${MOUNT_PID[$node]}" "${SERVER_PID[$node]}" ;;
    esac
    { sleep 0.5; } 2>/dev/null # here and below: the shell tells of every process that was killed
    node_clear "$node"
}

cluster_kill() {
    local node
    kill -KILL "${MOUNT_PID[@]}" "${SERVER_PID[@]}"
    for node in "${NODES[@]}"; do node_clear "$node"; done
}

# Ends what a kill has left of a node, and proves its store sound.
node_clear() {
    local node=$1
    {
        kill -KILL "${SERVER_PID[$node]}" || true
        wait "${SERVER_PID[$node]}" || true
        # A state transfer under way has processes of its own.
        ip netns pids "$(namespace "$node")" | grep -vx "${MOUNT_PID[$node]}" | xargs --no-run-if-empty kill -KILL || true
    } 2>/dev/null
    if is_alive "${MOUNT_PID[$node]}"; then
        node_umount "$node"
    else
        wait "${MOUNT_PID[$node]}" 2>/dev/null || true
        umount --lazy "$(directory "$node")/mnt"
    fi
    node_check "$node"
}

# The node's own end stays up: it sees no packets any more, and nothing else.
node_unplug() { ip -n "$SWITCH" link set "port$1" nomaster; }
node_plug() { ip -n "$SWITCH" link set "port$1" master switch; }

node_client() {
    local node=$1
    shift
    mariadb --no-defaults --user=root --socket="$(directory "$node")/sock" --batch --skip-column-names "$@"
}

node_sql() { node_client "$1" --execute="$2"; }

# Empty while the server does not answer.
node_status() {
    node_sql "$1" "SHOW GLOBAL STATUS LIKE '$2'" 2>/dev/null | cut -f 2 || true
}

is_alive() { grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$1/status"; }
