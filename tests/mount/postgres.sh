#!/usr/bin/env bash
# PostgreSQL on the mount: postgres, the daemon or both are killed under pgbench. Afterwards the balances of
# pgbench agree, tables and indexes pass pg_amcheck, and every acknowledged commit is there.
#
# ROUNDS (1) times four kills. In two of four rounds the mount has no page cache: there a page's write is one request
# and thus whole (torn.sh), and full_page_writes is off; in one of these it compresses. In one the cache is written
# through, in one written back. In the second half of all rounds the store has a log device.
. "$(dirname "$0")/lib.sh"
need_fuse
for bin in /usr/lib/postgresql/*/bin; do PATH=$bin:$PATH; done
need initdb pg_ctl pgbench psql pg_amcheck
build
start 2G --threads 16 --cache=none
rounds=${ROUNDS:-1}

data=$mnt/data
chmod 755 "$WORK"
mkdir "$data" "$WORK/socket"
chown postgres: "$data" "$WORK/socket"
touch "$WORK/acks"
full_pages=off

as_postgres() {
    (cd / && runuser -u postgres -- env "PATH=$PATH" "PGHOST=$WORK/socket" PGDATABASE=postgres "$@")
}

sql() {
    as_postgres psql -qAtX -v ON_ERROR_STOP=1 -c "$1"
}

start_postgres() {
    as_postgres pg_ctl start -w -t 600 -D "$data" -l "$WORK/socket/log" -o "-c listen_addresses= \
        -c unix_socket_directories=$WORK/socket -c shared_buffers=16MB -c max_wal_size=64MB \
        -c checkpoint_timeout=30s -c dynamic_shared_memory_type=mmap -c full_page_writes=$full_pages" >"$WORK/start.log" 2>&1 ||
        { tail -20 "$WORK/start.log" "$WORK/socket/log" >&2; fail "postgres does not start"; }
    postmaster=$(head -1 "$data/postmaster.pid")
}

# The postmaster and what it started; nothing else of that name.
kill_postgres() {
    local pids
    pids="$postmaster $(pgrep -P "$postmaster" || true)"
    kill -9 $pids 2>/dev/null || true
    for _ in $(seq 1200); do
        kill -0 $pids 2>/dev/null || return 0
        sleep 0.1
    done
    fail "postgres does not end"
}

postmaster=
trap 'code=$?; [ -z "$postmaster" ] || kill_postgres; finish $code' EXIT

# Commits rows, and notes each number outside once the commit has returned.
committer() {
    seq "$1" 4 "$(($1 + 4000000))" |
        awk '{ print "insert into acks values (" $1 ", repeat(md5(\x27" $1 "\x27), 20));\n\\echo " $1 }' |
        as_postgres psql -qAtX -v ON_ERROR_STOP=1 2>/dev/null >"$WORK/acks-$1" || true
}

has_history() {
    [ "$(sql "select count(*) > $1 from pgbench_history")" = t ]
}

has_acknowledged() {
    [ -n "$(cat "$WORK"/acks-* 2>/dev/null)" ]
}

prove() {
    local what=$1 sums
    sums=$(sql "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches),
        (select sum(tbalance) from pgbench_tellers), (select coalesce(sum(delta), 0) from pgbench_history)")
    [ "$(tr '|' '\n' <<<"$sums" | sort -u | wc -l)" = 1 ] || fail "$what: balances differ: $sums"
    [ "$(sql "select count(*) from pgbench_history")" -ge "$processed" ] || fail "$what: lost transactions of pgbench"
    sql "select id from acks" | sort >"$WORK/there"
    sort "$WORK/acks" | comm -23 - "$WORK/there" >"$WORK/lost"
    [ ! -s "$WORK/lost" ] || fail "$what: lost $(wc -l <"$WORK/lost") commits"
    [ "$(sql "select count(*) from acks where data <> repeat(md5(id::text), 20)")" = 0 ] || fail "$what: wrong data"
    as_postgres pg_amcheck --heapallindexed postgres >"$WORK/amcheck" 2>&1 ||
        { head "$WORK/amcheck" >&2; fail "$what: pg_amcheck"; }
}

as_postgres initdb -k -D "$data" >"$WORK/initdb.log" 2>&1 || { tail "$WORK/initdb.log" >&2; fail initdb; }
start_postgres
as_postgres pgbench -q -i -s 2 2>/dev/null
sql "create extension amcheck"
sql "create table acks (id int primary key, data text)"

next=1
processed=0
for round in $(seq "$((rounds * 4))"); do
    victims=(both postgres lacuna)
    victim=${victims[round % 3]}
    what="round $round, $victim killed, ${remount_with[*]} ${log_device[*]}"
    before=$(sql "select count(*) from pgbench_history")
    as_postgres pgbench -n -c 4 -j 2 -T 600 >"$WORK/pgbench.log" 2>&1 &
    clients=($!)
    for client in 0 1 2 3; do
        committer "$((next + client))" &
        clients+=($!)
    done
    # On a busy machine it takes a while until they work.
    await "pgbench commits nothing" has_history "$before"
    await "nothing is acknowledged" has_acknowledged
    sleep "$((2 + RANDOM % 3)).$((RANDOM % 10))"
    prove_log_device "$what"
    if [ "$victim" != postgres ]; then kill_daemon; fi
    if [ "$victim" = lacuna ]; then sleep 1; fi
    # Without its files postgres is of no use; it is ended, after it tried to go on.
    kill_postgres
    { wait "${clients[@]}" || true; } 2>/dev/null
    if [ "$victim" = postgres ]; then umount_store; else umount -l "$mnt"; fi
    "$LACUNA" check "$store" "${log_device[@]}" >/dev/null || fail "$what: the store is not sound"
    now=$(awk '/actually processed/ { print $NF + 0 }' "$WORK/pgbench.log")
    acknowledged=$(cat "$WORK"/acks-* | wc -l)
    [ "${now:-0}" -gt 0 ] && [ "$acknowledged" -gt 0 ] || fail "$what: nothing was committed before"
    processed=$((processed + now))
    cat "$WORK"/acks-* >>"$WORK/acks"
    rm "$WORK"/acks-*
    # For the next round.
    case $(((round + 1) % 4)) in
        0) remount_with=(--threads 16) full_pages=on ;;
        2) remount_with=(--threads 16 --cache=writeback) full_pages=on ;;
        *) remount_with=(--threads 16 --cache=none --compress=lz4) full_pages=off ;;
    esac
    [ "$round" != "$((rounds * 2))" ] || add_log_device
    mount_store
    start_postgres
    prove "$what"
    next=$(($(sort -n "$WORK/there" | tail -1) + 1000))
    echo "postgres: $what: $now transactions and $acknowledged acknowledged rows are all there"
done
as_postgres pg_ctl stop -w -m fast -D "$data" >/dev/null
postmaster=
as_postgres pg_checksums --check -D "$data" >"$WORK/checksums" || fail "pg_checksums: $(cat "$WORK/checksums")"
check_store
echo "postgres: passed"
