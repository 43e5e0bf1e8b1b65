#!/usr/bin/env bash
# A mount with --recompress and --chunk-cache: data that nobody writes gets smaller by itself, beside writers and through a
# kill, and stays the same; what is read again comes from the cache of chunks once the kernel has dropped its own.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3
build
start 256M --threads 4 --compress lz4 --recompress zstd:9 --recompress-after 1 --chunk-cache 32M

stored() { "$LACUNA" du "$mnt/$1" --bytes | awk -v kind="$2" '$1 == kind { print $3 }'; }
# Text that shrinks to less than half, of $1 MiB, different for each $2.
text() {
    python3 -c 'import random, sys
n = int(sys.argv[1]) << 20
random.seed(int(sys.argv[2]))
words = [random.randbytes(4).hex()[:random.randint(2, 8)] for _ in range(2000)]
out = []
while n > 0:
    out.append(" ".join(random.choices(words, k=200)) + "\n")
    n -= len(out[-1])
sys.stdout.write("".join(out)[:int(sys.argv[1]) << 20])' "$1" "$2"
}
# In the background: overwrites pages of a file without end, each with its own letter; it says in $WORK/written what is there.
write_pages() {
    exec python3 - "$mnt/busy" "$WORK/written" <<'PYTHON'
import os, random, sys
file = os.open(sys.argv[1], os.O_RDWR)
log = open(sys.argv[2], "a")
pages = os.fstat(file).st_size // 4096
while True:
    page, letter = random.randrange(pages // 2), random.choice("abcdefgh")
    print(page, letter, file=log, flush=True)  # it may be there from now on
    os.pwrite(file, letter.encode() * 4096, page * 4096)
    if random.random() < 0.1:
        os.fsync(file)
PYTHON
}
# Each page of the file that was overwritten is whole, and one of those that were written to it.
check_pages() {
    python3 - "$mnt/busy" "$WORK/written" "$WORK/busy" <<'PYTHON'
import sys
now, before = open(sys.argv[1], "rb").read(), open(sys.argv[3], "rb").read()
assert len(now) == len(before), "another length"
may = {}
for line in open(sys.argv[2]):
    if line.endswith("\n"):
        page, letter = line.split()
        may.setdefault(int(page), set()).add(letter.encode() * 4096)
for page in range(len(before) // 4096):
    part, old = (it[page * 4096:][:4096] for it in (now, before))
    assert part == old or part in may.get(page, ()), f"page {page} is neither old nor new"
PYTHON
}

text 4 1 >"$WORK/busy"
cp "$WORK/busy" "$mnt/busy"
write_pages 2>/dev/null & # until the daemon is killed
writer=$!
await "nothing is written" test -s "$WORK/written"
text 8 2 >"$WORK/cold"
cp "$WORK/cold" "$mnt/cold"
sync -f "$mnt"
before=$(stored cold lz4)
[ "${before:-0}" -gt $((1 << 20)) ] || fail "not compressed by lz4: $("$LACUNA" du "$mnt/cold")"
is_begun() { [ -n "$(stored cold zstd)" ]; }
await "no walk has begun" is_begun
kill_daemon
wait "$writer" 2>/dev/null || true
"$LACUNA" umount "$mnt"
"$LACUNA" check "$store" || fail "not sound after a kill"

# The walk goes on after the mount, also beside a writer.
mount_store
[ -n "$(stored cold lz4)" ] || echo "not tested: the walk was over when the daemon was killed" >&2
cmp "$WORK/cold" "$mnt/cold" || fail "other bytes after a kill"
check_pages || fail "the file that was written beside a walk"
write_pages &
writer=$!
is_cold() { [ -n "$(stored cold zstd)" ] && [ -z "$(stored cold lz4)" ]; }
await "old data is not compressed again" is_cold
kill "$writer"
wait "$writer" 2>/dev/null || true
after=$(stored cold zstd)
[ "$after" -lt $((before * 9 / 10)) ] || fail "not smaller: $after bytes of $before"
[ "$(metric recompressed_bytes_total)" -gt 0 ] || fail "metrics of recompression"
cmp "$WORK/cold" "$mnt/cold" || fail "other bytes after a walk"
check_pages || fail "the file that was written beside a walk"

# Short reads with the kernel's pages of the file dropped: the second time from the cache of chunks, the third time after a part was
# overwritten.
read_pages() {
    python3 - "$mnt/cold" "$WORK/cold" <<'PYTHON'
import os, sys
file, expected = os.open(sys.argv[1], os.O_RDONLY), open(sys.argv[2], "rb").read()
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
for page in range(0, 1000, 5):
    assert os.pread(file, 8192, page * 8192) == expected[page * 8192:][:8192], f"page {page} is another"
PYTHON
}
read_pages || fail "other bytes than what was written"
hits=$(metric chunk_cache_hits_total)
read_pages || fail "other bytes from the cache of chunks"
[ $(($(metric chunk_cache_hits_total) - hits)) -ge 200 ] || fail "few hits in the cache of chunks: after $hits"
for file in "$mnt/cold" "$WORK/cold"; do
    dd if="$WORK/busy" of="$file" bs=64K count=40 seek=20 conv=notrunc status=none
done
read_pages || fail "old bytes from the cache of chunks"
check_store
echo "cold: passed"
