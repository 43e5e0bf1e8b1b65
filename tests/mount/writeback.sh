#!/usr/bin/env bash
# --cache=writeback: far fewer requests; what fsync, msync, O_DSYNC, close and umount promise when the daemon is killed;
# times, sizes, privileges and holes beside data that only the kernel has; O_DIRECT, copies and holes beside it; a full
# store and a quota, which fsync and close report. Then smoke.sh, kill.sh and posix.sh on such mounts.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3 runuser
build
start 128M --threads 4
chmod 755 "$WORK"
chmod 1777 "$mnt"

# A process that does to files what it is told (files.py); says WHAT EXPECTED.
coproc python3 "$here/files.py"
says() {
    local answer
    echo "$1" >&"${COPROC[1]}"
    read -r answer <&"${COPROC[0]}"
    # A pattern.
    # shellcheck disable=SC2053
    [[ $answer == ${2:-ok} ]] || fail "$1: $answer, not ${2:-ok}"
}
as() { (cd "$mnt" && runuser -u "$1" -- "${@:2}"); }

# 1,000 pages of a database, one after the other.
requests() {
    local before
    before=$(metric writes_total)
    says "open pages $mnt/pages rdwr,creat,trunc"
    for page in $(seq 0 999); do echo "write pages $((page * 8192)) 8192 P"; done >&"${COPROC[1]}"
    for _ in $(seq 1000); do read -r _ <&"${COPROC[0]}"; done
    says "fsync pages"
    says "close pages"
    echo $(($(metric writes_total) - before))
}
through=$(requests)
[ "$through" -ge 1000 ] || fail "written through, 1,000 writes are $through requests"
umount_store
"$LACUNA" mount --cache=writeback --sync "$store" "$mnt" 2>"$WORK/error" && fail "with --sync"
grep -q 'choose one' "$WORK/error" || fail "$(cat "$WORK/error")"
remount_with=(--threads 4 --cache=writeback)
mount_store
back=$(requests)
[ "$back" -le 50 ] || fail "written back, 1,000 writes are $back requests"
echo "writeback: 1,000 writes of 8 KiB are $through requests written through, $back written back"

# Beside data that only the kernel has.
says "open f $mnt/f rdwr,creat"
says "write f 0 8192 A" 8192
before=$(metric writes_total)
[ "$(stat -c %s "$mnt/f")" = 8192 ] || fail "the size is $(stat -c %s "$mnt/f")"
says "data f 0" 0
says "hole f 0" 8192
[ "$(metric writes_total)" = "$before" ] || fail "it is written already, so this shows nothing"
cp --sparse=auto "$mnt/f" "$WORK/copy"
[ "$(tr -d A <"$WORK/copy" | wc -c) $(wc -c <"$WORK/copy")" = "0 8192" ] || fail "a copy has holes for data"
says "open d $mnt/f rdwr,direct"
says "write f 8192 8192 B" 8192
says "read d 0 32768" "A8192 B8192"
says "write f 4096 100 C" 100
says "write d 4096 8192 D" 8192
says "read f 0 32768" "A4096 D8192 B4096"
says "atomic f" ENOTTY
says "atomic d"
says "close d"
says "write f 16384 8192 E" 8192
says "punch f 20480 4096"
says "write f 24576 8192 F" 8192
says "truncate f 28672"
says "open g $mnt/g rdwr,creat"
says "copy f 12288 g 100 12288" 12288
says "read g 0 65536" "0100 B4096 E4096 04096"
says "write f 0 4096 G" 4096
says "fsync f"
"$LACUNA" compress "$mnt/f" --set lz4 --rewrite
says "write f 4096 4096 H" 4096
"$LACUNA" compress "$mnt/f" --set zstd:3 --rewrite
says "read f 0 65536" "G4096 H4096 D4096 B4096 E4096 04096 F4096"
says "fsync f"
# The kernel asks again a second later.
has_room() { [ "$(stat -c %b "$mnt/f")" -gt 0 ] && [ "$(stat -c %b "$mnt/f")" -lt 56 ]; }
await "st_blocks is $(stat -c %b "$mnt/f")" has_room

# Times are those of the write, not those of its way to the store; and what is said of them holds.
says "open t $mnt/t rdwr,creat"
says "write t 0 4096 T" 4096
modified=$(stat -c %.9Y "$mnt/t")
sleep 1.1
says "fsync t"
says "close t"
[ "$(stat -c %.9Y "$mnt/t")" = "$modified" ] || fail "fsync moves the time of modification"
says "open u $mnt/u rdwr,creat"
says "write u 0 4096 U" 4096
touch -d '1969-07-20 20:17:40.5 UTC' "$mnt/u"
says "close u"

# Who may write only, appends to what the kernel reads; who may not, does not. Privileges go with a write.
touch "$mnt/log" "$mnt/tool"
chown nobody "$mnt/log"
chmod 200 "$mnt/log"
printf first >"$mnt/log"
umount_store 2>/dev/null && fail "unmounted with open files"
says "close f"
says "close g"
umount_store
mount_store
as nobody sh -c 'printf second >>log' || fail "an append by who may write only"
as nobody cat log 2>/dev/null && fail "read by who may write only"
[ "$(cat "$mnt/log")" = firstsecond ] || fail "appended: $(cat "$mnt/log")"
chmod 6777 "$mnt/tool"
python3 -c 'import os, sys; os.setxattr(sys.argv[1], "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))' "$mnt/tool"
as nobody sh -c 'printf x >>tool' || fail "a write by others"
[ "$(stat -c %a "$mnt/tool")" = 777 ] || fail "set-user-id is left: $(stat -c %a "$mnt/tool")"
python3 -c 'import os, sys; os.getxattr(sys.argv[1], "security.capability")' "$mnt/tool" 2>/dev/null &&
    fail "a capability is left"

