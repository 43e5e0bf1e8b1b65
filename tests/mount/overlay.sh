#!/usr/bin/env bash
# The upper directory of an overlay lies on the mount, as containers have it: what is changed, removed, moved and made
# anew there is what an upper directory on tmpfs shows, also after both were mounted again.
. "$(dirname "$0")/lib.sh"
need_fuse
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "no overlayfs in this kernel"
build
start 256M --threads 4
tmpfs=$WORK/tmpfs
mkdir "$tmpfs"
mount -t tmpfs tmpfs "$tmpfs"
unmount_all() { umount -l "$WORK/ours" "$WORK/theirs" "$tmpfs" 2>/dev/null || true; }
trap 'code=$?; unmount_all; finish $code' EXIT

lower=$tmpfs/lower
mkdir -p "$lower/dir/deep" "$lower/gone" "$lower/again" "$WORK/ours" "$WORK/theirs"
for name in kept changed removed moved replaced dir/a dir/deep/b gone/c again/d; do
    echo "$name of the lower" >"$lower/$name"
done
ln "$lower/kept" "$lower/linked"
mount_overlays() {
    local upper
    for upper in "$mnt" "$tmpfs"; do
        mkdir -p "$upper/upper" "$upper/work"
    done
    mount -t overlay -o "lowerdir=$lower,upperdir=$mnt/upper,workdir=$mnt/work" overlay "$WORK/ours" ||
        fail "no overlay: $(dmesg 2>/dev/null | tail -3)"
    mount -t overlay -o "lowerdir=$lower,upperdir=$tmpfs/upper,workdir=$tmpfs/work" overlay "$WORK/theirs"
}
change() (
    cd "$1"
    echo more >>changed
    chmod 600 dir/a
    rm removed
    mv moved "moved away"
    mv changed replaced
    rm -r gone again
    mkdir again
    echo new >again/new
    mkdir made
    echo made >made/file
    mv made "made and moved"
    mv dir "dir moved" # overlayfs says EXDEV, and mv copies
    ln "moved away" "moved away too"
    ln -s kept symlink
    truncate -s 1M large && rm large
)
state() { (cd "$1" && find . -printf '%P %y %m %U:%G %l\n' | sort && find . -type f -exec sha256sum {} + | sort -k 2); }
alike() {
    [ "$(state "$WORK/ours")" = "$(state "$WORK/theirs")" ] ||
        fail "$1: $(diff <(state "$WORK/ours") <(state "$WORK/theirs"))"
}

mount_overlays
alike "before any change"
change "$WORK/ours"
change "$WORK/theirs"
alike "after the changes"
[ "$(stat -c '%F %t:%T' "$mnt/upper/removed")" = "character special file 0:0" ] || fail "no whiteout"
umount "$WORK/ours" "$WORK/theirs"
umount_store
mount_store
mount_overlays
alike "after all were mounted again"
rm -r "$WORK/ours/dir moved" "$WORK/theirs/dir moved"
echo back >"$WORK/ours/removed"
echo back >"$WORK/theirs/removed"
alike "where whiteouts are replaced"
umount "$WORK/ours" "$WORK/theirs"
check_store
echo "overlay: passed"
