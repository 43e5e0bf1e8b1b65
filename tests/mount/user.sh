#!/usr/bin/env bash
# A store and a mount of a user who is not root, the mount made and unmade by the set-user-id program of the FUSE
# package. SIGTERM ends it; one in use is detached and served on, and what was written by then survives a kill.
. "$(dirname "$0")/lib.sh"
need_fuse
need fusermount3 runuser unshare
build
in_own_namespace "$@" # there /dev/fuse is for everybody, as on most machines
WORK=$(mktemp -d -t lacuna-mount.XXXXXX)
own_work=1 store=$WORK/store mnt=$WORK/mnt
mkdir "$mnt"
chmod 755 "$WORK"
chown nobody "$WORK" "$mnt"
mknod --mode 666 "$WORK/fuse" c 10 229
mount --bind "$WORK/fuse" /dev/fuse
trap 'code=$?; umount -l /dev/fuse; finish "$code"' EXIT
cp "$LACUNA" "$WORK/lacuna" # where it was built others may not look

as_user() { (cd / && exec runuser -u nobody -- "$@"); }
# Root cannot look into what is another's.
is_mounted() { grep -qF " $mnt " /proc/self/mountinfo; }
is_gone() { ! is_mounted; }
has_ended() { ! kill -0 "$pid" 2>/dev/null; }
mount_as_user() {
    as_user "$WORK/lacuna" mount "$store" "$mnt"
    is_mounted || fail "nothing is mounted"
    pid=$(daemon_pid)
}

as_user "$WORK/lacuna" format --size 64M "$store" >/dev/null
# Where it is not for everybody, that is said, once.
chmod 600 "$WORK/fuse"
as_user "$WORK/lacuna" mount "$store" "$mnt" 2>"$WORK/error" && fail "mounted without /dev/fuse"
[ "$(grep -o '/dev/fuse' "$WORK/error" | wc -l)" = 1 ] && grep -q '/dev/fuse: Permission denied' "$WORK/error" || fail "a mount without /dev/fuse says: $(cat "$WORK/error")"
chmod 666 "$WORK/fuse"
mount_as_user
as_user sh -c "echo idle >'$mnt/idle'"
kill -TERM "$pid"
await "SIGTERM does not unmount what is idle" is_gone
await "SIGTERM does not end the process" has_ended
"$LACUNA" check "$store"

mount_as_user
mkfifo --mode 666 "$WORK/written" "$WORK/go"
as_user sh -c "exec 3>'$mnt/busy'; echo busy >&3; echo >'$WORK/written'; read -r x <'$WORK/go'" >/dev/null 2>&1 &
read -r <"$WORK/written"
kill -TERM "$pid"
await "SIGTERM does not detach what is in use" is_gone
sleep 1 # nothing else has synced it by then
has_ended && fail "a mount in use is not served any more"
kill -9 "$pid"
await "a killed process lives on" has_ended
echo >"$WORK/go"
"$LACUNA" check "$store"
mount_as_user
for name in idle busy; do
    [ "$(as_user cat "$mnt/$name")" = "$name" ] || fail "$name is lost"
done
"$LACUNA" umount "$mnt"
"$LACUNA" check "$store"

# A busy unmount names the way that works.
mount_as_user
as_user sh -c "exec 3>'$mnt/busy'; echo >'$WORK/written'; read -r x <'$WORK/go'" >/dev/null 2>&1 &
read -r <"$WORK/written"
as_user "$WORK/lacuna" umount "$mnt" 2>"$WORK/error" && fail "unmounted while in use"
grep -q "in use by a program (see --lazy)" "$WORK/error" || fail "a busy unmount says: $(cat "$WORK/error")"
as_user "$WORK/lacuna" umount --lazy "$mnt"
echo >"$WORK/go"
await "a lazy unmount does not end the process" has_ended
"$LACUNA" check "$store"

# Of a mount whose process is another user's, that is said, and not that there is nothing.
"$LACUNA" mount --allow-other "$store" "$mnt"
for command in info check ls quota; do
    as_user "$WORK/lacuna" $command "$mnt" 2>"$WORK/error" && fail "$command of another's mount"
    grep -qF "$mnt: $store is mounted there, and its process does not listen to this user and session" "$WORK/error" ||
        fail "$command of another's mount says: $(cat "$WORK/error")"
