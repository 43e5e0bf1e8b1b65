# What the scripts in this directory share. Sourced, never run.
#
# LACUNA   the program; built by cargo unless set
# LACUNA_TRANSPORT   what carries the mounts: auto (by default), fuser or uring
# LACUNA_CACHE   what the kernel keeps, where a script does not say so itself; as by default unless set
# LACUNA_COMPRESS   how stores are made to compress, such as lz4; not unless set
# WORK     where stores and mount points are made; a new directory in $TMPDIR unless set
# SEED     of whatever is random; printed, so that a failure can be repeated

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
# Options of whatever opens the store, where it has a log device; see add_log_device.
log_device=()

# Ends the script, loudly, where the machine lacks what it needs.
skip() {
    echo "SKIPPED $(basename "$0"): $*" >&2
    exit 0
}

fail() {
    echo "FAILED $(basename "$0"): $*" >&2
    exit 1
}

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "no $program on this machine"
    done
}

need_fuse() {
    [ "$(id -u)" = 0 ] || skip "needs root"
    [ -c /dev/fuse ] || skip "no /dev/fuse on this machine"
}

# Processes of mounts that wait in the kernel for the end of an aborted connection.
waiting_for_abort() {
    local pid task
    for pid in $(pgrep -x lacuna); do
        for task in "/proc/$pid/task"/*; do
            [ "$(cat "$task/wchan" 2>/dev/null)" != fuse_wait_aborted ] || { echo "$pid"; break; }
        done
    done | sort
}

# Those of them that have waited for seconds, on one line. After a bug of the kernel (Linux 6.18: FUSE over io_uring, and
# a SIGKILL at the wrong moment) they wait for ever, and so does whatever calls sync(2) or drops all caches.
hung_processes() {
    local hung
    hung=$(waiting_for_abort)
    for _ in 1 2 3 4 5; do
        [ -n "$hung" ] || return 0
        sleep 1
        hung=$(comm -12 <(echo "$hung") <(waiting_for_abort))
    done
    [ -z "$hung" ] || echo $hung
}

# Whether sync(2) returns. If not, says so loudly, and that "$1" is not tested.
can_sync() {
    local hung reason
    hung=$(hung_processes)
    [ -n "$hung" ] || return 0
    reason="process $hung hangs in the kernel (fuse_wait_aborted), and sync(2) with it; only a restart of the machine ends it"
    echo "SKIPPED $(basename "$0"): $1: $reason" >&2
    return 1
}

# Starts the script anew in a mount namespace of its own. Copies of other mounts there would keep those served after they
# are unmounted, and whoever waits for their ends waits for this script's: they go first.
in_own_namespace() {
    local dir
    [ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount "$0" "$@"
    for dir in $(awk '/ - fuse\.lacuna / { print $5 }' /proc/self/mountinfo); do
        umount -cil "$(printf %b "$dir")" || true # unmounted meanwhile
    done
}

# Programs of `cargo install` that tests bring along.
PATH=$PATH:$HOME/.cargo/bin

build() {
    if [ -z "${LACUNA:-}" ]; then
        (cd "$root" && cargo build --release --locked --quiet -p lacuna-cli)
        LACUNA=${CARGO_TARGET_DIR:-$root/target}/release/lacuna
    fi
    export LACUNA
}

# The library that `lacuna run` needs beside the program; where `cargo test` has built that, it lies with what tests need.
build_preload() {
    local dir
    dir=$(cd "$(dirname "$LACUNA")" && pwd)
    if [ "$dir/deps/liblacuna_preload.so" -nt "$dir/liblacuna_preload.so" ]; then
        cp "$dir/deps/liblacuna_preload.so" "$dir/liblacuna_preload.so.new"
        mv "$dir/liblacuna_preload.so.new" "$dir/liblacuna_preload.so"
    fi
    [ ! -e "$dir/liblacuna_preload.so" ] || return 0
    case $dir in
        */release) (cd "$root" && cargo build --release --locked --quiet -p lacuna-preload) ;;
        */debug) (cd "$root" && cargo build --locked --quiet -p lacuna-preload) ;;
    esac
    [ -e "$dir/liblacuna_preload.so" ] || skip "no liblacuna_preload.so beside $LACUNA"
}

