#!/usr/bin/env bash
# The POSIX surface once, by the tools that people use, and again after a remount.
. "$(dirname "$0")/lib.sh"
need_fuse
build
start 512M --threads 4

cd "$mnt"
echo hello >a
[ "$(cat a)" = hello ] || fail "what was written is not what is read"
printf more >>a
[ "$(stat -c %s a)" = 10 ] || fail "append"
mkdir -p d/e/f
ln a d/hard
ln -s ../a d/soft
[ "$(stat -c %h a)" = 2 ] || fail "hard link"
[ "$(cat d/soft)" = "$(cat a)" ] || fail "symbolic link"
mv a b
mv -T --exchange b d/hard 2>/dev/null || true
mkfifo d/fifo
[ -p d/fifo ] || fail "fifo"
chmod 4750 d/hard
[ "$(stat -c %a d/hard)" = 4750 ] || fail "chmod"
touch -d '1969-07-20 20:17:40.123456789 UTC' d/hard
[ "$(stat -c %.9Y d/hard)" = -14182939.876543211 ] || fail "times before 1970: $(stat -c %.9Y d/hard)"
touch -d '2200-01-01 UTC' d/e
long=$(printf 'x%.0s' {1..255})
touch "$long"
touch "${long}x" 2>/dev/null && fail "a name of 256 bytes"
rmdir d/e 2>/dev/null && fail "rmdir of a directory that is not empty"

# An unlinked file lives on while it is open.
exec 7<>open
echo alive >&7
rm open
[ "$(cat /proc/self/fd/7)" = alive ] || fail "open, unlinked"
exec 7>&-

# A store in a mount. Over /dev/fuse there are no files without a name, so it has another one until it is a store.
"$LACUNA" format --size 32M inner >/dev/null
"$LACUNA" format --size 32M inner 2>/dev/null && fail "a store was overwritten"
"$LACUNA" check inner >/dev/null && rm inner
[ -z "$(find . -name '*.new')" ] || fail "the first name of a store stays"

# Holes: no room for what was never written, was punched, or was cut off.
head -c 8M /dev/urandom >data
fallocate --punch-hole --offset 1M --length 4M data
sync data
blocks=$(stat -c %b data)
[ "$blocks" -ge 8192 ] && [ "$blocks" -le 8500 ] || fail "a punched file takes $blocks blocks"
[ "$(dd if=data bs=1M skip=1 count=4 status=none | tr -d '\0' | wc -c)" = 0 ] || fail "a hole is not zeros"
truncate -s 20T huge
[ "$(stat -c %b huge)" = 0 ] || fail "a hole takes room"
truncate -s 1M data
[ "$(stat -c %s data)" = 1048576 ] || fail "truncate"

[ "$(stat -c %o data)" = 65536 ] || fail "st_blksize"
for i in $(seq 500); do echo "$i" >"d/e/n$i"; done
[ "$(ls d/e | wc -l)" = 501 ] || fail "readdir"
[ "$(find d | wc -l)" = 506 ] || fail "find: $(find d | wc -l)"

