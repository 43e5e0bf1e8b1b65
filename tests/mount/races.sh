#!/usr/bin/env bash
# Processes that open, look at and change a name while others replace and remove it: a name that is replaced is always
# there, and what was found can be used. Without the page cache a read sees all of a write or nothing; with it, as on
# ext4, it may see a part. FOR_SECONDS in all (10 by default), half of them each way.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3
build
start 256M --threads 4

cat >"$WORK/races.py" <<'PYTHON'
import errno, os, sys, time

root, seconds, cache = sys.argv[1], float(sys.argv[2]), sys.argv[3]
end = time.monotonic() + seconds


def passes(what, *errors):
    """The result; None for an error that another's doing explains."""
    try:
        return what()
    except OSError as error:
        if error.errno not in errors:
            raise
        return None


def replace():
    new = f"{root}/new{os.getpid()}"
    with open(new, "wb") as file:
        file.write(b"x" * 1000)
    os.rename(new, f"{root}/a")


def read():
    fd = os.open(f"{root}/a", os.O_RDWR)
    found = os.pread(fd, 2000, 0)
    kinds = set(found)
    assert len(found) == 1000 and kinds <= {*b"xy"}, found
    assert cache == "auto" or len(kinds) == 1, found
    os.pwrite(fd, b"y" * 1000, 0)
    os.fchmod(fd, 0o600)
    os.fsync(fd)
    os.setxattr(fd, "user.x", b"1")
    os.close(fd)


def look():
    os.stat(f"{root}/a")
    os.chmod(f"{root}/a", 0o644)
    os.setxattr(f"{root}/a", "user.y", b"2")
    os.listxattr(f"{root}/a")
    held = os.open(f"{root}/a", os.O_PATH)
    name = f"/proc/self/fd/{held}"
    os.stat(name)
    os.truncate(name, 1000)
    again = os.open(name, os.O_RDONLY)
    assert len(os.pread(again, 2000, 0)) == 1000
    os.close(again)
    os.close(held)


def make():
    def create():
        os.close(os.open(f"{root}/b", os.O_CREAT | os.O_RDWR))
    create()
    passes(lambda: os.link(f"{root}/b", f"{root}/c"), errno.EEXIST, errno.ENOENT)
    passes(lambda: os.mkdir(f"{root}/d"), errno.EEXIST)
    passes(lambda: os.mkdir(f"{root}/d/e"), errno.EEXIST, errno.ENOENT)
    passes(lambda: os.symlink("t" * 900, f"{root}/s"), errno.EEXIST)
    passes(lambda: os.readlink(f"{root}/s"), errno.ENOENT)
    passes(lambda: os.stat(f"{root}/d/e"), errno.ENOENT)


def remove():
    for name in "bcs":
        passes(lambda: os.unlink(f"{root}/{name}"), errno.ENOENT)
    passes(lambda: os.rmdir(f"{root}/d/e"), errno.ENOENT)
    passes(lambda: os.rmdir(f"{root}/d"), errno.ENOENT, errno.ENOTEMPTY)


def enumerate_all():
    with os.scandir(root) as entries:
        for entry in entries:
            passes(lambda: entry.stat(follow_symlinks=False), errno.ENOENT)


replace()
children = {}
for role in (replace, replace, read, read, look, look, make, make, remove, enumerate_all):
    pid = os.fork()
    if pid == 0:
        rounds = 0
        try:
            while time.monotonic() < end:
                role()
                rounds += 1
        except OSError as error:
            print(f"{role.__name__}, after {rounds} rounds: {error}", file=sys.stderr)
            os._exit(1)
        print(f"races: {role.__name__}: {rounds} rounds")
        sys.stdout.flush()
        os._exit(0)
    children[pid] = role
failed = 0
for pid in children:
    failed |= os.waitpid(pid, 0)[1]
sys.exit(1 if failed else 0)
PYTHON
for cache in auto none; do
    python3 "$WORK/races.py" "$mnt" "$((${FOR_SECONDS:-10} / 2))" $cache ||
        fail "with --cache=$cache, an error that no order of the operations explains"
    [ $cache = auto ] || break
    umount_store
    remount_with=(--threads 4 --cache=none)
    mount_store
done
rm -r "${mnt:?}"/*
# What was removed is freed: what is left is the root.
for _ in $(seq 50); do
    [ "$(stat -f -c '%c %d' "$mnt" | awk '{ print $1 - $2 }')" = 1 ] && break
    sleep 0.1
done
[ "$(stat -f -c '%c %d' "$mnt" | awk '{ print $1 - $2 }')" = 1 ] || fail "something was removed and not freed"
check_store
echo "races: passed"
