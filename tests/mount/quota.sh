#!/usr/bin/env bash
# Quotas of users on a mount: EDQUOT for who is above a limit, nothing for root and for what frees space; set and shown
# while it is mounted and while it is not; after a kill what is counted is what is there.
. "$(dirname "$0")/lib.sh"
need_fuse
need runuser
build
start 256M --threads 4 --root-reserve 0
chmod 755 "$WORK"
chmod 1777 "$mnt"

as() { (cd / && exec runuser -u "$1" -- "${@:2}"); }
writes() { as "$1" sh -c "head -c $2 /dev/urandom >'$mnt/$3'" 2>"$WORK/error"; }
denied() {
    "$@" && fail "past the limit: ${*:2}"
    grep -qi 'quota exceeded' "$WORK/error" || fail "instead of EDQUOT: $(cat "$WORK/error")"
}
quota() { "$LACUNA" quota "$store" "$@"; }
# user USER COLUMN
shown() { quota | awk -v user="$1" -v at="$2" '$1 == user { print $at }'; }

writes nobody 3M before
[ "$(shown nobody 2)" = $((3 << 20)) ] || fail "3 MiB are counted as $(shown nobody 2)"
[ "$(shown nobody 3)" = - ] || fail "a limit that nobody set"
quota set nobody 8M --files 4
writes nobody 4M more
denied writes nobody 4M most
[ "$(shown nobody 2)" -le $((8 << 20)) ] || fail "$(shown nobody 2) bytes are more than 8 MiB"
writes daemon 20M others || fail "another user has no limit"
rm "$mnt/most"
as nobody sh -c "dd if=/dev/urandom of='$mnt/more' bs=64K count=64 conv=notrunc,fsync status=none" || fail "overwrite"
head -c 4M /dev/urandom >>"$mnt/more" || fail "root is refused"
[ "$(shown nobody 2)" = $((11 << 20)) ] || fail "what root writes is not the owner's: $(shown nobody 2)"
appends() { as "$1" sh -c "head -c $2 /dev/urandom >>'$mnt/$3'" 2>"$WORK/error"; }
denied appends nobody 64K before
# What is removed, closed or open, comes back.
as nobody rm "$mnt/more"
writes nobody 5M again || fail "what was removed is still counted"
as nobody touch "$mnt/3" "$mnt/4"
as nobody touch "$mnt/5" 2>"$WORK/error" && fail "a fifth file"
grep -qi 'quota exceeded' "$WORK/error" || fail "$(cat "$WORK/error")"
chown daemon "$mnt/again"
[ "$(shown nobody 2)" = $((3 << 20)) ] && [ "$(shown nobody 4)" = 3 ] || fail "chown: $(quota)"
[ "$(metric quota_bytes 'user="65534"')" = $((3 << 20)) ] || fail "the metric says $(metric quota_bytes)"
[ "$(metric quota_files_max 'user="65534"')" = 4 ] || fail "the metric says $(metric quota_files_max)"
"$LACUNA" check "$store" || fail "the mounted store is not sound"
quota set root 1G 2>"$WORK/error" && fail "root has a limit"
grep -q 'cannot have limits' "$WORK/error" || fail "$(cat "$WORK/error")"
quota set nobody none --files none 2>"$WORK/error" && fail "no limit is a limit"
quota set nobody 9M
[ "$(shown nobody 3) $(shown nobody 5)" = "$((9 << 20)) 4" ] || fail "a limit of bytes changed that of files: $(quota)"
quota set nobody 8M

sync "$mnt/before"
kill_daemon
"$LACUNA" umount "$mnt"
"$LACUNA" check "$store" || fail "not sound after a kill"
[ "$(shown nobody 3)" = $((8 << 20)) ] && [ "$(shown nobody 5)" = 4 ] || fail "limits are lost: $(quota)"
mount_store
denied writes nobody 8M most
rm -f "$mnt/most"
umount_store
quota clear nobody
[ "$(shown nobody 3)" = - ] || fail "not cleared: $(quota)"
quota set 4242 1M
mount_store
writes nobody 12M most || fail "limits that were cleared"
[ "$(shown 4242 2) $(shown 4242 3)" = "0 $((1 << 20))" ] || fail "of a number: $(quota)"
check_store
echo "quota: passed"
