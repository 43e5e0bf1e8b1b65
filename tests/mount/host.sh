#!/usr/bin/env bash
# Programs that serve the mount of a store themselves (`lacuna run`): what they read and write past the kernel is what all
# others see; however they end, what was synced is there, and nothing hangs. ROUNDS (3) of kills, STEPS (1500) of a
# comparison for each of SEEDS.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3
build
build_preload
start 512M
umount_store
# The interpreter itself, no script that starts it.
python=$(python3 -c 'import sys; print(sys.executable)')
SEEDS=${SEEDS:-$(date +%j) 1 2}

# Starts it without a shell between, so that $! is the program.
hosted() {
    exec timeout --foreground --kill-after=10 "${LIMIT:-300}" "$LACUNA" run "${options[@]}" "$store" "$mnt" -- "$@"
}
options=()

is_gone() {
    ! grep -q " $mnt fuse.lacuna " /proc/self/mounts
}

ended() {
    await "the mount stays after $1" is_gone
    "$LACUNA" check "$store" >/dev/null || fail "the store is not sound after $1"
}

for seed in $SEEDS; do
    for more in "" --cache=none --compress=lz4; do
        options=($more)
        (hosted "$python" "$here/host.py" compare "$mnt" "$seed" "${STEPS:-1500}") || fail "seed $seed $more: what is read is not what was written"
        ended "a comparison"
    done
done
options=()
echo "host: one file in many ways, seeds $SEEDS"

(hosted "$python" "$here/host.py" descriptors "$mnt") || fail "closing all descriptors"
ended "closing all descriptors"

(hosted "$python" "$here/host.py" full "$mnt") || fail "a full store"
ended "a full store"

for how in exit _exit exec failed-exec; do
    [[ $(hosted "$python" "$here/host.py" leave "$mnt" "$how") != exec || $how = exec ]] || fail "leaving by $how"
    ended "leaving by $how"
    for name in left-$how left-$how-cached; do
        [[ $("$LACUNA" cat "$store:/$name" | tr -d '\0') = "$how"* ]] || fail "$how: what was written to $name is lost"
    done
done
for how in exit _exit; do
    [[ $("$LACUNA" cat "$store:/left-$how-mapped" | tr -d '\0') = "$how" ]] || fail "$how: what was written to memory is lost"
done
[ "$("$LACUNA" cat "$store:/left-failed-exec-after")" = failed-exec ] || fail "after an exec that failed"

# Others use the mount at the same time, and read what is there.
(hosted "$python" -c '
import os, subprocess, sys
f = os.open(sys.argv[1] + "/shared", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
os.ftruncate(f, 8192)
os.pwrite(f, b"a" * 8192, 0)
print(subprocess.run(["head", "-c", "3", sys.argv[1] + "/shared"], capture_output=True).stdout)
print(subprocess.run([sys.argv[2], "info", sys.argv[1]], capture_output=True, text=True).stdout)
' "$mnt" "$LACUNA") >"$WORK/shared" || fail "a shared file"
grep -q "b'aaa'" "$WORK/shared" && grep -q "$store" "$WORK/shared" || fail "what others see: $(cat "$WORK/shared")"
ended "a shared file"

# Without its guard a program ends all the same.
(hosted sh -c 'pkill -KILL -f "run-[g]uard --stay '"$store"'"; sleep 0.5; exit 0') || fail "a program whose guard was killed"
ended "the end of a program without its guard"

# Somebody unmounts meanwhile: the program runs on, and what it executes mounts again.
cat >"$WORK/unmounted" <<END
"$LACUNA" umount "$mnt" && ! mountpoint -q "$mnt" && exec "$python" -c 'import os, sys; sys.exit(0 if os.path.ismount("$mnt") else 1)'
END
(hosted sh "$WORK/unmounted") || fail "a program whose mount was unmounted"
ended "an unmount meanwhile"

if [ -e /proc/self/task/$$/io ]; then
    (hosted "$python" "$here/host.py" alone "$mnt") || fail "reads and writes of the program alone"
    ended "reads and writes of the program alone"
else
    echo "not tested: that no other thread works for the program's reads: this kernel counts no I/O of tasks" >&2
fi

for round in $(seq "${ROUNDS:-3}"); do
    rm -f "$WORK"/acks-*
    (LIMIT=600 hosted "$python" "$here/host.py" write "$mnt" "$WORK/acks") 2>/dev/null &
    starter=$!
    has_acknowledged() { [ -s "$WORK/acks-0" ] && [ -s "$WORK/acks-1" ] && [ -s "$WORK/acks-2" ]; }
    await "nothing is acknowledged" has_acknowledged
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    program=$(pgrep -f -x "$python $here/host.py write $mnt $WORK/acks")
    kill -KILL "$program"
    wait "$starter" || true
    ended "round $round of kills"
    # The next program finds it all.
    (hosted "$python" "$here/host.py" acknowledged "$mnt" "$WORK/acks") || fail "round $round: an acknowledged write is lost"
    ended "round $round"
done

# What cannot be is one line, and leaves nothing.
refused() {
    local word=$1 output
    shift
    output=$("$LACUNA" run "$@" 2>&1) && fail "not refused: $*"
    [[ $output = *"$word"* ]] || fail "$*: $output"
    is_gone || fail "$*: mounted"
}
printf '#!/no/such\n' >"$WORK/script"
chmod +x "$WORK/script"
refused "no such program" "$store" "$mnt" -- no-such-program-anywhere
refused "cache=writeback" --cache=writeback "$store" "$mnt" -- true
refused "No such file" "$store" "$mnt" -- "$WORK/script"
refused "set-user-id" "$store" "$mnt" -- su
refused "not a Lacuna store" "$WORK/script" "$mnt" -- true
(ulimit -f 100000 && refused "ulimit -f" "$store" "$mnt" -- true)
mount_store
output=$("$LACUNA" run "$store" "$mnt" -- true 2>&1) && fail "a second mount"
[[ $output = *"mounted already"* ]] || fail "a second mount: $output"
umount_store
check_store
