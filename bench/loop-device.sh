# shellcheck shell=bash
# One loop device over one file that was written once in full; file systems take turns on it, so that all of
# them get the very same blocks. Sourced by the scripts beside it, which set LACUNA. Needs root.
#
#   loop_make FILE SIZE         makes the file (SIZE as 8G) and the device LOOP over it, with direct I/O
#   loop_mount KIND DIR         makes a file system on it (ext4, xfs, btrfs, nvmfs, nvmfs-ALGORITHM with compression of
#                               all files by the store; nvmfs-logged, nvmfs-ALGORITHM-logged with the log device of
#                               loop_log) and mounts it; nvmfs with what is in NVMFS_OPTIONS, too, the others with
#                               LOOP_MOUNT_OPTIONS (as in a=1,b)
#   loop_log PATH[,SIZE]        names the log device: a file made of that size for each store, or, without a size, a device
#                               or file that is there, which is overwritten
#   loop_lacks KIND             says why KIND is not to be had here, if it is not
#   loop_format_store           makes a store on it, with further options of `lacuna format`
#   loop_umount DIR             unmounts what loop_mount mounted
#   loop_slow BYTES COMMAND...  runs it in a control group that reads and writes LOOP and other devices named in
#                               LOOP_OTHERS at BYTES a second each, at most, and in LOOP_IOPS operations a second, if set
#   loop_limit BYTES            makes that group, LOOP_GROUP, or changes its limits
#   loop_memory SIZE            limits the memory of this shell and of all that it starts from now on, page cache included
#   loop_remove                 gives everything back; for `trap loop_remove EXIT`, whatever happened

LOOP=
LOOP_FILE=
LOOP_DIR=
LOOP_KIND=
LOOP_OTHERS=()
LOOP_GROUP=
LOOP_MEMORY_GROUP=
LOOP_IOPS=
NVMFS_PID=
NVMFS_OPTIONS=()
# Of `lacuna format` and `lacuna mount`, for kinds that end in -logged.
NVMFS_LOG=()
LOOP_LOG_FILE=
LOOP_LOG_SIZE=
# Set before loop_mount, limits what the mount does to so many bytes a second (and LOOP_IOPS).
NVMFS_BYTES=
LOOP_MOUNT_OPTIONS=
# Set before loop_make, lets discards through to the file: for benches that count bytes and no time.
LOOP_DISCARDS=