# After a remount all is as the kernel showed it.
[ "$(stat -c %.9Y "$mnt/t" "$mnt/u" | tr '\n' ' ')" = "$modified -14182939.500000000 " ] ||
    fail "times after a remount: $(stat -c %.9Y "$mnt/t" "$mnt/u")"
[ "$(stat -c %s "$mnt/f")" = 28672 ] || fail "the size after a remount: $(stat -c %s "$mnt/f")"
says "open f $mnt/f rdwr"
says "read f 0 65536" "G4096 H4096 D4096 B4096 E4096 04096 F4096"

# The daemon is killed. What was synced is there, in whatever way; of the rest, what was there before or what was written.
says "open s $mnt/s rdwr,creat"
says "open m $mnt/m rdwr,creat"
says "open o $mnt/o wr,creat,dsync"
says "open a $mnt/a wr,creat,append"
says "open c $mnt/c wr,creat"
says "open n $mnt/n rdwr,creat"
says "write s 0 8192 S" 8192
says "truncate m 8192"
says "map m 0 8192 M"
says "write a end 5000 A" 5000
says "write a end 5000 B" 5000
says "write n 0 8192 O" 8192
says "fsync n"
says "write c 0 8192 C" 8192
says "close c"
says "msync m"
says "fsync a"
says "write o 0 8192 O" 8192
says "fdatasync s"
says "write n 0 8192 N" 8192
says "write s 8192 8192 X" 8192
kill_daemon
says "fsync n" E*
"$LACUNA" umount --lazy "$mnt"
for name in s m o a n f; do says "close $name" "*"; done
check_store
mount_store
content() {
    says "open x $mnt/$1 rd"
    says "read x 0 65536" "$2"
    says "close x"
}
content s S8192*
content m M8192
content o O8192
content a "A5000 B5000"
# Handed over by its close, and synced by those that came later.
content c C8192
content n "[ON]8192"

# sync(2) and syncfs(2) hand all over; what is synced next makes it durable.
says "open y $mnt/y wr,creat"
has_come() { [ "$(metric write_bytes_total)" -ge $((before + 8192)) ]; }
all=(sync)
can_sync "sync(2)" || all=()
for how in "${all[@]}" "syncfs y"; do
    before=$(metric write_bytes_total)
    says "write y 0 8192 Y" 8192
    says "$how"
    await "$how hands nothing over" has_come
done
says "open z $mnt/z wr,creat"
says "fsync z"
kill_daemon
"$LACUNA" umount --lazy "$mnt"
for name in y z; do says "close $name" "*"; done
mount_store
content y Y8192

# A signal: what is in use is detached, and what only the kernel has comes with the last close.
says "open y $mnt/y rdwr"
says "write y 8192 8192 Z" 8192
pid=$(daemon_pid)
kill -TERM "$pid"
is_detached() { ! mountpoint -q "$mnt"; }
await "a signal detaches nothing" is_detached
says "close y"
is_over() { ! kill -0 "$pid" 2>/dev/null; }
await "the daemon does not end" is_over
check_store
mount_store
content y "Y8192 Z8192"

# Full, or a quota used up: fsync and close say so, each once, and nobody loses what was synced.
umount_store
"$LACUNA" quota "$store" set nobody 8M
mount_store
as nobody sh -c 'head -c 4M /dev/zero | tr "\0" q >kept && sync kept' || fail "within the quota"
fill() {
    python3 - "$1" "$2" "$3" <<'PYTHON'
import errno, os, sys
path, megabytes, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
errors = []
def attempt(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        errors.append(errno.errorcode[error.errno])
for _ in range(megabytes):
    # Write errors that the kernel has seen meanwhile come with writes.
    attempt(os.write, file, os.urandom(1 << 20))
if how == "fsync":
    attempt(os.fsync, file)
attempt(os.close, file)
print(" ".join(dict.fromkeys(errors)) or "nothing")
PYTHON
}
export -f fill
said=$(as nobody bash -c "fill $mnt/over 12 fsync")
echo "writeback: over a quota, with fsync: $said"
[[ $said == *EDQUOT* ]] || fail "fsync over a quota: $said"
rm "$mnt/over"
said=$(as nobody bash -c "fill $mnt/over 12 close")
echo "writeback: over a quota, with close: $said"
[[ $said == E* ]] || fail "close over a quota: $said"
rm "$mnt/over"
[ "$(tr -d q <"$mnt/kept" | wc -c) $(wc -c <"$mnt/kept")" = "0 $((4 << 20))" ] || fail "what was synced is lost"
said=$(fill "$mnt/over" 200 fsync)
echo "writeback: on a full store, with fsync: $said"
[[ $said == *ENOSPC* ]] || fail "fsync on a full store: $said"
rm "$mnt/over"
head -c 32M /dev/urandom >"$WORK/again"
cp "$WORK/again" "$mnt/again" && sync "$mnt/again" || fail "the store does not go on"
sum=$(sha256sum <"$WORK/again")
umount_store
mount_store
[ "$(sha256sum <"$mnt/again")" = "$sum" ] || fail "other bytes"
content y "Y8192 Z8192"
check_store
export LACUNA_CACHE=writeback
WORK= "$here/smoke.sh"
WORK= ROUNDS=1 "$here/kill.sh"
WORK= "$here/posix.sh"
echo "writeback: passed"
