#!/usr/bin/env bash
# Root's mounts turn the kernel's switch for FUSE over io_uring on and say so in one line, but not where an option says to
# leave it, nor over /dev/fuse. The switch here is a copy: no other mount on this machine notices.
. "$(dirname "$0")/lib.sh"
need_fuse
need unshare
switch=/sys/module/fuse/parameters/enable_uring
[ -e "$switch" ] || skip "this kernel has no FUSE over io_uring"
build
in_own_namespace "$@"
mount -t tmpfs tmpfs "$(dirname "$switch")"
WORK=$(mktemp -d -t lacuna-mount.XXXXXX)
own_work=1 store=$WORK/store mnt=$WORK/mnt
trap finish EXIT
mkdir "$mnt"
"$LACUNA" format --size 64M "$store" >/dev/null

# mounts WAS IS LINES OPTION...: with the switch at WAS a mount leaves it at IS, and says so in so many lines.
mounts() {
    local was=$1 is=$2 lines=$3 said
    shift 3
    [ "$was" = none ] || echo "$was" >"$switch"
    said=$("$LACUNA" mount "$@" "$store" "$mnt" 2>&1)
    [ "$(grep -c 'FUSE over io_uring is on' <<<"$said")" = "$lines" ] || fail "mount $*: said '$said'"
    [ "$(cat "$switch" 2>/dev/null || echo none)" = "$is" ] || fail "mount $*: from $was to $(cat "$switch")"
    echo data >"$mnt/file"
    "$LACUNA" umount "$mnt"
}
mounts none none 0
mounts N N 0 --no-enable-uring
mounts N N 0 --transport fuser
mounts N Y 1
mounts Y Y 0
# Through mount(8)'s helper.
echo N >"$switch"
ln -s "$LACUNA" "$WORK/mount.lacuna"
"$WORK/mount.lacuna" "$store" "$mnt" -o no_enable_uring
[ "$(cat "$switch")" = N ] || fail "no_enable_uring: it is on"
"$LACUNA" umount "$mnt"
[ "$(cat "$mnt/file" 2>/dev/null || echo gone)" = gone ] || fail "still mounted"
"$LACUNA" check "$store" || fail "the store is not sound"