done
"$LACUNA" umount "$mnt"

# A mount that cannot lock the names of the sockets at its end leaves its two. Nobody takes them for a process's.
mkdir -p /run/lacuna
mount -t tmpfs -o mode=755 none /run/lacuna # that of others is not locked
sockets() { find /run/lacuna -name '*.sock' | wc -l; }
"$LACUNA" mount "$store" "$mnt"
exec 8>/run/lacuna/lock
flock 8
pid=$(daemon_pid)
"$LACUNA" umount "$mnt"
is_ended() { ! kill -0 "$pid" 2>/dev/null; }
await "the process of the mount does not end" is_ended # some time after its store is closed
exec 8>&-
[ "$(sockets)" = 2 ] || fail "$(sockets) names of sockets are left, not 2"
"$LACUNA" info "$store" | grep -q 'no tables' || fail "info takes a name that was left for a mount"
for name in "$store" "$mnt"; do
    "$LACUNA" umount "$name" 2>"$WORK/error" && fail "unmounted what was not mounted"
    grep -qF "$name: no Lacuna file system is mounted there" "$WORK/error" || fail "umount says: $(cat "$WORK/error")"
done
"$LACUNA" mount "$store" "$mnt"
for name in "$store" "$mnt"; do
    "$LACUNA" info "$name" | grep -q 'mounted over' || fail "the next mount does not answer by the name $name"
done
"$LACUNA" umount "$mnt"
has_no_sockets() { [ "$(sockets)" = 0 ]; }
await "the next mount leaves names of sockets" has_no_sockets
umount /run/lacuna

# Who asks does not hang in the kernel either if that process took the question and gives no answer.
if command -v strace >/dev/null; then
    "$LACUNA" mount --allow-other --transport fuser --threads 1 "$store" "$mnt"
    pid=$(daemon_pid)
    thread=$(grep -lx 'fuser-0' /proc/"$pid"/task/*/comm | cut -d/ -f5)
    strace -qq -o /dev/null -e trace=writev -e inject=writev:delay_enter=600000000 -p "$thread" &
    tracer=$!
    is_traced() { grep -qE '^TracerPid:[[:space:]]*[1-9]' "/proc/$pid/task/$thread/status"; }
    await "the mount is not traced" is_traced
    as_user "$WORK/lacuna" info "$mnt" 2>"$WORK/error" &
    asker=$!
    has_given_up() { ! kill -0 "$asker" 2>/dev/null; }
    await "who asks a mount that gives no answer does not end" has_given_up
    wait "$asker" && fail "a mount that gives no answer has answered"
    grep -qF "$mnt: its owner does not answer" "$WORK/error" || fail "no answer: $(cat "$WORK/error")"
    kill "$tracer"
    wait "$tracer" || true
    "$LACUNA" umount "$mnt"
fi

# Nobody serves a mount any more whose threads all failed to read a request; it ends.
if [ -w /sys/fs/fuse/connections ] && command -v strace >/dev/null; then
    as_user "$WORK/lacuna" mount --transport fuser --threads 2 "$store" "$mnt"
    pid=$(daemon_pid)
    as_user sh -c "for i in 1 2 3 4 5 6 7 8 9; do echo x >'$mnt/x'; done"
    threads=$(grep -lx 'fuser-[0-9]*' /proc/"$pid"/task/*/comm | cut -d/ -f5)
    strace -qq -o /dev/null -e trace=read -e inject=read:error=ENOMEM $(printf -- '-p %s ' $threads) &
    tracer=$!
    for _ in 1 2 3 4; do
        as_user timeout -s KILL 5 ls "$mnt" >/dev/null 2>&1 || true
    done
    await "a mount that nobody serves does not end" has_ended
    wait "$tracer" || true
    is_mounted && fail "a mount that nobody serves is left"
    "$LACUNA" check "$store"
fi
echo "user: passed"
