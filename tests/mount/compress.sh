#!/usr/bin/env bash
# Compression of a mount: defaults of store and mount, chattr(1), attributes, `lacuna compress` and `du`, rewriting what
# is being written; then kill.sh and posix.sh on a store that compresses.
. "$(dirname "$0")/lib.sh"
need_fuse
need runuser python3
build
LACUNA_COMPRESS=lz4 start 256M --threads 4
chmod 755 "$WORK"
chmod 1777 "$mnt"

# Not every machine has getfattr(1).
get() { python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], sys.argv[2]).decode())' "$mnt/$1" "user.lacuna.$2"; }
set_to() { python3 -c 'import os, sys; os.setxattr(sys.argv[1], sys.argv[2], sys.argv[3].encode())' "$1" "user.lacuna.$2" "$3"; }
has() { get "$1" compression; }
# room FILE KIND COLUMN: 1 is data, 2 what it takes
room() {
    get "$1" room |
        awk -v kind="$2" -v at="$3" '{ for (i = 1; i < NF; i += 3) if ($i == kind) print $(i + at) }'
}
# Text that shrinks to less than half, of $1 MiB.
text() {
    python3 -c 'import sys; n = int(sys.argv[1]) << 20
sys.stdout.write("".join("line %d of a text that repeats itself\n" % i for i in range(n // 20))[:n])' "$1"
}

text 2 >"$mnt/file"
[ "$(has file)" = "default lz4" ] || fail "the default of the store: $(has file)"
[ "$(room file lz4 1)" -ge $((2 << 20)) ] && [ "$(room file plain 1)" = 0 ] || fail "not compressed"
[ "$(room file lz4 2)" -lt $((1 << 20)) ] || fail "not smaller: $(room file lz4 2)"
[ "$(stat -c %b "$mnt/file")" -lt 2048 ] || fail "st_blocks is $(stat -c %b "$mnt/file")"
[ "$(python3 -c 'import os, sys; print(os.listxattr(sys.argv[1]))' "$mnt/file")" = "[]" ] || fail "attributes are listed"
"$LACUNA" du "$mnt" --bytes | awk '$1 == "lz4" && $3 < $2 / 2 { found = 1 } END { exit !found }' ||
    fail "du: $("$LACUNA" du "$mnt")"
mkdir -p "$mnt/upper/below" "$WORK/elsewhere"
text 1 >"$mnt/upper/below/other"
"$LACUNA" du "$mnt" --depth 1 | awk '/files of/ { print $1, $2 }' >"$WORK/sums"
printf '%s: %s\n' "$mnt" 2 "$mnt/upper" 1 | cmp - "$WORK/sums" || fail "du --depth 1: $(cat "$WORK/sums")"
rm -r "$mnt/upper"
"$LACUNA" du "$WORK/elsewhere" 2>"$WORK/error" && fail "du of what is on no mount"
grep -q 'elsewhere: not on a Lacuna mount' "$WORK/error" || fail "$(cat "$WORK/error")"
"$LACUNA" info "$store" | grep -q 'compressed by *lz4' || fail "info: $("$LACUNA" info "$store")"
[ "$(metric compressed_bytes_total)" -ge $((2 << 20)) ] || fail "metrics"

# A directory hands down; what is there is compressed anew while it is read and written.
mkdir "$mnt/dir"
"$LACUNA" compress "$mnt/dir" --set zstd:5
text 4 >"$mnt/dir/file"
[ "$(has dir/file)" = zstd:5 ] && [ "$(room dir/file lz4 1)" = 0 ] || fail "handed down: $(has dir/file)"
text 8 >"$mnt/busy"
sum=$(sha256sum <"$mnt/busy")
for number in $(seq 0 40); do
    head -c 8192 /dev/zero | tr '\0' "\\$((101 + number % 6))" |
        dd of="$mnt/busy" bs=8192 seek=$((number * 20)) conv=notrunc status=none
    [ $((number % 10)) != 5 ] || "$LACUNA" compress "$mnt/busy" --set "zstd:$((number / 10 + 1))" --rewrite &
done
wait
"$LACUNA" compress "$mnt/busy" --set none
stat "$mnt/busy" >/dev/null
"$LACUNA" compress "$mnt/busy" --rewrite
shows() { [ "$(stat -c %b "$mnt/busy")" "$@" ]; } # of all attributes only this one is asked for
shows -ge $((8 << 11)) || { sleep 2; shows -ge $((8 << 11)); } || fail "st_blocks after a rewrite: $(stat -c %b "$mnt/busy")"
for number in $(seq 0 40); do
    part=$(dd if="$mnt/busy" bs=8192 skip=$((number * 20)) count=1 status=none | tr -d "\\$((101 + number % 6))")
    [ -z "$part" ] || fail "what was written beside a rewrite is lost, at $number"
done
[ "$(sha256sum <"$mnt/busy")" != "$sum" ] || fail "nothing was written"
[ "$(room busy plain 1)" -ge $((8 << 20)) ] || fail "still compressed: $("$LACUNA" du "$mnt/busy")"
"$LACUNA" compress "$mnt" --rewrite 2>"$WORK/error" && fail "a directory is rewritten without its files"
grep -q 'recursive rewrites the files in it' "$WORK/error" || fail "$(cat "$WORK/error")"
"$LACUNA" compress -r "$mnt" --set zstd:9 --rewrite
"$LACUNA" du "$mnt" --bytes | grep -qE '^  (plain|lz4)' && fail "not all of it is rewritten: $("$LACUNA" du "$mnt")"
[ "$("$LACUNA" compress "$mnt/busy" | cut -d' ' -f1)" = zstd:9 ] || fail "compress shows $("$LACUNA" compress "$mnt/busy")"

if command -v chattr >/dev/null; then
    chattr -c "$mnt/file" && [ "$(has file)" = none ] || fail "chattr -c: $(has file)"
    lsattr "$mnt/file" | grep -q '^[^ ]*c' && fail "lsattr after chattr -c"
    chattr +c "$mnt/file" && lsattr "$mnt/file" | grep -q '^[^ ]*c' || fail "chattr +c: $(has file)"
    chattr +a "$mnt/file" 2>/dev/null && fail "chattr +a is not kept"
else
    echo "not tested: no chattr on this machine" >&2
fi

# Who does not own a file may not.
chmod 666 "$mnt/file"
before=$(has file)
(cd / && runuser -u nobody -- python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.lacuna.compression", b"none")' \
    "$mnt/file") 2>/dev/null && fail "by nobody"
[ "$(has file)" = "$before" ] || fail "changed by nobody"
set_to "$mnt/file" compression zstd:23 2>/dev/null && fail "there is no zstd:23"
"$LACUNA" compress "$WORK" 2>"$WORK/error" && fail "outside of a mount"
grep -q 'not on a Lacuna mount' "$WORK/error" || fail "$(cat "$WORK/error")"

sync -f "$mnt"
sums=$(cd "$mnt" && sha256sum file busy dir/file)
kill_daemon
"$LACUNA" umount "$mnt"
"$LACUNA" check "$store" || fail "not sound after a kill"
# The mount's default comes before the store's, and older data stays as it is.
remount_with=(--threads 4 --compress none)
mount_store
[ "$(cd "$mnt" && sha256sum file busy dir/file)" = "$sums" ] || fail "other bytes after a kill"
"$LACUNA" compress "$mnt/file" --set default
[ "$(has file)" = "default none" ] || fail "the default of the mount: $(has file)"
text 1 >"$mnt/plain"
[ "$(room plain plain 2)" -ge $((1 << 20)) ] || fail "compressed against the mount's default"
umount_store
# What is older than a second is compressed harder.
remount_with=(--threads 4 --compress lz4 --recompress zstd:9 --recompress-after 1)
mount_store
text 1 >"$mnt/cold"
sum=$(sha256sum <"$mnt/cold")
blocks=$(stat -c %b "$mnt/cold")
before=$(room cold lz4 1)
is_cold() { [ "$(room cold zstd 1)" = $((1 << 20)) ]; }
await "old data is not compressed again" is_cold
# Nobody has asked for a change, so the kernel has to be told.
shows_less() { [ "$(stat -c %b "$mnt/cold")" -lt "$blocks" ]; }
[ "$before" != $((1 << 20)) ] || shows_less || { sleep 2; shows_less; } || fail "st_blocks is still $blocks"
[ "$(sha256sum <"$mnt/cold")" = "$sum" ] || fail "other bytes after old data was compressed again"
[ "$(metric recompressed_bytes_total)" -ge $((1 << 20)) ] || fail "metrics of recompression"
check_store
LACUNA_COMPRESS=zstd:1 ROUNDS=1 "$here/kill.sh"
# What compresses is the same over any transport.
[ "${LACUNA_TRANSPORT:-}" = uring ] || LACUNA_COMPRESS=lz4 "$here/posix.sh"
echo "compress: passed"
