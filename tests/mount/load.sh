#!/usr/bin/env bash
# Other people's load for minutes: fio with verification in ten shapes, stress-ng's file stressors, dbench.
# SECONDS_EACH (10).
. "$(dirname "$0")/lib.sh"
need_fuse
need fio stress-ng dbench
build
each=${SECONDS_EACH:-10}
start 2G --threads 16

shape() {
    fio --name="$1" --directory="$mnt" --filename="$1" --size=64M --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --time_based=0 --runtime="$each" --end_fsync=1 --output="$WORK/fio.log" "${@:2}" ||
        { cat "$WORK/fio.log" >&2; fail "fio $*"; }
    grep -q 'err= 0' "$WORK/fio.log" || { cat "$WORK/fio.log" >&2; fail "fio $*"; }
    rm -f "$mnt/$1"*
}
shape sequential --rw=write --bs=1M --direct=1
shape small --rw=randwrite --bs=512 --direct=1 --size=4M
shape page --rw=randwrite --bs=16K --direct=1 --ioengine=libaio --iodepth=16
shape mixed --rw=randrw --bs=4K --direct=1 --ioengine=libaio --iodepth=32
shape uring --rw=randwrite --bs=16K --direct=1 --ioengine=io_uring --iodepth=16
shape buffered --rw=randrw --bs=4K
shape unaligned --rw=randwrite --bs=7777 --bs_unaligned --size=16M
shape mapped --rw=randwrite --bs=4K --ioengine=mmap --size=32M
shape durable --rw=randwrite --bs=4K --direct=1 --fdatasync=1 --size=8M
shape crowd --rw=randwrite --bs=8K --direct=1 --numjobs=8 --size=16M --offset_increment=16M --group_reporting
echo "load: fio passed"

(cd "$mnt" && stress-ng --temp-path "$mnt" --timeout "${each}s" --metrics-brief --verify \
    --hdd 2 --hdd-bytes 64M --dentry 1 --dir 1 --fallocate 1 --fallocate-bytes 64M --filename 1 \
    --link 1 --rename 2 --symlink 1 --seek 1 --utime 1 --xattr 1 --dirdeep 1 --dirmany 1 --fstat 1 \
    --fpunch 1 --copy-file 1 --copy-file-bytes 128M --iomix 1 --iomix-bytes 64M \
    --open 1 --sync-file 1 --sync-file-bytes 64M --touch 1 --flock 1) \
    >"$WORK/stress.log" 2>&1 || { cat "$WORK/stress.log" >&2; fail "stress-ng"; }
echo "load: stress-ng passed"

dbench -D "$mnt" -t "$each" 8 >"$WORK/dbench.log" 2>&1 || { tail "$WORK/dbench.log" >&2; fail dbench; }
echo "load: dbench passed: $(grep Throughput "$WORK/dbench.log")"
check_store
echo "load: passed"
