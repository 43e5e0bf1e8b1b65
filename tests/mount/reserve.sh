#!/usr/bin/env bash
# A user fills a mount: root still writes, the user deletes, and df shows what is kept.
. "$(dirname "$0")/lib.sh"
need_fuse
need runuser df
build
start 256M --threads 4 --root-reserve 10%
chmod 755 "$WORK"
chmod 1777 "$mnt"

as_user() { (cd / && exec runuser -u nobody -- "$@"); }
kb() { df --output="$1" "$mnt" | tail -1 | tr -d ' '; }
fill() { # USER FILE
    (cd / && runuser -u "$1" -- sh -c "head -c 300M /dev/urandom >'$2'") 2>"$WORK/error" && fail "300 MB fit"
    grep -q 'No space left' "$WORK/error" || fail "instead of ENOSPC: $(cat "$WORK/error")"
}

total=$(kb size)
[ $((total - $(kb used) - $(kb avail))) -ge $((total * 9 / 100)) ] || fail "df counts the reserve as available"
fill nobody "$mnt/user"
[ "$(kb avail)" -lt 300 ] || fail "refused while $(kb avail) KB are available"
left=$(($(kb size) - $(kb used)))
[ "$left" -ge $((total * 9 / 100)) ] || fail "the user left $left of $total KB"
as_user sh -c "head -c 1M /dev/urandom >'$mnt/more'" 2>/dev/null && fail "a user goes on"
as_user rm -f "$mnt/more"
# What is there can be changed.
as_user dd if=/dev/urandom of="$mnt/user" bs=64K count=16 conv=notrunc,fsync status=none || fail "overwrite"
as_user dd if=/dev/urandom of="$mnt/user" bs=64K count=16 conv=notrunc oflag=direct status=none || fail "direct"
# A sparse file that is filled through a mapping, whose pages come from nobody in particular.
if command -v python3 >/dev/null; then
    chmod 666 "$mnt/user"
    as_user truncate -s 400M "$mnt/user"
    as_user python3 - "$mnt/user" 2>"$WORK/error" <<'P' && fail "a mapping takes the reserve"
import mmap, os, sys
f = open(sys.argv[1], "r+b")
m = mmap.mmap(f.fileno(), 0)
at = 300 << 20
m[at:at + (8 << 20)] = os.urandom(8 << 20)
m.flush()
os.fsync(f.fileno())
P
    left=$(($(kb size) - $(kb used)))
    [ "$left" -ge $((total * 9 / 100)) ] || fail "a mapping left $left of $total KB"
fi
head -c 4M /dev/urandom >"$mnt/root" || fail "root cannot use its reserve"
fill root "$mnt/root"
as_user rm "$mnt/user" || fail "a user cannot remove its file"
rm "$mnt/root"
as_user sh -c "head -c 4M /dev/urandom >'$mnt/again'" || fail "nothing came back"
umount_store

# Kept for others by default, in percent of the store; for oneself, nothing.
reserved() {
    "$LACUNA" mount "$@" "$store" "$mnt"
    echo $((($(kb size) - $(kb used) - $(kb avail)) * 1000 / $(kb size)))
    "$LACUNA" umount "$mnt"
}
[ "$(reserved)" -le 1 ] || fail "a mount of one's own keeps something"
[ "$(reserved --allow-other --root-reserve 0)" -le 1 ] || fail "0 keeps something"
five=$(reserved --allow-other)
[ "$five" -ge 48 ] && [ "$five" -le 51 ] || fail "5% are $five per mille"
"$LACUNA" mount --root-reserve 5 "$store" "$mnt" 2>"$WORK/error" && fail "5 is neither percent nor a size"
grep -q 'percent from 0% to 50%' "$WORK/error" || fail "$(cat "$WORK/error")"
check_store
echo "reserve: passed"