loop_make() {
    local file=$1 size=$2
    [ ! -e "$file" ] || { echo "$0: $file: exists already" >&2; exit 1; }
    LOOP_FILE=$file
    echo "writing $file ($size)" >&2
    dd if=/dev/zero of="$file" bs=1M count="$(($(numfmt --from=iec "$size") >> 20))" oflag=direct conv=fsync \
        status=none
    LOOP=$(losetup --find --show --direct-io=on "$file")
    # Others may have left devices that take none.
    local tries
    for ((tries = 1; tries <= ${LOOP_DISCARDS:+64} + 0; tries++)); do
        [ "$(cat "/sys/block/${LOOP#/dev/}/queue/discard_max_bytes")" = 0 ] || break
        [ "$tries" -lt 64 ] || { echo "$0: $LOOP takes no discards" >&2; exit 1; }
        loop_detach
        LOOP=$(losetup --find --show --direct-io=on "$file")
    done
    # A discard would make holes in the file, and the next file system would pay for filling them.
    [ -n "$LOOP_DISCARDS" ] || echo 0 > "/sys/block/${LOOP#/dev/}/queue/discard_max_bytes"
}

# Detaches LOOP, and removes the device: that it takes no discards would outlive the file, and the kernel refuses to set it
# back. losetup of Debian 12 cannot, so LOOP_CTL_REMOVE of linux/loop.h does.
loop_detach() {
    losetup --detach "$LOOP"
    # shellcheck disable=SC2016 # of perl
    perl -e 'open(my $control, "+<", "/dev/loop-control") or exit;
        for (1 .. 20) { ioctl($control, 0x4C81, $ARGV[0] + 0) and last; select(undef, undef, undef, 0.05) }' "${LOOP#/dev/loop}"
}

loop_format_store() {
    wipefs --all --quiet "$LOOP"
    "$LACUNA" format "$LOOP" --size "$(blockdev --getsize64 "$LOOP")" --force "$@" > /dev/null
}

loop_log() {
    NVMFS_LOG=(--log-device "${1%,*}")
    [[ $1 == *,* ]] || return 0
    [ ! -e "${1%,*}" ] || { echo "$0: ${1%,*}: exists already" >&2; exit 1; }
    LOOP_LOG_FILE=${1%,*} LOOP_LOG_SIZE=${1##*,}
}

loop_mount() {
    local kind=$1 dir=$2 discard=nodiscard log=()
    [ -z "$LOOP_DISCARDS" ] || discard=discard
    mkdir -p "$dir"
    if [[ $kind == nvmfs-* && $kind == *-logged ]]; then
        [ "${#NVMFS_LOG[@]}" != 0 ] || { echo "$0: $kind needs a log device" >&2; exit 2; }
        kind=${kind%-logged} log=("${NVMFS_LOG[@]}")
        [ -z "$LOOP_LOG_FILE" ] || rm -f "$LOOP_LOG_FILE"
    fi
    case $kind in
        ext4) mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$LOOP" ;;
        xfs) mkfs.xfs -q -f -K "$LOOP" ;;
        btrfs) mkfs.btrfs -q -f -K "$LOOP" > /dev/null 2>&1 ;;
        nvmfs | nvmfs-*) loop_format_store "${log[@]}" ${log:+${LOOP_LOG_SIZE:+--log-size "$LOOP_LOG_SIZE"}} ;;
        *) echo "$0: unknown file system $kind: ext4, xfs, btrfs, nvmfs, nvmfs-ALGORITHM, *-logged" >&2; exit 2 ;;
    esac
    LOOP_KIND=${kind%%-*}
    LOOP_DIR=$dir
    case $kind in
        nvmfs) nvmfs_mount "$LOOP" "$dir" "${log[@]}" ;;
        nvmfs-*) nvmfs_mount "$LOOP" "$dir" --compress "${kind#nvmfs-}" "${log[@]}" ;;
        *) mount -t "$kind" -o "noatime,$discard${LOOP_MOUNT_OPTIONS:+,$LOOP_MOUNT_OPTIONS}" "$LOOP" "$dir" ;;
    esac
}

loop_lacks() {
    case $1 in
        nvmfs-*) "$LACUNA" mount --help | grep -qe --compress || echo "this lacuna has no mount --compress" ;;
        btrfs*) command -v mkfs.btrfs > /dev/null || echo "no mkfs.btrfs (Debian: btrfs-progs)" ;;
    esac
}

# Mounts a store with further options and waits until it stands; NVMFS_PID serves it, and closes the store on SIGTERM.
nvmfs_mount() {
    local limited=(env)
    if [ -n "$NVMFS_BYTES" ]; then
        loop_limit "$NVMFS_BYTES"
        # shellcheck disable=SC2016 # of the inner shell
        limited=(bash -c 'echo 0 > "$0/cgroup.procs"; exec "$@"' "$LOOP_GROUP")
    fi
    "${limited[@]}" "$LACUNA" mount "$1" "$2" --foreground --allow-other --fcta "${NVMFS_OPTIONS[@]}" "${@:3}" &
    NVMFS_PID=$!
    local tries
    for tries in $(seq 600); do
        if mountpoint -q "$2"; then return; fi
        kill -0 "$NVMFS_PID" 2> /dev/null || break
        sleep 0.1
    done
    echo "$0: $1: not mounted after $tries tries" >&2
    exit 1
}

nvmfs_umount() {
    kill -TERM "$NVMFS_PID"
    wait "$NVMFS_PID"
    NVMFS_PID=
}

loop_umount() {
    if [ "$LOOP_KIND" = nvmfs ]; then nvmfs_umount; else umount "$1"; fi
    LOOP_DIR=
}