# Waits until a command succeeds, for minutes if the machine is that busy; fails with what it waited for.
await() {
    local what=$1
    shift
    for _ in $(seq 1200); do
        ! "$@" || return 0
        sleep 0.1
    done
    fail "$what, not even after minutes"
}

# A fresh store of the given size, mounted on $mnt with the given options.
start() {
    local size=$1
    shift
    own_work=
    if [ -z "${WORK:-}" ]; then
        WORK=$(mktemp -d -t lacuna-mount.XXXXXX)
        own_work=1
    fi
    store=$WORK/store
    mnt=$WORK/mnt
    mkdir -p "$mnt"
    trap finish EXIT
    "$LACUNA" format --size "$size" --force ${LACUNA_COMPRESS:+--compress "$LACUNA_COMPRESS"} "$store" >/dev/null
    remount_with=("$@") log_device=()
    mount_store
}

mount_store() {
    "$LACUNA" mount --allow-other --transport "${LACUNA_TRANSPORT:-auto}" ${LACUNA_CACHE:+"--cache=$LACUNA_CACHE"} \
        "${remount_with[@]}" "${log_device[@]}" "$store" "$mnt" || return
    # The store has it from now on.
    if [ "${#log_device[@]}" != 0 ]; then log_device[0]=--log-device; fi
}

# The next mount gives the store a log device: a file that is small enough to fill up. `log_device` holds the options of
# whatever opens the store.
add_log_device() {
    truncate -s 4M "$WORK/log"
    log_device=(--new-log-device "$WORK/log")
}

# Fails where no sync of this mount ended on the store's log device, if it has one.
prove_log_device() {
    [ "${#log_device[@]}" = 0 ] || [ "$(metric log_device_flushes_total)" -gt 0 ] || fail "$1: the log device is not used"
}

umount_store() {
    "$LACUNA" umount "$mnt"
}

# Unmounts if need be, and proves the store sound.
check_store() {
    if mountpoint -q "$mnt"; then
        umount_store
    fi
    "$LACUNA" check "$store" "${log_device[@]}" || fail "the store is not sound"
}

# A metric of the mounted store, by its name without the prefix; further words are parts of the labels.
metric() {
    "$LACUNA" metrics "$store" | awk -v name="lacuna_$1{" -v label="${2:-}" \
        'index($0, name) == 1 && index($0, label) { print $NF }'
}

# The process that serves the mount.
daemon_pid() {
    local pid
    for pid in $(pgrep -x lacuna); do
        # Those of others may have ended since.
        if { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF -- "-- $store $mnt"; then
            echo "$pid"
            return
        fi
    done
    fail "no process serves $mnt"
}

# kill -9; returns when the process has let go of its store.
kill_daemon() {
    local pid
    pid=$(daemon_pid)
    kill -9 "$pid"
    while grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$pid/status"; do sleep 0.01; done
}

# Removes what `start` made, before the next one; a directory that was given stays.
discard_work() {
    if [ -n "$own_work" ]; then
        rm -rf --one-file-system "$WORK"
        WORK=
    fi
}

finish() {
    local code=${1:-$?}
    trap - EXIT
    # What a failure left running in the background, such as writers.
    jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true
    if mountpoint -q "$mnt" 2>/dev/null; then
        umount -l "$mnt" || true
    fi
    if [ -n "$own_work" ] && [ "$code" = 0 ]; then
        rm -rf --one-file-system "$WORK"
    elif [ "$code" != 0 ]; then
        echo "left behind: $WORK" >&2
    fi
    exit "$code"
}
