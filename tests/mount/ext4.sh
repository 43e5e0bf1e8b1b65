#!/usr/bin/env bash
# Files behave as on ext4 where programs notice: what is read often comes from the kernel's cache and is never old, times
# of access are kept as asked for, set-group-id goes when strangers change a file, file handles outlive the mount.
# xfstests has more of this: tests/xfstests/run.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3 setpriv
build
start 256M --threads 4

reads() { metric reads_total; }
read_in_fours() {
    head -c 100000 /dev/urandom >"$mnt/small"
    local before=$(reads)
    python3 -c '
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
while os.read(fd, 4): pass
' "$mnt/small"
    echo $(($(reads) - before))
}
requests=$(read_in_fours)
[ "$requests" -le 10 ] || fail "25,000 reads of 4 bytes are $requests requests"

cat >"$WORK/coherence.py" <<'PYTHON'
"""Asynchronous direct writes beside a reader that had the file open before: it never sees what was there before."""
import ctypes, mmap, os, platform, sys, threading

if platform.machine() != "x86_64":
    print("not tested: system calls have other numbers here", file=sys.stderr)
    sys.exit(0)
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = 206, 208, 209
PWRITE = 1
BYTES = 65536
libc = ctypes.CDLL(None, use_errno=True)


class Control(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_int32),
                ("opcode", ctypes.c_uint16), ("reqprio", ctypes.c_int16), ("fd", ctypes.c_uint32),
                ("buf", ctypes.c_uint64), ("nbytes", ctypes.c_uint64), ("offset", ctypes.c_int64),
                ("reserved2", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("resfd", ctypes.c_uint32)]


def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


path, rounds = sys.argv[1], int(sys.argv[2])
with open(path, "wb") as file:
    file.write(bytes(BYTES))
cached = os.open(path, os.O_RDONLY)
direct = os.open(path, os.O_RDWR | os.O_DIRECT)
context = ctypes.c_uint64()
call(IO_SETUP, 8, ctypes.byref(context))
memory = mmap.mmap(-1, BYTES)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
events = (ctypes.c_uint64 * 4)()
end = threading.Event()


def read_on():
    while not end.is_set():
        os.pread(cached, BYTES, 0)


readers = [threading.Thread(target=read_on) for _ in range(2)]
for reader in readers:
    reader.start()
try:
    for at in range(rounds):
        byte = at % 255 + 1
        memory[:] = bytes([byte]) * BYTES
        control = Control(opcode=PWRITE, fd=direct, buf=address, nbytes=BYTES)
        pointer = ctypes.pointer(control)
        call(IO_SUBMIT, context, ctypes.c_long(1), ctypes.byref(pointer))
        call(IO_GETEVENTS, context, ctypes.c_long(1), ctypes.c_long(1), events, None)
        assert ctypes.c_int64(events[2]).value == BYTES, events[2]
        new = os.open(path, os.O_RDONLY)
        for who, fd in (("a program that had the file open", cached), ("one that opens it", new)):
            found = set(os.pread(fd, BYTES, 0))
            if found != {byte}:
                end.set()
                sys.exit(f"round {at}: {who} reads {found} after {byte} was written")
        os.close(new)
finally:
    end.set()
    for reader in readers:
        reader.join()
for fd in (direct, cached):
    os.close(fd)
with open(path, "rb") as file:
    assert set(file.read()) == {byte}, "pages from beside the writes stay after all were closed"
PYTHON
python3 "$WORK/coherence.py" "$mnt/mixed" 2000 || fail "what is read beside direct writes is old"

