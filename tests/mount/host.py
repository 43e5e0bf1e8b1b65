#!/usr/bin/env python3
"""What host.sh has `lacuna run` start: programs that use the files of a mount that they serve themselves.

    host.py compare DIR SEED STEPS   one file in many ways beside a copy in memory
    host.py descriptors DIR          closes what it may and may not close
    host.py alone DIR                asks nothing of the threads that serve
    host.py full DIR                 fills the store, and frees it again
    host.py leave DIR HOW            writes, and ends without a sync: exit, _exit, exec, failed-exec
    host.py write DIR ACKS           writes and syncs without an end, and notes what is synced
    host.py acknowledged DIR ACKS    all of that is there
"""

import ctypes
import errno
import mmap
import os
import random
import struct
import subprocess
import sys
import threading

PAGE = 4096
PAGES = 64
DIRECT = os.O_RDWR | os.O_DIRECT


class Compared:
    """A file, what must be in it, and everything that has it open."""

    def __init__(self, path, choose):
        self.path, self.choose = path, choose
        self.bytes = bytearray(PAGE * PAGES)
        descriptor = os.open(path, DIRECT | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(descriptor, len(self.bytes))
        self.descriptors, self.maps = [descriptor], []

    def range(self):
        start = self.choose.randrange(max(len(self.bytes) - 1, 1))
        return start, min(self.choose.choice([1, 511, 512, PAGE, 3 * PAGE, 16 * PAGE]), len(self.bytes) - start)

    def any(self):
        return self.choose.choice(self.descriptors)

    def write(self):
        at, count = self.range()
        if self.choose.random() < 0.1:
            at = len(self.bytes)  # it grows
        data = self.choose.randbytes(count)
        assert os.pwrite(self.any(), data, at) == count
        self.bytes[at : at + count] = data

    def write_anew(self):
        """Through an opening that the page cache may have."""
        at, count = self.range()
        data = self.choose.randbytes(count)
        with open(self.path, "r+b") as file:
            file.seek(at)
            file.write(data)
        self.bytes[at : at + count] = data

    def append(self):
        data = self.choose.randbytes(700)
        with open(self.path, "ab") as file:
            file.write(data)
        self.bytes += data

    def write_mapped(self):
        if self.maps:
            held = self.choose.choice(self.maps)
            at = self.choose.randrange(min(len(held), len(self.bytes)) - 8)
            held[at : at + 8] = b"mapped!!"
            held.flush()
            self.bytes[at : at + 8] = b"mapped!!"

    def map(self):
        if len(self.maps) < 2:
            held = mmap.mmap(self.any(), PAGE * 8)
            self.maps.append(held)
            before = held[:]  # so that there are pages of it
            data = self.choose.randbytes(PAGE)
            assert os.pwrite(self.any(), data, 0) == PAGE
            self.bytes[:PAGE] = data
            assert held[:] == data + before[PAGE:], "a page in memory is old"
        else:
            self.maps.pop(self.choose.randrange(2)).close()

    def truncate(self):
        size = self.choose.randrange(PAGE * 16, PAGE * PAGES * 2)
        os.ftruncate(self.any(), size)
        del self.bytes[size:]
        self.bytes += bytes(size - len(self.bytes))

    def punch(self):
        at, count = self.range()
        command = ["fallocate", "--punch-hole", "--offset", str(at), "--length", str(count), self.path]
        subprocess.run(command, check=True)
        self.bytes[at : at + count] = bytes(count)

    def open(self):
        self.descriptors.append(os.open(self.path, self.choose.choice([DIRECT, DIRECT | os.O_DSYNC])))

    def open_anew(self):
        """Once nobody has it open, or mapped, nothing speaks against claims any more."""
        while self.maps:
            self.maps.pop().close()
        while self.descriptors:
            os.close(self.descriptors.pop())
        self.open()

    def close(self):
        if len(self.descriptors) > 1:
            os.close(self.descriptors.pop(self.choose.randrange(len(self.descriptors))))

    def copy_descriptor(self):
        """Over another one, which is another file from then on."""
        other = os.open(self.path + ".other", DIRECT | os.O_CREAT, 0o600)
        os.ftruncate(other, PAGE)
        assert os.pwrite(other, b"o" * PAGE, 0) == PAGE
        how = self.choose.randrange(3)
        if how == 0:
            os.dup2(self.any(), other)
            self.descriptors.append(other)
        elif how == 1:
            mine = os.dup(self.any())
            os.dup2(other, mine)
            assert os.pread(mine, PAGE, 0) == b"o" * PAGE
            os.close(mine)
            os.close(other)
        else:
            libc = ctypes.CDLL(None)
            libc.fdopen.restype = ctypes.c_void_p
            assert libc.fclose(ctypes.c_void_p(libc.fdopen(other, b"r+"))) == 0
            with open("/etc/passwd", "rb") as file:  # by the same number
                assert file.fileno() == other and os.pread(other, 4, 0) == b"root"

    def fork(self):
        at, count = self.range()
        data = self.choose.randbytes(count)
        child = os.fork()
        if child == 0:
            ok = os.pwrite(self.descriptors[0], data, at) == count
            pipes = [os.pipe() for _ in range(40)]  # also by numbers that the parent's mount has
            if os.fork() == 0:
                os._exit(0 if all(os.write(to, b"x") == 1 for _, to in pipes) else 1)
            ok = ok and os.wait()[1] == 0
            os.closerange(3, 500)
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        self.bytes[at : at + count] = data

    def sync(self):
        self.choose.choice([os.fsync, os.fdatasync])(self.any())

    def look(self):
        at, count = self.range()
        expected = bytes(self.bytes[at : at + count])
        how = self.choose.randrange(5)
        if how < 2:
            found = os.pread(self.any(), count, at)
        elif how == 2:
            with open(self.path, "rb") as file:
                file.seek(at)
                found = file.read(count)
        elif how == 3:
            command = ["tail", "--bytes", f"+{at + 1}", self.path]
            found = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout[:count]
        elif self.maps:
            held = self.choose.choice(self.maps)
            end = min(len(held), len(self.bytes))
            found, expected = held[:end], bytes(self.bytes[:end])
        else:
            return
        assert found == expected, f"{how}: {count} bytes at {at}"
        assert os.stat(self.path).st_size == os.fstat(self.any()).st_size == len(self.bytes)


def compare(directory, seed, steps):
    choose = random.Random(int(seed))
    file = Compared(os.path.join(directory, f"compared-{seed}"), choose)
    rare = [file.write_anew, file.append, file.write_mapped, file.map, file.truncate, file.punch, file.open,
            file.open_anew, file.close, file.copy_descriptor, file.fork, file.sync]
    for step in range(int(steps)):
        act = choose.choice([file.write, file.write, file.look, file.look, file.look, *rare])
        try:
            act()
        except BaseException:
            print(f"seed {seed}, step {step}: {act.__name__}", file=sys.stderr)
            raise


def descriptors(directory):
    path = os.path.join(directory, "kept")
    first = os.open(path, DIRECT | os.O_CREAT, 0o600)
    os.ftruncate(first, PAGE)
    own = {int(name) for name in os.listdir("/proc/self/fd")}
    libc = ctypes.CDLL(None)
    for close_all in [lambda: libc.closefrom(3), lambda: libc.close_range(3, 2**32 - 1, 0),
                      lambda: [libc.close(number) for number in range(3, 300)]]:
        close_all()
        descriptor = os.open(path, DIRECT)
        assert os.pwrite(descriptor, b"k" * PAGE, 0) == PAGE
        assert open(path, "rb").read(PAGE) == b"k" * PAGE
        assert os.path.ismount(directory)
    refused = 0
    for number in own - {0, 1, 2, descriptor}:
        refused += libc.dup2(1, number) == -1
    assert refused > 0 and os.path.ismount(directory)
    assert os.pread(descriptor, PAGE, 0) == b"k" * PAGE


def alone(directory):
    """Threads that serve have nothing to do while the program alone has a file open."""
    path = os.path.join(directory, "alone")
    descriptor = os.open(path, DIRECT | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, PAGE)
    own = threading.get_native_id()

    def calls_of_others():
        count = 0
        for task in os.listdir("/proc/self/task"):
            if int(task) != own:
                with open(f"/proc/self/task/{task}/io") as file:
                    count += sum(int(line.split()[1]) for line in file if line.startswith("sysc"))
        return count

    def cost():
        before = calls_of_others()
        for _ in range(1000):
            assert os.pwrite(descriptor, b"a" * PAGE, 0) == len(os.pread(descriptor, PAGE, 0)) == PAGE
            os.fdatasync(descriptor)
        return calls_of_others() - before

    for is_alone in [True, False, True]:
        other = None if is_alone else subprocess.Popen(["sleep", "60"], stdin=open(path))
        calls = cost()
        if other:
            other.kill()
            other.wait()
            while cost() > 1000:  # the kernel tells of a file's end some time later
                pass
        assert (calls < 1000) == is_alone, f"{calls} calls of the threads that serve, alone: {is_alone}"


def full(directory):
    """What does not fit is refused, by write or by sync; what is there stays, and what is removed makes space."""
    block = 1 << 20
    data = lambda number: random.Random(number).randbytes(block)

    def fill(path):
        descriptor, number = os.open(path, DIRECT | os.O_CREAT, 0o600), 0
        try:
            while True:
                written = os.pwrite(descriptor, data(number), number * block)
                assert written == block, f"{written} bytes of block {number}"
                number += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        os.fdatasync(descriptor)
        return descriptor, number

    def is_there(descriptor, count):
        for number in range(count):
            assert os.pread(descriptor, block, number * block) == data(number), f"block {number}"

    paths = [os.path.join(directory, name) for name in ("full", "fuller")]
    first, count = fill(paths[0])
    is_there(first, count)
    # Half of it goes, by each of two ways, and others find the space; what others write is in the way then.
    left = count // 2
    os.ftruncate(first, left * block)
    second, more = fill(paths[1])
    assert more > (count - left) * 0.8, f"{more} blocks of {count - left} that were freed"
    is_there(first, left)
    is_there(second, more)
    os.close(second)
    os.unlink(paths[1])
    with open(paths[1], "wb") as file:
        file.write(data(0))
    number = left
    try:
        while True:
            os.pwrite(first, data(number), number * block)
            number += 1
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    assert number - left > more * 0.8, f"{number - left} blocks of {more} that were freed"
    is_there(first, number)
    os.close(first)
    for path in paths:
        os.unlink(path)
    print(f"full with {count} blocks")


def leave(directory, how):
    path = os.path.join(directory, "left-" + how)
    descriptor = os.open(path, DIRECT | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, PAGE)
    os.pwrite(descriptor, how.encode().ljust(PAGE, b"."), 0)
    with open(path + "-cached", "w") as file:
        file.write(how)
    mapped = os.open(path + "-mapped", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(mapped, PAGE)
    mmap.mmap(mapped, PAGE)[: len(how)] = how.encode()
    if how == "failed-exec":
        try:
            os.execv("/no/such/program", ["program"])
        except FileNotFoundError:
            pass
        assert os.pread(descriptor, PAGE, 0).startswith(how.encode())
        with open(path + "-after", "w") as file:
            file.write(how)
    if how == "exec":
        os.execv("/bin/cat", ["cat", path + "-cached"])
    if how == "_exit":
        os._exit(0)


def write(directory, acks):
    def writer(me):
        descriptor = os.open(os.path.join(directory, f"w{me}"), DIRECT | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, PAGES * PAGE)
        number = 0
        while True:
            number += 1
            page = number % PAGES
            os.pwrite(descriptor, struct.pack("<QQ", number, me) * (PAGE // 16), page * PAGE)
            os.fdatasync(descriptor)
            with open(f"{acks}-{me}", "ab", buffering=0) as file:
                file.write(struct.pack("<Q", number))

    def others(me):
        number = 0
        while True:
            number += 1
            with open(os.path.join(directory, f"o{me}-{number % 20}"), "w") as file:
                file.write("x" * number)
            os.listdir(directory)

    for me in range(3):
        threading.Thread(target=writer, args=(me,)).start()
        threading.Thread(target=others, args=(me,)).start()


def acknowledged(directory, acks):
    checked = 0
    for me in range(3):
        notes = open(f"{acks}-{me}", "rb").read()
        last = len(notes) // 8
        data = open(os.path.join(directory, f"w{me}"), "rb").read()
        for number in range(max(1, last - PAGES + 2), last + 1):
            page = number % PAGES
            found = struct.unpack_from("<QQ", data, page * PAGE)
            assert found[0] >= number and found[0] % PAGES == page and found[1] == me, f"{me}: {number} is lost: {found}"
            checked += 1
    assert checked > 0, "nothing was acknowledged"
    print(f"{checked} acknowledged pages are all there")


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](*sys.argv[2:])
