#!/usr/bin/env bash
# The systemd unit: systemd understands it, and a mount works with no more than it allows: with its capabilities alone,
# without new privileges, and with no system call beyond its filter.
. "$(dirname "$0")/lib.sh"
need_fuse
need setpriv strace systemd-analyze
build
unit=$root/dist/lacuna@.service
setting() { sed -n "s/^$1=//p" "$unit"; }

# The program need not be installed here.
systemd-analyze verify --man=no "$unit" 2>&1 | grep -v '/usr/bin/lacuna is not executable' | grep . &&
    fail "systemd complains"
# Each of these hides the mount from everybody else.
for hides in ProtectSystem ProtectHome PrivateTmp PrivateDevices PrivateNetwork ProtectKernelModules PrivateMounts; do
    [ -z "$(setting "$hides")" ] || fail "$hides gives the service a mount namespace of its own"
done

# It waits for the devices that it names, as systemd passes them on.
pre=$(sed ':a; /\\$/ { N; s/\\\n//; b a }' "$unit" | sed -n 's/^ExecStartPre=//p' | sed 's/\$\$/$/g')
late=$(mktemp -d -t lacuna-unit.XXXXXX)/late
waits_for() { # PATH STORE OPTIONS
    STORE=$2 OPTIONS=$3
    local waiter
    eval "$pre" &
    waiter=$!
    sleep 0.5
    kill -0 "$waiter" 2>/dev/null || fail "does not wait for $1: STORE=$2 OPTIONS=$3"
    touch "$1"
    wait "$waiter" || fail "waiting for $1 ends with $?"
    rm "$1"
}
waits_for "$late" "$late" "--threads 4"
waits_for "$late" "$late" ""
waits_for "$late" /dev/null "--allow-other --log-device=$late --fcta"
waits_for "$late" /dev/null "--log-device $late"
STORE=/dev/null OPTIONS="--threads 4 --fcta"
eval "$pre" || fail "waits for nothing: $?"
rmdir "${late%/late}"

start 128M --threads 4
umount_store
capabilities=-all
for capability in $(setting CapabilityBoundingSet); do
    capability=${capability#CAP_}
    # Only cache=writeback asks for it, and does without; not every root has it.
    [ "$capability" != SYS_RESOURCE ] || continue
    capabilities+=,+${capability,,}
done
setpriv --bounding-set="$capabilities" --inh-caps="$capabilities" --no-new-privs \
    strace -f -qq --seccomp-bpf -e trace=all -o "$WORK/calls" \
    "$LACUNA" mount --foreground --exit-on-failure --allow-other --fcta --threads 4 "$store" "$mnt" 2>"$WORK/log" &
await "not mounted with the unit's capabilities" mountpoint -q "$mnt"
cp -r "$root/docs" "$mnt/docs"
sync "$mnt"/docs/*.md
"$LACUNA" check "$store" || fail "check of the mounted store"
"$LACUNA" metrics "$store" >/dev/null || fail "metrics of the mounted store"
diff -r "$root/docs" "$mnt/docs" || fail "what was copied is not what is read"
rm -r "$mnt/docs"
umount_store
wait

# The sets of the filter in single calls.
allowed() {
    local name
    for name in "$@"; do
        case $name in
            @*) allowed $(systemd-analyze syscall-filter "$name" | sed '1d; s/^ *//' | grep -v '^#') ;;
            *) echo "$name" ;;
        esac
    done
}
allowed $(setting SystemCallFilter) | sort -u >"$WORK/allowed"
[ "$(wc -l <"$WORK/allowed")" -gt 100 ] || fail "systemd's sets are not understood"
sed -nE 's/^[0-9]+ +([a-z0-9_]+)\(.*/\1/p' "$WORK/calls" | sort -u >"$WORK/used"
grep -qx mount "$WORK/used" && grep -qx pwrite64 "$WORK/used" || fail "strace saw little: $(tr '\n' ' ' <"$WORK/used")"
# The first is how it is started here.
forbidden=$(grep -vx execve "$WORK/used" | comm -23 - "$WORK/allowed")
[ -z "$forbidden" ] || fail "forbidden by the unit, and used: $forbidden"
grep -qE 'AF_(INET|NETLINK|PACKET)' "$WORK/calls" && fail "sockets beyond AF_UNIX are used"
check_store
echo "unit: passed"