# Whole pages, which the kernel has from the write: a reader's first read must reach the mount all the same.
accessed() { stat -c %.9X "$mnt/$1"; }
touched() {
    local before=$(accessed "$1")
    sleep 0.05
    cat "$mnt/$1" >/dev/null
    [ "$(accessed "$1")" != "$before" ] && echo yes || echo no
}
check_times() {
    local expected=$1
    head -c 8192 /dev/urandom >"$mnt/pages"
    sleep 0.05
    local seen="$(touched pages) $(touched pages)"
    echo more >>"$mnt/pages"
    sleep 0.05
    seen="$seen $(touched pages) $(touched pages)"
    [ "$seen" = "$expected" ] || fail "times of access with '${remount_with[*]}': $seen, not $expected"
}
check_times "yes no yes no"
for mode in noatime:"no no no no" strictatime:"yes yes yes yes" relatime:"yes no yes no"; do
    umount_store
    # As a line of fstab has it.
    ln -sf "$LACUNA" "$WORK/mount.lacuna"
    "$WORK/mount.lacuna" "$store" "$mnt" -o "${mode%%:*}"
    check_times "${mode#*:}"
done
umount_store
mount_store

chmod 755 "$WORK" # strangers get to the mount
# By who is not in the group, whether the group may execute or not.
for bits in 2666 2676 6666; do
    for how in "" --keep-size "--punch-hole" "--zero-range"; do
        head -c 8192 /dev/urandom >"$mnt/shared"
        chmod "$bits" "$mnt/shared"
        setpriv --reuid 65534 --regid 65534 --clear-groups \
            fallocate $how --offset 0 --length 4096 "$mnt/shared" || fail "fallocate $how"
        after=$(stat -c %a "$mnt/shared")
        [ "$after" = "${bits:1}" ] || fail "mode $bits is $after after fallocate $how by a stranger"
    done
done
chgrp 65534 "$mnt/shared"
chmod 2666 "$mnt/shared"
setpriv --reuid 65534 --regid 65534 --clear-groups fallocate --length 4096 "$mnt/shared"
[ "$(stat -c %a "$mnt/shared")" = 2666 ] || fail "a member of the group takes set-group-id away"

cat >"$WORK/handles.py" <<'PYTHON'
"""handles.py save FILE PATH... | handles.py open FILE DIR: handles of files and directories, with their content."""
import ctypes, errno, json, os, sys

libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]


def content(fd):
    return os.listdir(fd) if os.path.isdir(f"/proc/self/fd/{fd}") else os.read(fd, 100).decode()


if sys.argv[1] == "save":
    saved = []
    for path in sys.argv[3:]:
        handle, mount = Handle(bytes=128), ctypes.c_int()
        if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) < 0:
            sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}")
        fd = os.open(path, os.O_RDONLY)
        saved.append((path, handle.type, list(handle.handle[:handle.bytes]), content(fd)))
        os.close(fd)
    with open(sys.argv[2], "w") as file:
        json.dump(saved, file)
else:
    root = os.open(sys.argv[3], os.O_RDONLY)
    for path, kind, bytes_, expected in json.load(open(sys.argv[2])):
        handle = Handle(bytes=len(bytes_), type=kind)
        handle.handle[:len(bytes_)] = bytes_
        fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
        error = ctypes.get_errno()
        if "gone" in path:
            assert fd < 0 and error == errno.ESTALE, f"{path}: removed, and can be opened: {fd} {error}"
            continue
        assert fd >= 0, f"{path}: {os.strerror(error)}"
        found = content(fd)
        assert found == expected, f"{path}: {found}, not {expected}"
PYTHON
mkdir -p "$mnt/d/e"
echo one >"$mnt/d/e/one"
echo two >"$mnt/two"
echo gone >"$mnt/gone"
python3 "$WORK/handles.py" save "$WORK/handles" "$mnt/d/e/one" "$mnt/two" "$mnt/d/e" "$mnt/gone" || fail "no handles"
rm "$mnt/gone"
# Its number may be another's by then.
echo new >"$mnt/new"
umount_store
mount_store
mv "$mnt/two" "$mnt/d/three"
python3 "$WORK/handles.py" open "$WORK/handles" "$mnt" || fail "handles do not outlive the mount"
umount_store

remount_with=(--threads 4 --cache=none)
mount_store
requests=$(read_in_fours)
[ "$requests" -ge 25000 ] || fail "with --cache=none 25,000 reads are $requests requests"
python3 "$WORK/coherence.py" "$mnt/mixed" 200 || fail "what is read beside direct writes is old, without a cache"
check_store
echo "ext4: passed"
