#!/usr/bin/env python3
"""Writes pages of a database, 8 KiB each, from memory that is not in the process's page tables.

    pages.py tear FILE SHIFT [direct]     writes page 64, whose second page of memory is missing: prints "fault" when
                                          the kernel asks for it, waits for a line, and hands it out
    pages.py count FILE SHIFT PAGES       writes so many pages from shared memory that another process has filled, as
                                          processes of PostgreSQL do

SHIFT is how far the page lies behind the start of a page of memory.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import threading

PAGE = 4096
BLOCK = 8192
TORN_BLOCK = 64
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.pwrite.restype = ctypes.c_ssize_t
libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]

# linux/userfaultfd.h; the number of the system call is x86-64's.
SYS_USERFAULTFD = 323
UFFD_API = 0xAA
UFFDIO_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
UFFDIO_COPY = 0xC028AA03
UFFDIO_REGISTER_MODE_MISSING = 1


def memory(length, flags):
    start = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags | mmap.MAP_ANONYMOUS, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return start


def write(file, start, offset):
    written = libc.pwrite(file, start, BLOCK, offset)
    if written < 0:
        raise OSError(ctypes.get_errno(), "pwrite")
    return written


def tear(file, shift):
    start = memory(4 * PAGE, mmap.MAP_PRIVATE)
    faults = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if faults < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(faults, UFFDIO_API, bytearray(struct.pack("QQQ", UFFD_API, 0, 0)))
    for page in (0, 2, 3):
        ctypes.memset(start + page * PAGE, ord("N"), PAGE)
    missing = start + PAGE
    request = struct.pack("QQQQ", missing, PAGE, UFFDIO_REGISTER_MODE_MISSING, 0)
    fcntl.ioctl(faults, UFFDIO_REGISTER, bytearray(request))

    def hand_out():
        os.read(faults, 32)
        print("fault", flush=True)
        sys.stdin.readline()
        page = memory(PAGE, mmap.MAP_PRIVATE)
        ctypes.memset(page, ord("N"), PAGE)
        fcntl.ioctl(faults, UFFDIO_COPY, bytearray(struct.pack("QQQQq", missing, page, PAGE, 0, 0)))

    threading.Thread(target=hand_out, daemon=True).start()
    print(write(file, start + shift, TORN_BLOCK * BLOCK), flush=True)


def count(file, shift, pages):
    start = memory(pages * BLOCK + PAGE, mmap.MAP_SHARED)
    ctypes.memset(start, ord("S"), pages * BLOCK + PAGE)
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    for page in range(pages):
        assert write(file, start + shift + page * BLOCK, page * BLOCK) == BLOCK


def main():
    mode, path, shift = sys.argv[1], sys.argv[2], int(sys.argv[3])
    flags = os.O_RDWR | (os.O_DIRECT if sys.argv[4:] == ["direct"] else 0)
    file = os.open(path, flags)
    if mode == "tear":
        tear(file, shift)
    else:
        count(file, shift, int(sys.argv[4]))


main()
