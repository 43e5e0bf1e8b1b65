#!/usr/bin/env bash
# Options of mount(8) about devices, set-user-id bits and programs; who may speak with the process that serves a
# mount, and what that process keeps of its caller; names that a terminal would obey; dead mounts.
. "$(dirname "$0")/lib.sh"
need_fuse
need unshare findmnt flock perl setpriv python3
build
in_own_namespace "$@" # mount(8) looks for its helpers in /sbin alone
start 128M --threads 4
umount_store
mkdir "$WORK/sbin"
cp "$LACUNA" "$WORK/lacuna"
ln -s "$WORK/lacuna" "$WORK/sbin/mount.lacuna"
ln -s "$WORK/lacuna" "$WORK/sbin/mount.fuse.lacuna"
mount --bind "$WORK/sbin" "$(realpath /sbin)"
trap 'code=$?; umount -l "$(realpath /sbin)"; finish $code' EXIT

nobody=64987 # nobody else uses it
as_nobody() {
    (cd / && exec env -u XDG_RUNTIME_DIR setpriv --reuid "$nobody" --regid "$nobody" --clear-groups -- "$@")
}

# The protecting options of the mount, in the kernel's words.
protection() { findmnt -no OPTIONS "$mnt" | tr , '\n' | grep -xE 'ro|nosuid|nodev|noexec' | tr '\n' ' ' || true; }
expect() {
    [ "$(protection)" = "$2" ] || fail "$1: '$(protection)' instead of '$2'"
}
while read -r options expected; do
    expected=${expected:+$expected }
    mount -t lacuna -o "threads=4,$options" "$store" "$mnt" || fail "mount -o $options"
    expect "$options" "$expected"
    umount_store
done <<'TABLE'
defaults
suid,dev,exec
nosuid nosuid
suid,nosuid nosuid
nosuid,suid
nodev,nosuid,noexec nosuid nodev noexec
dev,nodev,suid,exec,noexec nodev noexec
noexec,exec,nodev,dev
ro,rw,nosuid nosuid
rw,ro ro
defaults,nofail,_netdev,discard,lazytime,acl,user_xattr,noatime,x-systemd.automount,nodev nodev
TABLE
"$LACUNA" mount "$store" "$mnt"
expect "without mount(8)" "nosuid nodev "
umount_store
# Where nobody else is let in, root still is when it looks at files with somebody else's rights, as an NFS server does.
"$LACUNA" mount --transport fuser "$store" "$mnt"
chmod 755 "$WORK" "$mnt"
echo for all >"$mnt/file"
python3 - "$mnt/file" "$nobody" <<'PYTHON' || fail "root is refused with another's rights"
import ctypes, sys
assert ctypes.CDLL(None).setfsuid(int(sys.argv[2])) == 0
assert open(sys.argv[1]).read() == "for all\n"
PYTHON
as_nobody cat "$mnt/file" 2>/dev/null && fail "another user is let in"
rm "$mnt/file"
umount_store
chmod 700 "$WORK"
mount -t lacuna -o threds=4 "$store" "$mnt" 2>"$WORK/error" && fail "an unknown option is taken"
grep -q 'threds=4; did you mean threads' "$WORK/error" || fail "no proposal: $(cat "$WORK/error")"

# In a remount, too.
mount -t lacuna -o threads=4 "$store" "$mnt"
for step in "nosuid:nosuid " "nodev:nosuid nodev " "ro:ro nosuid nodev " "rw:nosuid nodev " \
    "suid,noexec:nodev noexec " "dev,exec:"; do
    mount -o "remount,${step%%:*}" "$mnt" || fail "remount,${step%%:*}"
    expect "remount,${step%%:*}" "${step#*:}"
done
# A device node and a set-user-id program do what they are for.
mknod --mode 666 "$mnt/null" c 1 3
echo gone >"$mnt/null" || fail "a device node on a mount with dev"
cp "$(command -v id)" "$mnt/id"
chmod 4755 "$mnt/id"
chmod 755 "$WORK"
[ "$(as_nobody "$mnt/id" -u)" = 0 ] || fail "a set-user-id program on a mount with suid"
umount_store

# The DirectFS ioctl is for who may write.
mount_store
echo >"$mnt/table.ibd"
ask() { perl -e 'open(my $f, $ARGV[1], $ARGV[0]) or die; my $on = pack("I", 1); ioctl($f, 0x40049502, $on) or die "$!\n"' "$@"; }
ask "$mnt/table.ibd" "<" 2>"$WORK/error" && fail "trims are switched on by a reader"
grep -q 'Bad file descriptor' "$WORK/error" || fail "instead of EBADF: $(cat "$WORK/error")"
[ "$(metric atomic_handshakes_total)" = 0 ] || fail "the refused ioctl counts"
ask "$mnt/table.ibd" "+<" || fail "a writer is refused"
[ "$(metric atomic_handshakes_total)" = 1 ] || fail "the ioctl does not count"