before=$(find . -type f ! -name huge -exec sha256sum {} + | sort)
cd "$WORK"
"$LACUNA" info "$store" | grep -q mounted || fail "info of a mounted store"
"$LACUNA" check "$store" >/dev/null || fail "check of a mounted store"
[ "$(metric writes_total)" -gt 0 ] && [ "$(metric up)" = 1 ] && [ "$(metric failed)" = 0 ] || fail "metrics"
[ "$(metric request_seconds_count 'operation="write"')" -gt 0 ] || fail "latencies"
"$LACUNA" info "$mnt" | grep -q mounted || fail "info of where it is mounted"
"$LACUNA" info "$mnt/d" | grep -qF "in the store $store, which is mounted on $mnt" || fail "info of a directory in it"
"$LACUNA" check "$mnt" >/dev/null || fail "check of where it is mounted"
"$LACUNA" metrics "$mnt" | grep -q '^lacuna_up{.*} 1$' || fail "metrics of where it is mounted"
"$LACUNA" umount "$store" 2>"$WORK/error" && fail "a store is no directory"
grep -qF "name the directory: $mnt" "$WORK/error" || fail "umount of a store says: $(cat "$WORK/error")"
"$LACUNA" mount "$store" "$WORK" 2>/dev/null && fail "a store was mounted twice"
# What still shows the store keeps it open, so nobody waits until it is closed.
mkdir "$WORK/bound"
mount --bind "$mnt" "$WORK/bound"
timeout 20 "$LACUNA" umount "$WORK/bound" 2>"$WORK/error" || fail "umount of a bind mount: $? $(cat "$WORK/error")"
grep -qF "still mounted on $mnt, and closed with that" "$WORK/error" || fail "a bind mount: $(cat "$WORK/error")"
"$LACUNA" format --size 32M "$WORK/other" >/dev/null
"$LACUNA" mount "$WORK/other" "$mnt" 2>"$WORK/error"
grep -qF "$store is mounted there too" "$WORK/error" || fail "a mount on a mount says: $(cat "$WORK/error")"
umount_store
check_store
mount_store
cd "$mnt"
after=$(find . -type f ! -name huge -exec sha256sum {} + | sort)
[ "$before" = "$after" ] || fail "files differ after a remount"
[ "$(stat -c %.9Y d/hard)" = -14182939.876543211 ] || fail "times after a remount"
cd "$WORK"
umount_store
"$LACUNA" mount --read-only "$store" "$mnt"
for change in "touch b" "rm b" "mkdir new" "chmod 600 b" "ln b new" "truncate -s 1 b" "mv b new"; do
    (cd "$mnt" && $change) 2>"$WORK/error" && fail "$change on a read-only mount"
    grep -q 'Read-only file system' "$WORK/error" || fail "$change: $(cat "$WORK/error")"
done
mount -i -o remount,rw "$mnt" && (touch "$mnt/new") 2>/dev/null && fail "a store opened for reading was written to"
"$LACUNA" remount "$mnt" 2>"$WORK/error" && fail "a store opened for reading becomes writable"
grep -q 'open for reading only' "$WORK/error" || fail "remount: $(cat "$WORK/error")"
# As mount(8) calls /sbin/mount.fuse.lacuna, where it is, for `mount -o remount,rw`.
ln -s "$LACUNA" "$WORK/mount.fuse.lacuna"
options=rw,nosuid,nodev,relatime,remount,user_id=0,group_id=0,default_permissions
mount -i -o remount,ro "$mnt"
"$WORK/mount.fuse.lacuna" "$store" "$mnt" -o "$options" 2>"$WORK/error" && fail "mount(8)'s helper says yes"
[ "$(wc -l <"$WORK/error")" = 1 ] && grep -q 'open for reading only' "$WORK/error" ||
    fail "mount(8)'s helper: $(cat "$WORK/error")"
findmnt -no OPTIONS "$mnt" | grep -q '^ro,' || fail "a store opened for reading becomes writable"
umount_store
mount_store
# Read-only and back while it is mounted: by the kernel alone, and as mount(8) asks for it with a line in fstab.
ln -s "$LACUNA" "$WORK/mount.lacuna"
remount() {
    case $1 in
        kernel) mount -i -o "remount,$2" "$mnt" ;; # whatever helper there is for FUSE
        helper) "$WORK/mount.lacuna" "$store" "$mnt" -o "threads=4,remount,$2" ;;
    esac || fail "remount,$2 by the $1"
}
for by in kernel helper; do
    remount "$by" ro
    (touch "$mnt/new") 2>/dev/null && fail "written to after remount,ro by the $by"
    findmnt -no OPTIONS "$mnt" | grep -q nosuid,nodev || fail "remount by the $by takes protection away"
    remount "$by" rw
    touch "$mnt/new" || fail "not written to after remount,rw by the $by"