# Makes LOOP_GROUP, if it is not there yet, and sets its limits.
loop_limit() {
    local bytes=$1 own device iops=${LOOP_IOPS:-}
    if [ -z "$LOOP_GROUP" ]; then
        if own=$(awk -F: '$2 ~ /(^|,)blkio(,|$)/ { print $3 }' /proc/self/cgroup) && [ -n "$own" ]; then
            LOOP_GROUP=/sys/fs/cgroup/blkio$own/lacuna-loop.$$
        elif grep -qw io /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null; then
            LOOP_GROUP=/sys/fs/cgroup/lacuna-loop.$$
        else
            echo "$0: no control group limits devices here" >&2
            exit 1
        fi
        mkdir "$LOOP_GROUP"
        # Of one hierarchy a process has one group: who moves there would leave the limit of memory.
        if [ -n "${LOOP_MEMORY_GROUP:-}" ] && [ -e "$LOOP_MEMORY_GROUP/memory.max" ]; then
            echo "$0: limits of memory and of devices at the same time need control groups of version 1" >&2
            exit 1
        fi
    fi
    for device in "$LOOP" "${LOOP_OTHERS[@]}"; do
        device=$(cat "/sys/block/${device#/dev/}/dev")
        if [ -e "$LOOP_GROUP/io.max" ]; then
            echo "$device rbps=$bytes wbps=$bytes riops=${iops:-max} wiops=${iops:-max}" > "$LOOP_GROUP/io.max"
        else
            echo "$device $bytes" > "$LOOP_GROUP/blkio.throttle.read_bps_device"
            echo "$device $bytes" > "$LOOP_GROUP/blkio.throttle.write_bps_device"
            echo "$device ${iops:-0}" > "$LOOP_GROUP/blkio.throttle.read_iops_device"
            echo "$device ${iops:-0}" > "$LOOP_GROUP/blkio.throttle.write_iops_device"
        fi
    done
}

loop_memory() {
    local bytes own
    bytes=$(numfmt --from=iec "${1%B}")
    if own=$(awk -F: '$2 == "memory" { print $3 }' /proc/self/cgroup) && [ -n "$own" ]; then
        LOOP_MEMORY_GROUP=/sys/fs/cgroup/memory${own%/}/lacuna-loop.$$
    elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null; then
        LOOP_MEMORY_GROUP=/sys/fs/cgroup/lacuna-loop-memory.$$
    else
        echo "$0: no control group limits memory here" >&2
        exit 1
    fi
    mkdir "$LOOP_MEMORY_GROUP"
    if [ -e "$LOOP_MEMORY_GROUP/memory.max" ]; then
        echo "$bytes" > "$LOOP_MEMORY_GROUP/memory.max"
    else
        echo "$bytes" > "$LOOP_MEMORY_GROUP/memory.limit_in_bytes"
    fi
    echo $$ > "$LOOP_MEMORY_GROUP/cgroup.procs"
}

loop_slow() {
    loop_limit "$1"
    shift
    bash -c 'echo 0 > "$1/cgroup.procs"; shift; exec "$@"' loop_slow "$LOOP_GROUP" "$@"
}

loop_remove() {
    if [ -n "$LOOP_DIR" ]; then
        local dir=$LOOP_DIR
        loop_umount "$dir" || umount --lazy "$dir" || true
    fi
    if [ -n "$LOOP" ]; then
        loop_detach || true
    fi
    if [ -n "$LOOP_FILE" ]; then rm -f "$LOOP_FILE"; fi
    if [ -n "$LOOP_LOG_FILE" ]; then rm -f "$LOOP_LOG_FILE"; fi
    if [ -n "$LOOP_GROUP" ]; then rmdir "$LOOP_GROUP" || true; fi
    if [ -n "$LOOP_MEMORY_GROUP" ]; then
        echo $$ > "${LOOP_MEMORY_GROUP%/*}/cgroup.procs" && rmdir "$LOOP_MEMORY_GROUP" || true
    fi
    LOOP_GROUP='' LOOP_MEMORY_GROUP=''
    LOOP='' LOOP_FILE='' LOOP_DIR=''
}
