#!/usr/bin/env bash
# pjdfstest: the POSIX file system test suite. No failure is accepted, and no skip but these:
#   erofs_*         they remount by themselves; smoke.sh shows EROFS on a mount of its own
#   link_count_max  for FUSE, pathconf knows no LINK_MAX that could be reached
. "$(dirname "$0")/lib.sh"
need_fuse
need pjdfstest
build
# Paths of sockets must be short.
TMPDIR=/tmp
start 512M --threads 4 --dev --suid

cat >"$WORK/pjdfstest.toml" <<'TOML'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.01
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
TOML
mkdir "$mnt/tests" "$WORK/secondary"
chmod 777 "$mnt/tests" "$WORK"
pjdfstest -c "$WORK/pjdfstest.toml" -p "$mnt/tests" -s "${SECONDARY:-/dev/shm}" >"$WORK/pjdfstest.log" 2>&1 || {
    grep -i -B1 -A4 'fail' "$WORK/pjdfstest.log" >&2 || tail -40 "$WORK/pjdfstest.log" >&2
    fail "pjdfstest: see $WORK/pjdfstest.log"
}
tail -1 "$WORK/pjdfstest.log"
if grep 'skipped$' "$WORK/pjdfstest.log" | grep -Ev '::erofs_|link::link_count_max'; then
    fail "skips that nobody explained"
fi
check_store
echo "posix: passed"
