#!/usr/bin/env python3
"""Does to files what it is told, line by line, and answers each line with one: a result, "ok", or the name of an error.

    open NAME PATH FLAGS      FLAGS as rdwr,creat,direct; NAME stands for the open file from then on
    write NAME OFFSET LENGTH CHARACTER      at the end of the file where OFFSET is `end`
    read NAME OFFSET LENGTH                 runs of characters, `0` for NUL: "A8192 08192"
    map NAME OFFSET LENGTH CHARACTER        writes through a shared mapping, which stays
    fsync, fdatasync, msync, syncfs, range, close NAME      range: sync_file_range
    truncate NAME LENGTH; punch NAME OFFSET LENGTH; data, hole NAME OFFSET
    copy NAME OFFSET NAME OFFSET LENGTH     copy_file_range
    atomic NAME                             DirectFS's ioctl
    size, mtime, blocks NAME; sync
"""

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_uint]
KEEP_SIZE_AND_PUNCH = 1 | 2
# SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER
WRITE_AND_WAIT = 7
ATOMIC_WRITE_SET = 0x40049502
files = {}
maps = {}


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def buffer(length):
    """Memory that begins with a page, as O_DIRECT may want it."""
    return mmap.mmap(-1, max(length, 1))


def flags(words):
    names = {"rd": os.O_RDONLY, "wr": os.O_WRONLY}
    return sum({names.get(word, getattr(os, "O_" + word.upper(), None)) for word in words.split(",")})


def do_write(file, offset, length, character):
    data = buffer(length)
    data[:] = character.encode() * length
    if offset == "end":
        return os.write(file, memoryview(data)[:length])
    return os.pwritev(file, [memoryview(data)[:length]], int(offset))


def do_read(file, offset, length):
    data = buffer(length)
    count = os.preadv(file, [memoryview(data)[:length]], offset)
    runs = ((chr(byte) if byte else "0") + str(len(list(run))) for byte, run in itertools.groupby(data[:count]))
    return " ".join(runs) or "nothing"


def do_map(name, offset, length, character):
    maps[name] = mmap.mmap(files[name], offset + length)
    maps[name][offset:] = character.encode() * length


def do(command, words):
    if command == "open":
        files[words[0]] = os.open(words[1], flags(words[2]), 0o644)
        return "ok"
    if command == "sync":
        return os.sync() or "ok"
    name, file = words[0], files[words[0]]
    numbers = [int(word) for word in words[1:] if word.isdigit()]
    if command == "write":
        return do_write(file, words[1], int(words[2]), words[3])
    if command == "read":
        return do_read(file, *numbers)
    if command == "map":
        do_map(name, *numbers, words[3])
    elif command == "msync":
        maps[name].flush()
    elif command in ("fsync", "fdatasync"):
        getattr(os, command)(file)
    elif command == "syncfs":
        checked(libc.syncfs(file))
    elif command == "range":
        checked(libc.sync_file_range(file, 0, 0, WRITE_AND_WAIT))
    elif command == "close":
        if name in maps:
            maps.pop(name).close()
        os.close(files.pop(name))
    elif command == "truncate":
        os.ftruncate(file, *numbers)
    elif command == "punch":
        checked(libc.fallocate(file, KEEP_SIZE_AND_PUNCH, *numbers))
    elif command in ("data", "hole"):
        return os.lseek(file, numbers[0], getattr(os, "SEEK_" + command.upper()))
    elif command == "copy":
        return os.copy_file_range(file, files[words[2]], int(words[4]), int(words[1]), int(words[3]))
    elif command == "atomic":
        fcntl.ioctl(file, ATOMIC_WRITE_SET, struct.pack("I", 1))
    elif command in ("size", "mtime", "blocks"):
        return getattr(os.fstat(file), {"mtime": "st_mtime_ns"}.get(command, "st_" + command))
    else:
        return "unknown"
    return "ok"


for line in sys.stdin:
    command, *words = line.split()
    try:
        print(do(command, words), flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
