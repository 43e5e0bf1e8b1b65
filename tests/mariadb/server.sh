# shellcheck shell=bash
# A MariaDB server of a script's own, sourced by it. Nothing of the system's is read or touched.
#
#   server_install DATA           makes a data directory
#   server_start DATA [OPTION...] starts the server, by SERVER_BY, and waits until it answers; SERVER_PID, SERVER_SOCKET
#   server_stop                   lets it end in order
#   server_query SQL              runs a statement as root

SERVER_PID=
SERVER_SOCKET=
# A program, with its arguments, that becomes the server.
SERVER_BY=()

server_install() {
    local user=()
    if [ "$(id -u)" = 0 ]; then user=(--user=root); fi
    mariadb-install-db --no-defaults --datadir="$1" "${user[@]}" --auth-root-authentication-method=normal \
        --skip-test-db > /dev/null
}

server_start() {
    local data=$1 user=() tries
    shift
    if [ "$(id -u)" = 0 ]; then user=(--user=root); fi
    # A socket's path must be short.
    SERVER_SOCKET=$(mktemp -u "${TMPDIR:-/tmp}/lacuna.XXXXXX.sock")
    "${SERVER_BY[@]}" mariadbd --no-defaults --datadir="$data" "${user[@]}" --socket="$SERVER_SOCKET" --skip-networking \
        --pid-file="$data/server.pid" --log-error="$data.log" --innodb-flush-method=O_DIRECT \
        --innodb-flush-neighbors=0 --plugin-load-add=provider_lz4 "$@" 2> /dev/null &
    SERVER_PID=$!
    for tries in $(seq 1200); do
        if server_query 'SELECT 1' > /dev/null 2>&1; then return; fi
        if ! kill -0 "$SERVER_PID" 2> /dev/null; then break; fi
        sleep 0.1
    done
    echo "$0: the server does not answer after $tries tries:" >&2
    grep -F '[ERROR]' "$data.log" | tail -5 >&2
    exit 1
}

server_query() {
    mariadb --no-defaults --user=root --socket="$SERVER_SOCKET" --batch --skip-column-names --execute="$1"
}

server_stop() {
    if [ -z "$SERVER_PID" ]; then return; fi
    kill -TERM "$SERVER_PID" 2> /dev/null || true
    wait "$SERVER_PID" 2> /dev/null || true
    rm -f "$SERVER_SOCKET"
    SERVER_PID=
}