done
# Of what was changed before, nothing is lost then, were it only times that are in memory; and reads leave no times.
for by in kernel helper; do
    mkdir "$mnt/dir"
    echo new >"$mnt/dir/read"
    touch -d 2001-02-03 "$mnt/dir"
    touch "$mnt/dir/new"
    time=$(stat -c %y "$mnt/dir")
    accessed=$(stat -c %x "$mnt/dir/read")
    remount "$by" ro
    [ "$by" = helper ] || sleep 2 # nobody waits for the process to notice
    kill_daemon
    "$LACUNA" umount "$mnt"
    mount_store
    [ "$(stat -c %y "$mnt/dir")" = "$time" ] ||
        fail "before remount,ro by the $by it was $time, now $(stat -c %y "$mnt/dir")"
    remount "$by" ro
    [ "$by" = helper ] || sleep 2
    cat "$mnt/dir/read" >/dev/null
    umount_store
    mount_store
    [ "$(stat -c %x "$mnt/dir/read")" = "$accessed" ] || fail "a read after remount,ro by the $by is noted"
    rm -r "$mnt/dir"
done
rm -rf "$mnt"/*
check_store
mount_store
[ "$(ls -A "$mnt" | wc -l)" = 0 ] || fail "something is left"
# umount(8) does not wait for the store to be closed; the next mount does.
for _ in $(seq 10); do
    umount "$mnt"
    mount_store
done
# Where nobody can ask its process, what protects the data is done all the same.
socket=$(echo /run/lacuna/mount-*:"$(stat -c %Ld "$mnt")".sock)
mv "$socket" "$WORK/socket"
"$LACUNA" remount "$mnt" 2>/dev/null && fail "remounted, and nobody knows whether it may be writable"
"$LACUNA" remount --read-only "$mnt" 2>"$WORK/error" || fail "not read-only: $(cat "$WORK/error")"
[ "$(wc -l <"$WORK/error")" = 1 ] && grep -q 'not known to be synced' "$WORK/error" || fail "$(cat "$WORK/error")"
(touch "$mnt/new") 2>/dev/null && fail "written to after remount --read-only"
mv "$WORK/socket" "$socket"
umount_store
mount_store
# The signal that a closing terminal sends twice: what is open stays until it is closed.
echo kept >"$mnt/open"
exec 7<"$mnt/open"
pid=$(daemon_pid)
kill -HUP "$pid"
sleep 0.5
kill -HUP "$pid"
sleep 0.5
mountpoint -q "$mnt" && fail "still mounted after SIGHUP"
[ "$(cat <&7)" = kept ] || fail "what is open cannot be read after SIGHUP"
exec 7<&-
while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
mount_store
rm "$mnt/open"
# A signal unmounts and closes.
pid=$(daemon_pid)
kill -TERM "$pid"
while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
mountpoint -q "$mnt" && fail "still mounted after SIGTERM"
check_store

# Too few open files are noticed before it says that it is mounted.
(ulimit -n 30 && mount_store) 2>"$WORK/error" && fail "mounted with 30 open files"
grep -q 'open files.*ulimit' "$WORK/error" || fail "few open files: $(cat "$WORK/error")"
mountpoint -q "$mnt" && fail "left behind with few open files"

# Tables in a directory that nobody can write to are only looked at.
mkdir "$WORK/tables" "$WORK/read-only"
"$LACUNA" linkbench --store "$WORK/tables" --tables page --ids 200 --seconds 1 --distribution "$root/bench/degrees-small" \
    >"$WORK/linkbench" 2>&1 || fail "no tables: $(cat "$WORK/linkbench")"
mount --bind "$WORK/tables" "$WORK/read-only"
mount -o remount,bind,ro "$WORK/read-only"
looked=
"$LACUNA" check "$WORK/read-only" >"$WORK/looked" 2>&1 && "$LACUNA" info "$WORK/read-only" >>"$WORK/looked" 2>&1 &&
    looked=1
umount "$WORK/read-only"
[ -n "$looked" ] || fail "tables on a read-only file system: $(cat "$WORK/looked")"
echo "smoke: passed"
