#!/usr/bin/env bash
# Copies keep holes: what a copy takes differs from its source by 2% at most.
. "$(dirname "$0")/lib.sh"
need_fuse
build
start 1G --threads 4 --atime noatime

taken() {
    stat -c '%b' "$1"
}

# 16 KiB pages of which 5,120 bytes are data: 1,000 of them, as a page-compressed table has them.
head -c $((1000 * 5120)) /dev/urandom >"$WORK/random"
write_pages() {
    local page=0
    while [ $page -lt 1000 ]; do
        dd if="$WORK/random" of="$1" bs=5120 skip=$page seek=$((page * 16384)) oflag=seek_bytes \
            count=1 conv=notrunc status=none
        page=$((page + 1))
    done
    truncate -s $((1000 * 16384)) "$1"
}
write_pages "$mnt/table"
want=$(taken "$mnt/table")
[ "$want" -ge 10000 ] && [ "$want" -le 10200 ] || fail "the source takes $want blocks"

near() {
    cmp "$1" "$2" || fail "$3: contents differ"
    local got
    got=$(taken "$2")
    [ $((got * 100)) -le $((want * 102)) ] || fail "$3: $got blocks instead of $want"
    echo "holes: $3 keeps them: $got of $want blocks"
}

cp --sparse=auto "$mnt/table" "$mnt/cp"
near "$mnt/table" "$mnt/cp" "cp --sparse=auto"
if command -v rsync >/dev/null; then
    rsync -S "$mnt/table" "$mnt/rsync"
    near "$mnt/table" "$mnt/rsync" "rsync -S"
else
    echo "holes: no rsync on this machine, its part is SKIPPED" >&2
fi
tar -C "$mnt" -cSf "$WORK/table.tar" table
mkdir "$mnt/untar"
tar -C "$mnt/untar" -xSf "$WORK/table.tar"
near "$mnt/table" "$mnt/untar/table" "tar -S"

# A program that has mapped the file and changed it there: nothing of that was written back yet.
python3 - "$mnt/mapped" "$WORK/copied" <<'END' || fail "a copy of a mapped file has holes where there is data"
import mmap, os, subprocess, sys
name, copied = sys.argv[1:]
with open(name, "wb+") as file:
    file.truncate(1 << 20)
    pages = mmap.mmap(file.fileno(), 1 << 20)
    pages[65536:69632] = b"M" * 4096
    reader = os.open(name, os.O_RDONLY)
    if not os.lseek(reader, 0, os.SEEK_DATA) <= 65536 < os.lseek(reader, 0, os.SEEK_HOLE):
        sys.exit("SEEK_DATA and SEEK_HOLE")
    for sparse in "auto", "always":
        subprocess.run(["cp", "--sparse=" + sparse, name, copied], check=True)
        with open(copied, "rb") as copy:
            if copy.read()[65536:69632] != b"M" * 4096:
                sys.exit("cp --sparse=" + sparse)
END
rm "$mnt/mapped"

# Without the mount: out of the store, back into it, within it, and into another one.
cp "$mnt/table" "$WORK/reference"
umount_store
"$LACUNA" get "$store:/table" "$WORK/got"
cmp "$WORK/reference" "$WORK/got" || fail "lacuna get: contents differ"
"$LACUNA" put "$WORK/got" "$store:/put"
"$LACUNA" cp "$store:/table" "$store:/within"
"$LACUNA" format --size 256M "$WORK/other" >/dev/null
"$LACUNA" cp "$store:/table" "$WORK/other:/table"
"$LACUNA" cp "$WORK/other:/table" "$store:/across"
[ "$("$LACUNA" cat "$store:/across" | sha256sum)" = "$(sha256sum <"$WORK/reference")" ] ||
    fail "lacuna cat: contents differ"
"$LACUNA" ls "$store" | grep -q ' across$' || fail "lacuna ls"
for into in /across /across/x; do
    "$LACUNA" cp "$store:/across" "$store:$into" 2>/dev/null && fail "a file was copied onto itself"
done
"$LACUNA" cp -r "$store:/untar" "$store:/untar/deep" 2>/dev/null && fail "a directory was copied into itself"
[ "$("$LACUNA" cat "$store:/across" | sha256sum)" = "$(sha256sum <"$WORK/reference")" ] ||
    fail "a file was copied onto itself"
"$LACUNA" cp -r "$store:/untar" "$store:/twice"
"$LACUNA" get -r "$store:/twice" "$WORK/twice"
cmp "$WORK/twice/table" "$WORK/reference" || fail "lacuna cp -r"
"$LACUNA" rm "$store:/twice" 2>/dev/null && fail "a directory was removed as a file"
"$LACUNA" rm -r "$store:/twice"
"$LACUNA" rm -r "$store:/untar"
mount_store
[ ! -e "$mnt/untar" ] || fail "lacuna rm"
near "$WORK/reference" "$mnt/within" "lacuna cp within a store"
near "$WORK/reference" "$mnt/across" "lacuna cp between stores"
near "$WORK/reference" "$mnt/put" "lacuna get and put"
check_store
echo "holes: passed"
