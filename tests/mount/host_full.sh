#!/usr/bin/env bash
# The file system that holds a store file runs out of space: what needs more gets ENOSPC, what is there can be read and
# removed, nothing is stopped, and once there is space everything goes on.
. "$(dirname "$0")/lib.sh"
need_fuse
build
WORK=$(mktemp -d -t lacuna-mount.XXXXXX)
own_work=1
small=$WORK/small
mkdir "$small"
mount -t tmpfs -o size=48M tmpfs "$small" || skip "no tmpfs on this machine"
linked=
trap 'code=$?; [ -z "$linked" ] || rm -f "$linked"; umount -l "$mnt" 2>/dev/null || true; umount -l "$small" || true; finish $code' EXIT
mnt=$WORK/mnt store=$small/store
mkdir "$mnt"
remount_with=(--threads 4)
"$LACUNA" format --size 256M "$store" >/dev/null
mount_store

head -c 8M /dev/urandom >"$mnt/synced"
sync "$mnt/synced"
sum=$(sha256sum <"$mnt/synced")
number=0
while head -c 1M /dev/urandom >"$mnt/$number" 2>"$WORK/error"; do
    number=$((number + 1))
    [ "$number" -lt 200 ] || fail "48 MB hold 200 MB of random bytes"
done
grep -q 'No space left' "$WORK/error" || fail "instead of ENOSPC: $(cat "$WORK/error")"
waits() { [ "$(metric waits_for_host)" = "$1" ]; }
await "nobody says that it waits" waits 1
"$LACUNA" info "$store" | grep -q 'WAITING.*full' || fail "info: $("$LACUNA" info "$store")"
[ "$(metric failed)" = 0 ] || fail "it has stopped: $("$LACUNA" metrics "$store" | grep failed)"
[ "$(sha256sum <"$mnt/synced")" = "$sum" ] || fail "reads do not go on"
rm "$mnt/0" || fail "nothing can be removed"
(echo more >"$mnt/more") 2>"$WORK/error" && fail "there is space for more"
grep -q 'No space left' "$WORK/error" || fail "instead of ENOSPC: $(cat "$WORK/error")"
echo "host_full: after $number MB"
"$LACUNA" remount --read-only "$mnt" 2>"$WORK/error" &
remounting=$!
await "a remount waits without a word" grep -q 'waiting until what was changed before is synced' "$WORK/error"

mount -o remount,size=400M "$small"
await "it does not go on" waits 0
wait "$remounting" || fail "remount: $(cat "$WORK/error")"
"$LACUNA" remount "$mnt"
head -c 8M /dev/urandom >"$mnt/later" && sync "$mnt/later" || fail "writes do not go on"
later=$(sha256sum <"$mnt/later")
check_store
mount_store
[ "$(sha256sum <"$mnt/synced")" = "$sum" ] || fail "what was synced before is lost"
[ "$(sha256sum <"$mnt/later")" = "$later" ] || fail "what was synced later is lost"
[ "$(ls "$mnt" | wc -l)" -ge "$number" ] || fail "files are lost"

# Killed while it waits: what was synced is there.
leave_no_space() { mount -o "remount,size=$(($(du -m "$store" | cut -f1) + 1))M" "$small" 2>/dev/null; }
await "space cannot be taken away" leave_no_space # refused while more of it is being used
while head -c 1M /dev/urandom >"$mnt/again$number" 2>/dev/null; do
    number=$((number + 1))
    [ "$number" -lt 400 ] || fail "a full host holds 400 MB"
done
await "nobody says that it waits" waits 1
kill_daemon
umount -l "$mnt"
# There is no space for its recovery, or hardly any: who looks sees all, and who mounts is told.
"$LACUNA" info "$store" >/dev/null || fail "info on a full host"
"$LACUNA" check "$store" || fail "not sound on a full host"
if ! timeout 60 "$LACUNA" mount "$store" "$mnt" 2>"$WORK/error"; then
    grep -q 'no space left.*is full: free some' "$WORK/error" || fail "mount on a full host: $(cat "$WORK/error")"
    "$LACUNA" mount --read-only "$store" "$mnt"
fi
[ "$(sha256sum <"$mnt/later")" = "$later" ] || fail "what was synced is not to be seen on a full host"
kill_daemon
umount -l "$mnt"
mount -o remount,size=400M "$small"
"$LACUNA" check "$store" || fail "not sound after a kill"
mount_store
[ "$(sha256sum <"$mnt/later")" = "$later" ] || fail "what was synced is lost by a kill"
umount_store

# Unmounted, and told to end, while it waits: the process ends in bounded time, and says what is lost.
fill_again() {
    "$LACUNA" mount --foreground --close-timeout 2 --transport "${LACUNA_TRANSPORT:-auto}" --threads 4 \
        "$store" "$mnt" 2>"$WORK/log" &
    serving=$!
    await "not mounted" mountpoint -q "$mnt"
    await "space cannot be taken away" leave_no_space
    while head -c 1M /dev/urandom >"$mnt/again$number" 2>/dev/null; do
        number=$((number + 1))
        [ "$number" -lt 800 ] || fail "a full host holds 800 MB"
    done
    await "nobody says that it waits" waits 1
}
ended() {
    wait "$serving" && fail "it ends as if nothing were lost"
    grep -q 'no space.*closed as by a power cut. [1-9][0-9]* changes since the last sync are lost' "$WORK/log" ||
        fail "what is lost is not said: $(cat "$WORK/log")"
    mountpoint -q "$mnt" && fail "still mounted"
    mount -o remount,size=800M "$small"
    "$LACUNA" check "$store" || fail "not sound after it was closed without space"
}
fill_again
umount -i "$mnt" || fail "not unmounted"
ended
# umount(8) calls its helper, for an absolute path as well, of which it only knows that it is a FUSE mount.
helper=/sbin/umount.fuse.lacuna
[ -e "$helper" ] || { ln -s "$LACUNA" "$helper" && linked=$helper; }
fill_again
umount "$mnt" 2>"$WORK/error" && fail "umount ends as if nothing were lost"
grep -qF "$mnt" /run/mount/utab && fail "umount's note about the mount is left"
grep -q 'unmounted, but .*[1-9][0-9]* changes since the last sync are lost' "$WORK/error" ||
    fail "lacuna umount does not say what is lost: $(cat "$WORK/error")"
ended
fill_again
exec 7>>"$mnt/later" # opened here: behind the unmount the name is another file's
(echo more >&7 && sync /dev/fd/7) 2>/dev/null &
syncing=$!
exec 7>&-
kill -TERM "$serving"
ended
wait "$syncing" && fail "a sync returned without space"
mount_store
[ "$(head -c 8M "$mnt/later" | sha256sum)" = "$later" ] || fail "what was synced is lost by an unmount"
check_store
echo "host_full: passed"
