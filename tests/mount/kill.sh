#!/usr/bin/env bash
# The daemon is killed under load, again and again: after each mount the store is sound, and every file
# whose fsync returned is there with its contents. ROUNDS (3 by default).
. "$(dirname "$0")/lib.sh"
need_fuse
build
start 512M --threads 8
empty_sum=$(printf "" | sha256sum | cut -d" " -f1)

# Writes files with their own number in them and syncs each; then notes it outside. Every tenth replaces
# an older one by rename, as programs do that care.
writer() {
    local me=$1 number=0 file
    while :; do
        number=$((number + 1))
        file=$mnt/$round-$me-$number
        {
            yes "$round $me $number" | head -c $((1 + RANDOM % 60000)) >"$file.new"
            sync "$file.new" && mv "$file.new" "$file" && sync "$mnt"
        } 2>/dev/null || return 0
        echo "${file##*/} $(sha256sum <"$file" 2>/dev/null | cut -d' ' -f1)" >>"$WORK/acks-$me"
    done
}

has_acknowledged() {
    [ -n "$(cat "$WORK"/acks-* 2>/dev/null)" ]
}

for round in $(seq "${ROUNDS:-3}"); do
    pids=()
    for me in 1 2 3 4; do
        writer "$me" &
        pids+=($!)
    done
    await "nothing is acknowledged" has_acknowledged
    sleep "$((1 + RANDOM % 2)).$((RANDOM % 10))"
    kill_daemon
    wait "${pids[@]}" || true
    "$LACUNA" umount --lazy "$mnt" || fail "a dead mount cannot be unmounted"
    check_store
    mount_store
    acknowledged=0
    for acks in "$WORK"/acks-*; do
        while read -r name sum; do
            # A line cut by the kill, or a sum of a file that could not be read any more, says nothing.
            [ "${#sum}" = 64 ] && [ "$sum" != "$empty_sum" ] || continue
            [ "$(sha256sum <"$mnt/$name" | cut -d' ' -f1)" = "$sum" ] || fail "round $round: $name is lost"
            acknowledged=$((acknowledged + 1))
        done <"$acks"
    done
    [ "$acknowledged" -gt 0 ] || fail "round $round: nothing was written before the kill"
    echo "kill: round $round: $acknowledged acknowledged files are all there"
done
check_store

# The way out that a mount names gets rid of a dead mount, also while a program is in it.
mount_store
(cd "$mnt" && exec sleep 300) &
await "no program is in the mount" test "$mnt" -ef "/proc/$!/cwd"
kill_daemon
way_out=$("$LACUNA" mount "$store" "$mnt" 2>&1 | sed -n 's/.*clear it with: lacuna //p') || true
"$LACUNA" $way_out 2>"$WORK/error" || fail "a dead mount in use stays after lacuna $way_out"
grep -q "what was not synced is lost" "$WORK/error" || fail "lacuna $way_out says: $(cat "$WORK/error")"
mountpoint -q "$mnt" && fail "a dead mount is left by lacuna $way_out"
kill $!

# The directory of a mount leads to its process, also where its store was renamed and another has its name.
mount_store
mv "$store" "$store.renamed"
"$LACUNA" info "$mnt" | grep -q mounted || fail "info where a renamed store is mounted"
"$LACUNA" format --size 32M "$store" >/dev/null
"$LACUNA" info --json "$mnt" | grep -qw "\"file_bytes\": $(stat -c %s "$store.renamed")" ||
    fail "info where a renamed store is mounted tells of another file"
mkdir "$WORK/second"
"$LACUNA" mount "$store" "$WORK/second"
"$LACUNA" quota "$mnt" set 4711 1M
"$LACUNA" quota "$mnt" | grep -q 4711 || fail "the quota was set elsewhere"
"$LACUNA" quota "$WORK/second" | grep -q 4711 && fail "the quota was set in another store of that name"
echo kept >"$mnt/kept"
umount_store || fail "a renamed store cannot be unmounted"
! mountpoint -q "$mnt" || fail "the renamed store is still mounted"
"$LACUNA" check "$store.renamed" || fail "umount did not wait for the renamed store"
[ "$("$LACUNA" cat "$store.renamed:/kept")" = kept ] || fail "the renamed store has lost a file"
"$LACUNA" info "$WORK/second" | grep -q mounted || fail "its name's owner does not answer any more"
"$LACUNA" umount "$WORK/second"
rm "$store"
mv "$store.renamed" "$store"

# Whoever cannot ask says so.
mount_store
pid=$(daemon_pid)
rm /run/lacuna/mount-*:"$(stat -c %Ld "$mnt")".sock
umount_store 2>"$WORK/error" || fail "a mount whose process cannot be asked is not unmounted"
grep -q "has written and closed $store is not known" "$WORK/error" || fail "umount says: $(cat "$WORK/error")"
has_ended() { ! grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$pid/status"; }
await "the process does not end" has_ended
check_store
echo "kill: passed"
