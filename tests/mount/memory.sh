#!/usr/bin/env bash
# One byte written into each sector makes as many extents as there are sectors. The map stays within its memory, and
# everything reads back.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3
build
mib=1048576
start 256M --threads 4 --map-memory 1M

writes=${WRITES:-400000}
write_sectors() {
    python3 - "$mnt/bytes" "$writes" "$1" <<'PYTHON'
import os, sys
path, writes, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
# Every other sector, so that no two are one extent.
if what == "write":
    for number in range(writes):
        os.pwrite(file, bytes([number % 251 + 1]), number * 1024)
    os.fsync(file)
else:
    for number in range(0, writes, 97):
        found = os.pread(file, 2, number * 1024)
        assert found[:1] == bytes([number % 251 + 1]), f"sector {number}: {found}"
PYTHON
}
write_sectors write || fail "the writes"
extents=$(metric extents)
[ "$extents" -ge "$writes" ] || fail "$extents extents of $writes sectors: this tests nothing"
[ "$(metric map_memory_max_bytes)" = "$mib" ] || fail "the bound is not in the metrics"
memory=$(metric map_memory_bytes)
[ "$memory" -le $((mib * 5 / 4)) ] || fail "the map takes $memory bytes of $mib for $extents extents"
write_sectors read || fail "what was written is not what is read"
memory=$(metric map_memory_bytes)
[ "$memory" -le $((mib * 5 / 4)) ] || fail "after reading the map takes $memory bytes of $mib"
echo "memory: $extents extents in $memory bytes of map"
check_store

# There is a bound without the option, and it grows with the store.
remount_with=(--threads 4)
mount_store
bound=$(metric map_memory_max_bytes)
[ "$bound" -ge $((32 * mib)) ] && [ "$bound" -le $((64 * mib)) ] || fail "256 MB of store, $bound bytes of map"
umount_store
"$LACUNA" format --size 64G --force "$store" >/dev/null
mount_store
large=$(metric map_memory_max_bytes)
[ "$large" -gt "$bound" ] || [ "$(awk '/MemTotal/ { print $2 }' /proc/meminfo)" -lt 524288 ] ||
    fail "64 GB of store, $large bytes of map"
check_store
echo "memory: passed"
