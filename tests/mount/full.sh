#!/usr/bin/env bash
# A full store: ENOSPC, everything stays readable, overwrites and deletes work, room comes back.
. "$(dirname "$0")/lib.sh"
need_fuse
build
start 128M --threads 4

free_kb() {
    stat -f -c '%a' "$mnt" | awk '{ print $1 * 4 }'
}

free_at_first=$(free_kb)
number=0
while head -c 3M /dev/urandom >"$mnt/$number" 2>"$WORK/error"; do
    sha256sum <"$mnt/$number" >>"$WORK/sums"
    number=$((number + 1))
    [ "$number" -lt 100 ] || fail "128 MB hold 300 MB of random bytes"
done
grep -q 'No space left' "$WORK/error" || fail "instead of ENOSPC: $(cat "$WORK/error")"
[ "$number" -gt 20 ] || fail "full after $number files of 3 MB"
rm "$mnt/$number"
echo "full: after $number files; $(free_kb) KB of $free_at_first KB are left"
for i in $(seq 0 $((number - 1))); do sha256sum <"$mnt/$i"; done | cmp - "$WORK/sums" ||
    fail "a full store does not read back"
# Overwrites of the same size need no room for good.
dd if=/dev/urandom of="$mnt/0" bs=64K count=48 conv=notrunc,fsync status=none || fail "overwrite when full"
for i in $(seq 0 2 $((number - 1))); do rm "$mnt/$i" || fail "rm when full"; done
for i in $(seq 0 2 $((number / 2))); do
    head -c 3M /dev/urandom >"$mnt/again$i" || fail "no room after deletes"
done
rm "$mnt"/*
for _ in $(seq 50); do
    [ "$(free_kb)" -ge $((free_at_first * 99 / 100)) ] && break
    sleep 0.1
done
[ "$(free_kb)" -ge $((free_at_first * 99 / 100)) ] || fail "room does not come back: $(free_kb) KB"
check_store
echo "full: passed"
