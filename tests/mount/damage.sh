#!/usr/bin/env bash
# A flipped bit: EIO with the place in the log, the rest usable. A device that fails: EIO, what was synced
# is there after it is well again.
. "$(dirname "$0")/lib.sh"
need_fuse
need losetup perl
build
start 128M --threads 4

marker="the bytes that will be damaged $$ $RANDOM"
for i in $(seq 200); do echo "$marker"; done >"$WORK/damaged"
# At once: no older copies of its bytes in the log.
dd if="$WORK/damaged" of="$mnt/damaged" bs=1M status=none
head -c 1M /dev/urandom >"$mnt/sound"
sum=$(sha256sum <"$mnt/sound")
# A link's target lies in its inode.
target="the inode that will be damaged $$ $RANDOM"
mkdir "$mnt/names"
for i in $(seq 500); do : >"$mnt/names/$i"; done
ln -s "$target" "$mnt/names/link"
umount_store
for bytes in "$marker" "$target"; do
    at=$(grep -abo -m1 -F "$bytes" "$store" | head -1 | cut -d: -f1)
    [ -n "$at" ] || fail "not in the store: $bytes"
    printf '\xff' | dd of="$store" bs=1 seek="$((at + 10))" conv=notrunc status=none
done
"$LACUNA" check "$store" >"$WORK/check" 2>&1 && fail "check does not see the damage"
grep -q corrupt "$WORK/check" || fail "check says: $(cat "$WORK/check")"
"$LACUNA" mount --foreground "$store" "$mnt" 2>"$WORK/log" &
for _ in $(seq 100); do mountpoint -q "$mnt" && break; sleep 0.05; done
cat "$mnt/damaged" >/dev/null 2>"$WORK/error" && fail "damaged bytes were returned"
grep -q 'Input/output error' "$WORK/error" || fail "instead of EIO: $(cat "$WORK/error")"
grep -q 'corrupt' "$WORK/log" || fail "the place is not in the log: $(cat "$WORK/log")"
[ "$(sha256sum <"$mnt/sound")" = "$sum" ] || fail "the rest is not usable"
# A damaged inode keeps its name, and takes no other along.
for i in 1 2; do
    [ "$(ls -U "$mnt/names" | wc -l)" = 501 ] || fail "a damaged inode hides names"
    readlink -v "$mnt/names/link" 2>"$WORK/error" && fail "a damaged target was returned"
    grep -q 'Input/output error' "$WORK/error" || fail "instead of EIO: $(cat "$WORK/error")"
done
# Its name can be removed; what it takes is kept.
rm "$mnt/names/link" || fail "the name of a damaged inode cannot be removed"
[ "$(ls -U "$mnt/names" | wc -l)" = 500 ] || fail "more than that name is gone"
# Who tries again and again floods no log, and yet each error is in it, if only as a number.
for _ in $(seq 5); do
    dd if="$mnt/damaged" of=/dev/null bs=512 iflag=direct conv=noerror 2>/dev/null || true
done
# Whether a file is ready is nothing to complain about.
perl -e 'vec(my $files, 0, 1) = 1; select($files, undef, undef, 0) == 1 or die' <"$mnt/sound" || fail "select"
errors=$(metric io_errors_total)
rm "$mnt/damaged" || fail "a damaged file cannot be removed"
echo new >"$mnt/new"
umount_store
wait
"$LACUNA" check "$store" >"$WORK/check" 2>&1 && fail "check does not see what is left of the damaged inode"
grep -q 'damaged and has no name' "$WORK/check" || fail "check does not tell of it: $(cat "$WORK/check")"
grep "Not Implemented" "$WORK/log" && fail "the transport complains"
lines=$(grep -c corrupt "$WORK/log")
left_out=$(awk '/are not in this log/ { sum += $2 } END { print sum + 0 }' "$WORK/log")
[ "$left_out" -gt 0 ] && [ "$((lines + left_out))" = "$errors" ] ||
    fail "$errors errors are $lines lines in the log and $left_out left out"
