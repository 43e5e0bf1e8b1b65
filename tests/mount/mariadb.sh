#!/usr/bin/env bash
# Stock MariaDB on the mount: it finds atomic writes by itself and turns its doublewrite buffer off; pages
# that shrink give their room back; the daemon and mariadbd are killed under load and nothing that was
# committed is lost. ROUNDS (2) of kills; in the second half of them the store has a log device. Then the server serves the
# mount itself, and is killed as often.
. "$(dirname "$0")/lib.sh"
need_fuse
need mariadbd mariadb mariadb-install-db
[ -e /usr/lib/mysql/plugin/provider_lz4.so ] || skip "no plugin provider_lz4 on this machine"
build
build_preload
start 2G --threads 16 --fcta
rounds=${ROUNDS:-2}

socket=$WORK/mysql.sock
data=$mnt/data
chmod 755 "$WORK"
mkdir "$data"
chown mysql: "$data"
mariadb-install-db --no-defaults --user=mysql --datadir="$data" --skip-test-db \
    --auth-root-authentication-method=normal >"$WORK/install.log" 2>&1 ||
    { tail "$WORK/install.log" >&2; fail "mariadb-install-db"; }

# What becomes the server.
by=()
start_mariadb() {
    "${by[@]}" mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$socket" --skip-networking \
        --pid-file="$WORK/mysql.pid" --plugin-load-add=provider_lz4 --innodb-compression-algorithm=lz4 \
        --innodb-compression-default=ON --innodb-flush-neighbors=0 --innodb-buffer-pool-size=64M \
        --innodb-flush-method=O_DIRECT >>"$WORK/mariadb.log" 2>&1 &
    mariadb_pid=$!
    for _ in $(seq 1200); do
        sql "select 1" >/dev/null 2>&1 && return
        kill -0 "$mariadb_pid" 2>/dev/null || break
        sleep 0.1
    done
    tail -30 "$WORK/mariadb.log" >&2
    fail "mariadbd does not start"
}

stop_mariadb() {
    mariadb-admin --no-defaults -uroot -S "$socket" shutdown
    wait "$mariadb_pid" || true
}

sql() {
    mariadb --no-defaults -uroot -S "$socket" -N -B -e "$1"
}

status() {
    sql "show global status like '$1'" | cut -f2
}

# Only what was started here.
stop_all() {
    [ -z "${mariadb_pid:-}" ] || kill -9 "$mariadb_pid" 2>/dev/null || true
}
trap 'code=$?; stop_all; finish $code' EXIT

touch "$WORK/mysql.pid"
chown mysql: "$WORK" "$WORK/mysql.pid"
start_mariadb
sql "create database t"
sql "create table t.shrink (id int primary key, data varbinary(2000)) page_compressed=1"
sql "use t; insert into shrink select seq, concat(random_bytes(1000), random_bytes(900)) from seq_1_to_20000"
sql "flush tables t.shrink for export; unlock tables"
[ "$(status Innodb_dblwr_pages_written)" = 0 ] || fail "the doublewrite buffer is in use"
[ "$(metric atomic_handshakes_total)" -gt 0 ] || fail "MariaDB did not ask for atomic writes"
file=$data/t/shrink.ibd
before=$(stat -c %b "$file")
sql "update t.shrink set data = repeat('x', 1900)"
sql "flush tables t.shrink for export; unlock tables"
after=$(stat -c %b "$file")
trims=$(metric trims_inferred_total)
echo "mariadb: $((before / 2)) KB before pages shrank, $((after / 2)) KB after; $trims trims inferred"
[ "$trims" -gt 1000 ] || fail "only $trims trims were inferred"
[ "$((after * 4))" -lt "$before" ] || fail "pages that shrank gave no room back"
sum=$(sql "checksum table t.shrink")
stop_mariadb
umount_store
mount_store
start_mariadb
[ "$(sql "checksum table t.shrink")" = "$sum" ] || fail "the table differs after a remount"

