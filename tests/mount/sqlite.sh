#!/usr/bin/env bash
# SQLite in WAL mode on the mount: several processes share a database by its mapped -shm file, and they, the
# daemon or both are killed. Afterwards the database passes its integrity check, what every transaction keeps
# is kept, and every acknowledged commit is there.
#
# ROUNDS (1) kills of each. The mount has the page cache in every other round; every other process maps the
# database itself. In the second half of all rounds the store has a log device.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3
python3 -c 'import sqlite3' 2>/dev/null || skip "python3 has no sqlite3 on this machine"
build
start 512M --threads 16
rounds=${ROUNDS:-1}
database=$mnt/database
touch "$WORK/acks"

cat >"$WORK/client.py" <<'PYTHON'
import os, random, sqlite3, sys

ACCOUNTS = 1000


def connect(path, mapped):
    db = sqlite3.connect(path, timeout=600, isolation_level=None)
    mode, = db.execute("pragma journal_mode = wal").fetchone()
    assert mode == "wal", mode
    db.execute("pragma synchronous = full")
    db.execute(f"pragma mmap_size = {(1 << 28) if mapped else 0}")
    db.execute("pragma wal_autocheckpoint = 100")
    return db


def make(path):
    db = connect(path, False)
    db.execute("create table accounts (id integer primary key, balance integer)")
    db.execute("create table commits (id integer primary key, data blob)")
    db.execute("create index by_data on commits (data)")
    db.executemany("insert into accounts values (?, 0)", ((i,) for i in range(ACCOUNTS)))


def balance(db):
    total, = db.execute("select sum(balance) from accounts").fetchone()
    assert total == 0, f"balances sum to {total}"


# Moves money and notes the number outside once the commit has returned.
def write(path, first, acks):
    db = connect(path, first % 2 == 0)
    out = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = first
    while True:
        db.execute("begin immediate")
        db.execute("insert into commits values (?, ?)", (number, str(number).encode() * 100))
        amount, one, other = random.randrange(1000), random.randrange(ACCOUNTS), random.randrange(ACCOUNTS)
        db.execute("update accounts set balance = balance - ? where id = ?", (amount, one))
        db.execute("update accounts set balance = balance + ? where id = ?", (amount, other))
        db.execute("commit")
        os.write(out, b"%d\n" % number)
        number += 4
        if number % 40 == first % 40:
            balance(db)


def prove(path, acks):
    db = connect(path, False)
    result = db.execute("pragma integrity_check").fetchall()
    assert result == [("ok",)], result[:5]
    balance(db)
    there = set()
    for number, data in db.execute("select id, data from commits"):
        assert data == str(number).encode() * 100, f"commit {number} has wrong data"
        there.add(number)
    with open(acks) as lines:
        acknowledged = {int(line) for line in lines}
    lost = acknowledged - there
    assert not lost, f"{len(lost)} commits are lost: {sorted(lost)[:5]}"
    print(max(there))


command, arguments = sys.argv[1], sys.argv[2:]
if command == "make":
    make(*arguments)
elif command == "write":
    write(arguments[0], int(arguments[1]), arguments[2])
else:
    prove(*arguments)
PYTHON
client() {
    python3 "$WORK/client.py" "$@"
}

# On a busy machine it takes a while until it does. The file must have its name: under load the kernel calls it
# deleted in some processes' maps, which is said of their dentry and not of the inode that they share.
maps_shared_memory() {
    local range
    for _ in $(seq 1200); do
        range=$(awk '/database-shm/ { print $1; exit }' "/proc/$1/maps")
        if [ -n "$range" ]; then
            [ "$(stat -L -c '%i %h' "/proc/$1/map_files/$range")" = "$(stat -c '%i 1' "$database-shm")" ]
            return
        fi
        sleep 0.1
    done
    return 1
}

has_committed() {
    [ "$(wc -l <"$WORK/acks")" -gt "$1" ]
}

tell_clients() {
    local pid
    ls -li "$mnt" || true
    for pid in "${writers[@]}"; do
        echo "client $pid:"
        grep database "/proc/$pid/maps" || true
        find "/proc/$pid/map_files" -lname '*database*' -exec stat -L -c '%n is %i with %h names' {} + || true
        cat "/proc/$pid/stack" || true
    done
    cat "$WORK"/client?.log
}

writers=()
trap 'code=$?; kill -9 "${writers[@]}" 2>/dev/null || true; finish $code' EXIT
client make "$database" || fail "the database cannot be made"
next=1
before=0
for round in $(seq "$((rounds * 3))"); do
    victims=(both clients lacuna)
    victim=${victims[round % 3]}
    what="round $round, $victim killed, ${remount_with[*]} ${log_device[*]}"
    for writer in 0 1 2 3; do
        python3 "$WORK/client.py" write "$database" "$((next + writer))" "$WORK/acks" 2>"$WORK/client$writer.log" &
        writers+=($!)
    done
    for pid in "${writers[@]}"; do
        maps_shared_memory "$pid" || { tell_clients >&2; fail "$what: client $pid maps no -shm file"; }
    done
    await "nothing is committed" has_committed "$before"
    sleep "$((1 + RANDOM % 2)).$((RANDOM % 10))"
    for pid in "${writers[@]}"; do
        kill -0 "$pid" || { tell_clients >&2; fail "$what: client $pid ended by itself"; }
    done
    prove_log_device "$what"
    [ "$victim" = clients ] || kill_daemon
    [ "$victim" = lacuna ] || kill -9 "${writers[@]}" 2>/dev/null || true
    if [ "$victim" = lacuna ]; then
        # Each ends with the first error, or with the signal for a mapped page that cannot be read.
        for _ in $(seq 100); do
            kill -0 "${writers[@]}" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "${writers[@]}" 2>/dev/null || true
    fi
    { wait "${writers[@]}" || true; } 2>/dev/null
    writers=()
    if grep -h AssertionError "$WORK"/client?.log; then fail "$what: a transaction saw half of another"; fi
    if [ "$victim" = clients ]; then umount_store; else umount -l "$mnt"; fi
    "$LACUNA" check "$store" "${log_device[@]}" >/dev/null || fail "$what: the store is not sound"
    if [ "${#remount_with[@]}" = 2 ]; then remount_with+=(--cache=none); else remount_with=(--threads 16); fi
    [ "$round" != "$(((rounds * 3 + 1) / 2))" ] || add_log_device
    mount_store
    last=$(client prove "$database" "$WORK/acks") || fail "$what"
    acknowledged=$(wc -l <"$WORK/acks")
    [ "$acknowledged" -gt "$before" ] || { cat "$WORK"/client?.log >&2; fail "$what: nothing was committed before"; }
    echo "sqlite: $what: $((acknowledged - before)) acknowledged commits are all there"
    before=$acknowledged
    next=$((last / 4 * 4 + 1001))
done
check_store
echo "sqlite: passed"