grep corrupt "$WORK/log" | head -1

# The device: a loop device over a file on a small tmpfs, which runs out under it.
small=$WORK/small
mkdir "$small"
mount -t tmpfs -o size=48M tmpfs "$small"
truncate -s 256M "$small/disk"
loop=$(losetup --show -f "$small/disk" 2>/dev/null) || {
    umount "$small"
    echo "damage: no loop devices on this machine, the failing device is SKIPPED" >&2
    echo "damage: passed"
    exit 0
}
blockdev --setrw "$loop" # whatever its last user made of it
store=$loop
tear_down() {
    umount -l "$mnt" 2>/dev/null || true
    for _ in $(seq 100); do losetup -d "$loop" 2>/dev/null && break; sleep 0.1; done
    umount -l "$small" 2>/dev/null || true
    rm -rf "$small"
}
trap 'code=$?; tear_down; finish $code' EXIT
"$LACUNA" format --size 256M --force "$loop" >/dev/null
mount_store
head -c 8M /dev/urandom >"$mnt/synced"
sync "$mnt/synced"
sum=$(sha256sum <"$mnt/synced")
if (head -c 100M /dev/urandom >"$mnt/too-much" && sync "$mnt/too-much") 2>"$WORK/error"; then
    fail "a device that fails was not noticed"
fi
# What the first one says is the device's own word: a loop device passes on that its file got no room.
grep -Eq 'Input/output error|No space left' "$WORK/error" || fail "instead of EIO: $(cat "$WORK/error")"
(echo later >"$mnt/later") 2>"$WORK/error" && fail "writes go on after a failed one"
grep -q 'Input/output error' "$WORK/error" || fail "instead of EIO: $(cat "$WORK/error")"
[ "$(sha256sum <"$mnt/synced")" = "$sum" ] || fail "reads do not go on beside a failed write"
# The log says what happened, and the way back.
[ "$(metric failed reason=)" = 1 ] || fail "no metric tells: $("$LACUNA" metrics "$store" | grep failed)"
"$LACUNA" info "$store" | grep -q 'STOPPED after a failure: ' || fail "info does not tell"
umount -i "$mnt" || fail "cannot be unmounted after a failure"
for _ in $(seq 100); do "$LACUNA" metrics "$store" >/dev/null 2>&1 || break; sleep 0.1; done
mount -o remount,size=400M "$small"
"$LACUNA" check "$store" || fail "not sound once the device is well"
mount_store
[ "$(sha256sum <"$mnt/synced")" = "$sum" ] || fail "what was synced is lost"
rm -f "$mnt/too-much"
check_store

# The same, for a supervisor that starts the process again.
leave_no_space() { mount -o "remount,size=$(($(du -m "$small/disk" | cut -f1) + 1))M" "$small" 2>/dev/null; }
await "space cannot be taken away" leave_no_space
"$LACUNA" mount --foreground --exit-on-failure "$store" "$mnt" 2>"$WORK/log" &
daemon=$!
await "not mounted" mountpoint -q "$mnt"
(head -c 100M /dev/urandom >"$mnt/too-much" && sync "$mnt/too-much") 2>/dev/null && fail "no failure"
code=0
wait "$daemon" || code=$?
[ "$code" = 1 ] || fail "the process of a stopped store ends with $code"
grep -q "stopped after a failure: .*Once the device is well again: lacuna umount" "$WORK/log" ||
    fail "no way back in the log: $(cat "$WORK/log")"
mountpoint -q "$mnt" && fail "a dead mount is left"
mount -o remount,size=400M "$small"
"$LACUNA" check "$store" || fail "not sound after the exit"
mount_store
[ "$(sha256sum <"$mnt/synced")" = "$sum" ] || fail "what was synced is lost by the exit"
check_store
echo "damage: passed"
