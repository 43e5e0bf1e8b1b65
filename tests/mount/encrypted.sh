#!/usr/bin/env bash
# An encrypted store on a mount, in the background and through mount(8): its key by file, by command and by descriptor,
# one line where it is missing or wrong, and nothing of what was written in plain form on the disk.
. "$(dirname "$0")/lib.sh"
need_fuse
need setsid strings python3
build
start 256M
umount_store
mark="content that nobody may read"
key=$WORK/key
(umask 077 && echo "correct horse" >"$key" && echo "wrong" >"$WORK/wrong")

fill() { head -c 20M < <(yes "$mark") >"$mnt/name that nobody may read"; sync -f "$mnt"; }
found() { { strings -n 12 "$store" | grep -cE "nobody may read"; } || true; }
refused() { # WORDS COMMAND...
    local words=$1
    shift
    setsid -w "$@" 2>"$WORK/error" && fail "not refused: $*"
    [ "$(wc -l <"$WORK/error")" = 1 ] || fail "more than a line: $(cat "$WORK/error")"
    grep -qF -- "$words" "$WORK/error" || fail "not '$words': $(cat "$WORK/error")"
}

# The search finds what is there.
mount_store
fill
umount_store
[ "$(found)" -gt 1000 ] || fail "a store without encryption does not show what is in it"
refused "a key was given, but the store is not encrypted" "$LACUNA" mount --key-file "$key" "$store" "$mnt"

rm "$store"
"$LACUNA" format --size 256M --encrypt --key-file "$key" "$store" >/dev/null
remount_with=(--key-file "$key")
mount_store
fill
tr '\0' ' ' <"/proc/$(daemon_pid)/cmdline" | grep -q "horse" && fail "the key is on a command line"
kill_daemon
"$LACUNA" umount "$mnt"
mount_store
[ "$(head -c 28 "$mnt/name that nobody may read")" = "$mark" ] || fail "not what was written"
umount_store
[ "$(found)" = 0 ] || fail "plain text in the store, $(found) times"

refused "the store is encrypted: a key is needed (--key-file" "$LACUNA" mount "$store" "$mnt"
refused "wrong key: it opens none of 1 key slots" "$LACUNA" mount --key-file "$WORK/wrong" "$store" "$mnt"
"$LACUNA" mount --key-command "cat '$key'" "$store" "$mnt"
refused "is mounted on" "$LACUNA" key rotate --key-file "$key" --new-key-file "$WORK/wrong" "$store"
umount_store
"$LACUNA" mount --key-fd 3 "$store" "$mnt" 3<"$key"
umount_store

# Once the store is open its process has no key in memory, nor that of tables, of which it needs none.
cat >"$WORK/memory.py" <<'PYTHON'
import re, sys
pid, words = sys.argv[1], sys.argv[2:]
found = dict.fromkeys(words, 0)
with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
    for line in maps:
        start, end = (int(number, 16) for number in re.match("([0-9a-f]+)-([0-9a-f]+)", line).groups())
        try:
            memory.seek(start)
            while start < end and (data := memory.read(min(end - start, 1 << 24))):
                start += len(data)
                for word in words:
                    found[word] += data.count(word.encode())
        except (OSError, OverflowError):
            pass  # not to be read, as the kernel's pages
print(*(min(count, 1) for count in found.values()))
PYTHON
(umask 077 && echo "battery staple" >"$WORK/tables")
"$LACUNA" mount --foreground --key-file "$key" --tables-key-file "$WORK/tables" "$store" "$mnt" 2>/dev/null &
await "not mounted" mountpoint -q "$mnt"
in_memory=$(python3 "$WORK/memory.py" $! "$(cat "$key")" "$(cat "$WORK/tables")" "--key-file")
[ "$in_memory" = "0 0 1" ] || fail "keys, or no option, in the memory of a mount: $in_memory"
umount_store

# As mount(8) and fstab do it.
ln -s "$LACUNA" "$WORK/mount.lacuna"
"$WORK/mount.lacuna" "$store" "$mnt" -o "rw,key_file=$key"
[ -s "$mnt/name that nobody may read" ] || fail "nothing is there"
umount_store

"$LACUNA" key rotate --key-file "$key" --new-key-file "$WORK/wrong" "$store" >/dev/null
refused "wrong key" "$LACUNA" mount --key-file "$key" "$store" "$mnt"
"$LACUNA" mount --key-file "$WORK/wrong" "$store" "$mnt"
umount_store
"$LACUNA" check --without-key "$store" >/dev/null || fail "not sound"
"$LACUNA" check --key-file "$WORK/wrong" "$store" >/dev/null || fail "not sound"