# A terminal does not obey names.
escape=$'\e'
touch "$mnt/a${escape}[2Jb"
ln -s "c${escape}[1md" "$mnt/link"
umount_store
"$LACUNA" ls "$store" >"$WORK/list"
grep -q "$escape" "$WORK/list" && fail "control characters are listed"
grep -qF 'a\u001b[2Jb' "$WORK/list" && grep -qF 'c\u001b[1md' "$WORK/list" || fail "ls: $(cat "$WORK/list")"
"$LACUNA" cat "$store:x${escape}[2Jy" 2>&1 | grep -q "$escape" && fail "control characters are in an error"

# Neither locks nor pipes of the caller live on in the background.
: >"$WORK/lock"
(
    exec 9>"$WORK/lock"
    flock 9
    mount_store
) | timeout 60 cat >/dev/null || fail "the caller's pipe stays open"
flock --nonblock "$WORK/lock" true || fail "the caller's lock is held"
pid=$(daemon_pid)
for descriptor in /proc/"$pid"/fd/*; do
    [ "$(readlink "$descriptor")" != "$WORK/lock" ] || fail "the caller's descriptors are open"
done

# A stopped process is reported, not waited for, whichever name its store is asked by.
kill -STOP "$pid"
asked=("info $store" "info $mnt" "metrics $mnt" "grow $mnt max" "umount $mnt")
askers=()
for number in "${!asked[@]}"; do
    timeout -s KILL 120 "$LACUNA" ${asked[number]} >"$WORK/answer-$number" 2>"$WORK/error-$number" &
    askers+=($!)
done
# Nor is it by whoever its process does not listen to.
asked+=("info $mnt, as another user")
as_nobody timeout -s KILL 120 "$WORK/lacuna" info "$mnt" >"$WORK/answer-${#askers[@]}" 2>"$WORK/error-${#askers[@]}" &
askers+=($!)
for number in "${!asked[@]}"; do
    ! wait "${askers[number]}" || fail "a stopped process answers: ${asked[number]}"
done
kill -CONT "$pid"
for number in "${!asked[@]}"; do
    grep -q 'does not answer' "$WORK/error-$number" || fail "${asked[number]}: $(cat "$WORK/error-$number")"
done
grep -qxF "lacuna_up{store=\"$store\"} 0" "$WORK/answer-2" || fail "it is up: $(cat "$WORK/answer-2")"

# Even with a socket that lets everybody in, the process answers its own user and root only.
socket=/run/lacuna/$(stat -c 'file-%D-' "$store")$(printf %x "$(stat -c %i "$store")").sock
[ -S "$socket" ] || fail "there is no $socket"
chmod 666 "$socket"
client='use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; print $s "ping\n"; print <$s>'
[ "$(perl -e "$client" "$socket")" = ok ] || fail "root gets no answer"
[ -z "$(as_nobody perl -e "$client" "$socket" 2>/dev/null)" ] || fail "another user gets an answer"
umount_store
# And a client believes its own user only, wherever the other listens.
perl -e 'use IO::Socket::UNIX; use POSIX (); $SIG{PIPE} = "IGNORE";
    socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; bind($s, pack_sockaddr_un($ARGV[0])) or die;
    POSIX::setuid($ARGV[1]) or die; listen($s, 5) or die;
    while (accept(my $c, $s)) { <$c>; print $c "ok\nforged\n"; close $c }' "$socket" "$nobody" &
impostor=$!
await "nobody listens in the owner's place" perl -e "$client" "$socket" >/dev/null 2>&1
"$LACUNA" metrics "$store" >"$WORK/forged" 2>"$WORK/error" && fail "another user is believed"
grep -q forged "$WORK/forged" && fail "another user's answer is shown"
grep -q "user $nobody answers in its owner's place" "$WORK/error" || fail "no clear line: $(cat "$WORK/error")"
kill "$impostor"
rm "$socket"

# A directory that others made, or may write to, is not used for the socket.
touch "$WORK/stranger"
chmod 777 "$WORK"
own=/tmp/lacuna-$nobody
[ ! -e "$own" ] || fail "$own is there already"
mkdir "$own"
trap 'code=$?; rmdir "$own" 2>/dev/null || true; umount -l "$(realpath /sbin)"; finish $code' EXIT
as_nobody "$WORK/lacuna" info "$WORK/stranger" 2>"$WORK/error" && fail "another's directory is trusted"
grep -q "belongs to user 0" "$WORK/error" || fail "no clear line: $(cat "$WORK/error")"
chown "$nobody" "$own"
chmod 777 "$own"
as_nobody "$WORK/lacuna" info "$WORK/stranger" 2>"$WORK/error" && fail "a directory that all write to is trusted"
grep -q "gives others access" "$WORK/error" || fail "no clear line: $(cat "$WORK/error")"
rmdir "$own"

# check right after umount(8), which does not wait for the store to be closed.
for round in $(seq 15); do
    mount_store
    head -c 2M /dev/urandom >"$mnt/file$round"
    umount "$mnt"
    "$LACUNA" check "$store" >"$WORK/check" 2>&1 || fail "round $round: $(cat "$WORK/check")"
done

# A mount whose process was killed is called dead, with the way out.
mount_store
mkdir "$WORK/bound"
mount --bind "$mnt" "$WORK/bound"
kill_daemon
"$LACUNA" mount "$store" "$mnt" 2>"$WORK/error" && fail "mounted over a dead mount"
grep -q "dead mount.*lacuna umount --dead $mnt" "$WORK/error" || fail "no clear line: $(cat "$WORK/error")"
# So says its unmount, although another one of the same kind shows the store as well.
"$LACUNA" umount "$mnt" 2>"$WORK/error" || fail "a dead mount cannot be cleared"
grep -q "process was gone" "$WORK/error" || fail "the unmount of a dead mount says: $(cat "$WORK/error")"
umount "$WORK/bound"

# --dead clears the mount whose process is gone, and no other. This one's process closes its connection.
mount_store
"$LACUNA" umount --dead "$mnt" 2>"$WORK/error" && fail "a live mount was taken for a dead one"
grep -q "its process is there" "$WORK/error" || fail "no clear line: $(cat "$WORK/error")"
mountpoint -q "$mnt" || fail "a live mount was detached"
umount_store
(
    exec 9<>/dev/fuse
    mount -i -t fuse.lacuna -o fd=9,rootmode=40000,user_id=0,group_id=0 "$store" "$mnt"
)
"$LACUNA" umount --dead "$mnt" || fail "a dead mount cannot be cleared"
findmnt -rn "$mnt" >/dev/null && fail "a dead mount is still there"
"$LACUNA" umount --dead "$mnt" || fail "nothing to do is no error"

# A mount that was detached, and ends later, leaves the one that is on its directory now alone.
mount_store
echo there >"$mnt/file"
exec 9<"$mnt/file"
detached=$(daemon_pid)
umount -i -l "$mnt"
"$LACUNA" format --size 64M "$WORK/other" >/dev/null
"$LACUNA" mount --transport "${LACUNA_TRANSPORT:-auto}" "$WORK/other" "$mnt"
kill -TERM "$detached"
sleep 1
kill -TERM "$detached"
sleep 1
grep -qF "$WORK/other" <(findmnt -rn -o SOURCE "$mnt") || fail "signals of a detached mount took another one away"
exec 9<&-
ended() { ! grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$detached/status"; }
await "the detached mount does not end with its last file" ended
grep -qF "$WORK/other" <(findmnt -rn -o SOURCE "$mnt") || fail "the end of a detached mount took another one away"
umount_store

# A signal at the moment at which the mount is ready: either it is mounted and the caller returns well, or neither.
for signal in TERM HUP; do
    mount_store
    exec 9<"$mnt/file"
    umount -i -l "$mnt"
    "$LACUNA" mount --allow-other --transport "${LACUNA_TRANSPORT:-auto}" "$store" "$mnt" 9<&- &
    caller=$!
    begun() { [ -n "$(pgrep -P "$caller" -f background-process)" ]; } # waits until the other one ends
    await "no background process" begun
    kill -STOP "$caller"
    exec 9<&-
    await "it is not mounted" mountpoint -q "$mnt"
    sleep 1 # it reports that then
    kill "-$signal" "$caller"
    kill -CONT "$caller"
    code=0
    wait "$caller" || code=$?
    mountpoint -q "$mnt" && is_mounted=0 || is_mounted=1
    [ "$is_mounted" = $((code != 0)) ] || fail "SIG$signal to a mount that is ready: exit code $code, mounted: $is_mounted"
    [ "$is_mounted" = 1 ] || umount_store
done
check_store

# Only asked whether it could be done.
mount -f -t lacuna "$store" "$mnt"
mountpoint -q "$mnt" && fail "mount -f mounts"
echo "protect: passed"
