#!/usr/bin/env bash
# Root ends the connection between kernel and daemon while programs write, over each transport: the daemon says
# so in one line and ends, the directory is free again, and what was synced is there. A read of requests that fails ends
# one thread.
. "$(dirname "$0")/lib.sh"
need_fuse
need strace
build
control=/sys/fs/fuse/connections
mountpoint -q "$control" || mount -t fusectl none "$control" 2>/dev/null || skip "no fusectl on this machine"

# Writes until it gets an error. To the file, not to its name, which may be one beside the mount by then.
writer() {
    exec 8<>"$1"
    while dd if=/dev/zero of=/proc/self/fd/8 bs=64K count=64 conv=notrunc 2>/dev/null; do :; done
}

for transport in ${LACUNA_TRANSPORT:-fuser uring}; do
    if [ "$transport" = uring ] && ! grep -qs Y /sys/module/fuse/parameters/enable_uring; then
        switch=/sys/module/fuse/parameters/enable_uring
        [ -e "$switch" ] && why="FUSE over io_uring is off" || why="this kernel has no FUSE over io_uring"
        echo "abort: $why, its part is SKIPPED" >&2
        continue
    fi
    LACUNA_TRANSPORT=$transport
    start 256M --threads 4
    umount_store
    "$LACUNA" mount --foreground --transport "$transport" --threads 4 "$store" "$mnt" 2>"$WORK/log" &
    daemon=$!
    await "not mounted" mountpoint -q "$mnt"
    head -c 4M /dev/urandom >"$mnt/synced"
    sync "$mnt/synced"
    sum=$(sha256sum <"$mnt/synced")
    writers=()
    for number in 1 2 3 4; do
        writer "$mnt/writer$number" &
        writers+=($!)
    done
    await "nothing is written" [ -s "$mnt/writer4" ]
    connection=$(mountpoint -d "$mnt")
    echo 1 >"$control/${connection#*:}/abort"
    wait "$daemon" && fail "$transport: the daemon ends as if nothing had happened"
    wait "${writers[@]}" || true
    grep -v ': mounted on ' "$WORK/log" >"$WORK/complaints" || true
    [ "$(wc -l <"$WORK/complaints")" = 1 ] && grep -q "$mnt: not served any more: " "$WORK/complaints" ||
        { cat "$WORK/log" >&2; fail "$transport: not one clear line"; }
    mountpoint -q "$mnt" && fail "$transport: a dead mount is left"
    check_store
    mount_store
    [ "$(sha256sum <"$mnt/synced")" = "$sum" ] || fail "$transport: what was synced is lost"
    check_store
    echo "abort: $transport: $(cat "$WORK/complaints")"
    discard_work
done

# A thread that cannot read a request ends alone: the others serve on, and nothing that was written is lost.
LACUNA_TRANSPORT=fuser
start 256M
umount_store
"$LACUNA" mount --foreground --transport fuser --threads 3 --cache=writeback "$store" "$mnt" 2>"$WORK/log" &
daemon=$!
await "not mounted" mountpoint -q "$mnt"
serving() { grep -lx 'fuser-[0-9]*' /proc/"$daemon"/task/*/comm | cut -d/ -f5; }
await "not all threads serve" eval '[ "$(serving | wc -l)" = 3 ]'
exec 9>"$mnt/file"
head -c 8M /dev/urandom | tee "$WORK/file" >&9
thread=$(serving | head -n 1)
strace -qq -o /dev/null -e trace=read -e inject=read:error=ENOMEM -p "$thread" &
tracer=$!
has_gone() { ls "$mnt" >/dev/null; [ ! -e "/proc/$daemon/task/$thread" ]; }
await "the thread serves on" has_gone
wait "$tracer" || true
mountpoint -q "$mnt" || fail "a failed read has ended the mount"
grep -q "could not read one, and has ended" "$WORK/log" || fail "a thread that ended is not told of: $(cat "$WORK/log")"
echo more | tee -a "$WORK/file" >&9 || fail "open files are not served any more"
exec 9>&-
umount_store
wait "$daemon" || { cat "$WORK/log" >&2; fail "the daemon calls an unmount a failure"; }
mount_store
cmp "$WORK/file" "$mnt/file" || fail "what was written is lost"
check_store
echo "abort: passed"