# Commits under way while something is killed: lacuna, mariadbd, or both.
sql "create table t.acks (id int primary key, data varbinary(4000)) page_compressed=1"
committer() {
    local id=$1
    while sql "insert into t.acks values ($id, repeat(md5($id), 50))" 2>/dev/null; do
        echo "$id" >>"$WORK/acks"
        id=$((id + 4))
    done
}
# Writers under way, once something of theirs is acknowledged.
start_writers() {
    local writer acknowledged
    acknowledged=$(wc -l <"$WORK/acks")
    writers=()
    for writer in 0 1 2 3; do
        committer "$((next + writer))" &
        writers+=($!)
    done
    await "nothing is acknowledged" has_acknowledged "$acknowledged"
    sleep "$((1 + RANDOM % 2)).$((RANDOM % 10))"
}
# All that was acknowledged is there, and all that is there is right.
prove_commits() {
    sql "select id from t.acks order by id" >"$WORK/there"
    comm -23 <(sort "$WORK/acks") <(sort "$WORK/there") >"$WORK/lost"
    [ ! -s "$WORK/lost" ] || fail "$what: lost $(wc -l <"$WORK/lost") commits"
    sql "select count(*) from t.acks where data <> repeat(md5(id), 50)" | grep -qx 0 || fail "$what: wrong data"
    [ "$(sql "check table t.acks, t.shrink extended" | cut -f4 | xargs)" = "OK OK" ] || fail "$what: check table"
    echo "mariadb: $what: $(wc -l <"$WORK/acks") commits are all there"
    next=$(($(sort -n "$WORK/there" | tail -1) + 1000))
}
has_acknowledged() {
    [ "$(wc -l <"$WORK/acks")" -gt "$1" ]
}
touch "$WORK/acks"
next=1
for round in $(seq "$rounds"); do
    for victim in lacuna mariadbd both; do
        what="round $round, $victim killed${log_device:+, with a log device}"
        start_writers
        prove_log_device "$what"
        [ "$victim" = mariadbd ] || kill_daemon
        [ "$victim" = lacuna ] || kill -9 "$mariadb_pid" 2>/dev/null || true
        # On a dead mount mariadbd ends by itself, or is ended.
        sleep 1
        kill -9 "$mariadb_pid" 2>/dev/null || true
        { wait "$mariadb_pid" "${writers[@]}" || true; } 2>/dev/null
        if [ "$victim" = mariadbd ]; then
            umount_store
        else
            umount -l "$mnt"
        fi
        "$LACUNA" check "$store" "${log_device[@]}" >/dev/null || fail "$what: the store is not sound"
        [ "$round" != "$((rounds / 2))" ] || [ "$victim" != both ] || add_log_device
        mount_store
        start_mariadb
        prove_commits
    done
done
[ "$(status Innodb_dblwr_pages_written)" = 0 ] || fail "the doublewrite buffer is in use"
stop_mariadb
check_store

is_unmounted() { ! grep -q " $mnt fuse.lacuna " /proc/self/mounts; }
by=("$LACUNA" run --allow-other --fcta "${log_device[@]}" "$store" "$mnt" --)
start_mariadb
for round in $(seq "$rounds"); do
    what="round $round, the server that serves the mount is killed"
    start_writers
    prove_log_device "$what"
    kill -9 "$mariadb_pid"
    { wait "$mariadb_pid" "${writers[@]}" || true; } 2>/dev/null
    await "$what: the mount stays" is_unmounted
    "$LACUNA" check "$store" "${log_device[@]}" >/dev/null || fail "$what: the store is not sound"
    start_mariadb
    prove_commits
done
sql "update t.shrink set data = concat(random_bytes(1000), random_bytes(900)) where id <= 5000"
sql "flush tables t.shrink for export; unlock tables"
before=$(stat -c %b "$file") trims=$(metric trims_inferred_total)
sql "update t.shrink set data = repeat('x', 1900) where id <= 5000"
sql "flush tables t.shrink for export; unlock tables"
[ "$(stat -c %b "$file")" -lt "$before" ] && [ "$(metric trims_inferred_total)" -gt "$trims" ] ||
    fail "pages that the server itself writes give no room back when they shrink"
[ "$(status Innodb_dblwr_pages_written)" = 0 ] || fail "the doublewrite buffer is in use where the server serves the mount"
stop_mariadb
is_unmounted || fail "the mount outlives the server that served it"
"$LACUNA" check "$store" "${log_device[@]}" || fail "the store is not sound"
echo "mariadb: passed"
