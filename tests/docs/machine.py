"""A machine like a fresh Debian 12, for tests/docs/run.

A root file system made by mmdebstrap, with systemd as its first process, in namespaces of its own: processes, mounts,
network, host name. What it shares with the machine below is the kernel, and one loop device. Whatever it mounts ends
with its first process, and what it writes is in memory. Its own root is mounted in the caller's mount namespace, which
should therefore end with the caller.

It has no network. The packages that documents install are downloaded when the root file system is made, and lie where
apt-get looks first.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import time
import urllib.request

SUITE = "bookworm"
# What every fresh Debian 12 has beyond the required packages, and documents rely on.
INCLUDED = "systemd-sysv,dbus,kmod,udev,procps,ca-certificates"
BOOT_SECONDS_MAX = 120

# Runs in the new namespaces, in the new root directory: $1 is the name of the loop device, $2 the by-id name of the
# same. /sys is read-only, as is /proc/sys, because the kernel is shared; so udev does not start. The parameters of the
# module fuse are a copy: a document may change them.
BOOT = r"""
set -eu
mount --make-rprivate /
mount --bind . .
cd "$PWD"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
if [ -d sys/module/fuse/parameters ]; then
    mount -t tmpfs tmpfs sys/module/fuse/parameters
    echo N > sys/module/fuse/parameters/enable_uring
fi
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir -p dev/pts dev/shm dev/disk/by-id
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
node() { mknod -m "$2" "dev/$1" c "$3" "$4"; }
node null 666 1 3; node zero 666 1 5; node full 666 1 7; node random 666 1 8; node urandom 666 1 9
node tty 666 5 0; node fuse 666 10 229; node console 600 1 3
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mknod -m 660 "dev/$1" b 7 "${1#loop}"
ln -s "../../$1" "dev/disk/by-id/$2"
hostname "$(cat etc/hostname)"
pivot_root . .
umount -l .
# As systemd does where it is not in a container: services that have a mount namespace see what is mounted later.
mount --make-rshared /
exec env -i container=lacuna-docs PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=journal
"""


def run(*words, **options):
    return subprocess.run(words, check=True, **options)


def make_base(base, packages):
    """Makes a root file system, unless the one that is there has the same packages."""
    wanted = f"{SUITE} {INCLUDED} {' '.join(packages)}\n"
    stamp = base.with_suffix(".packages")
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    if base.exists():
        shutil.rmtree(base)
    base.parent.mkdir(parents=True, exist_ok=True)
    download = "chroot \"$1\" apt-get install --quiet=2 --yes --install-recommends --download-only " + shlex.join(packages)
    hooks = [f"--customize-hook={download}"] if packages else []
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", "--skip=cleanup/apt", *hooks,
        SUITE, str(base))
    stamp.write_text(wanted)


def has_mirror():
    try:
        with urllib.request.urlopen(f"http://deb.debian.org/debian/dists/{SUITE}/InRelease", timeout=20):
            return True
    except OSError:
        return False


def cgroup_of_machines():
    """A cgroup in the second version's hierarchy, wherever that is mounted."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return pathlib.Path(where) / f"lacuna-docs-{os.getpid()}"
    raise RuntimeError("no cgroup2 file system is mounted")


class Machine:
    """One machine, from its first boot until `close`."""

    def __init__(self, base, work, disk_bytes, disk_name):
        run("mount", "-t", "tmpfs", "tmpfs", work)
        self.root, written, scratch = work / "root", work / "written", work / "scratch"
        for directory in [self.root, written, scratch]:
            directory.mkdir()
        layers = f"lowerdir={base},upperdir={written},workdir={scratch}"
        run("mount", "-t", "overlay", "-o", layers, "overlay", self.root)
        self.disk_name = disk_name
        self.cgroup = cgroup_of_machines()
        self.init = None
        (self.root / "etc/hostname").write_text("debian\n")
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 debian\n")
        # Packages are unpacked faster without a sync for each file.
        (self.root / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
        # Nobody logs in.
        for unit in ["console-getty.service", "getty@.service", "container-getty@.service"]:
            (self.root / "etc/systemd/system" / unit).symlink_to("/dev/null")
        disk = work / "disk"
        with open(disk, "wb") as file:
            file.truncate(disk_bytes)
        shown = run("losetup", "--find", "--show", disk, capture_output=True, text=True).stdout
        self.loop = pathlib.Path(shown.strip())
        try:
            self.boot()
        except BaseException:
            self.close()
            raise

    def boot(self):
        self.cgroup.mkdir(exist_ok=True)

        def enter():
            (self.cgroup / "cgroup.procs").write_text(str(os.getpid()))

        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup"]
        self.unshare = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", BOOT, "boot", self.loop.name, self.disk_name],
            cwd=self.root, stdin=subprocess.DEVNULL, preexec_fn=enter, start_new_session=True)
        deadline = time.monotonic() + BOOT_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.unshare.poll() is not None:
                raise RuntimeError("the machine's first process ended at once")
            children = pathlib.Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text().split()
            if children and "init" in pathlib.Path(f"/proc/{children[0]}/cmdline").read_text():
                self.init = children[0]
                # It says "degraded" with exit code 1 where a unit of Debian's own failed.
                state = subprocess.run([*self.inside(), "systemctl", "is-system-running"], capture_output=True, text=True)
                if state.stdout.strip() in ["running", "degraded"]:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the machine has not booted within {BOOT_SECONDS_MAX} s")

    def inside(self):
        """The words in front of a command that runs in the machine, with an environment like that of a login."""
        return ["nsenter", "--target", self.init, "--all", "--root", "--wd", "env", "-i", "HOME=/root", "USER=root",
                "LOGNAME=root", "TERM=dumb", "LANG=C.UTF-8",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]

    def wait_down(self):
        """Waits until the machine, which was told to reboot, is down."""
        self.unshare.wait(timeout=300)

    def close(self):
        if self.unshare.poll() is None:
            self.unshare.kill()
            self.unshare.wait()
        subprocess.run(["losetup", "--detach", self.loop])
        run("umount", "--lazy", self.root)
        run("umount", "--lazy", self.root.parent)
        # Deepest first. The processes of it are dead, but may not be gone yet.
        for _ in range(100):
            groups = sorted(self.cgroup.rglob("*/"), key=lambda path: len(path.parts), reverse=True)
            try:
                for group in [path for path in groups if path.is_dir()] + [self.cgroup]:
                    group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.1)
