#!/usr/bin/env bash
# POSIX access control lists as on ext4: whom a list names is let in or refused, directories hand their lists down
# whatever the umask, chmod changes the mask, set-group-id goes when somebody outside of the group sets a list, and
# copies and remounts keep them.
. "$(dirname "$0")/lib.sh"
need_fuse
need setfacl getfacl setpriv
build
start 128M --threads 4
chmod 755 "$WORK" "$mnt"

nobody=64987 # nobody else uses it
group=64988
as_nobody() { (cd / && exec setpriv --reuid "$nobody" --regid "$nobody" --clear-groups -- "$@"); }
as_member() { (cd / && exec setpriv --reuid 64989 --regid 64989 --groups "$group" -- "$@"); }
# A list in one line, and what it must be.
list() { getfacl --omit-header --no-effective --absolute-names --numeric "$1" | xargs; }
expect() {
    [ "$(list "$1")" = "$2" ] || fail "$1: '$(list "$1")' instead of '$2'"
}
expect_mode() {
    [ "$(stat -c %a "$1")" = "$2" ] || fail "$1: mode $(stat -c %a "$1") instead of $2"
}
# `ls -l` marks what has a list.
is_listed() { [ "$(ls -ld "$1" | cut -c 11)" = + ]; }
refused() {
    ! "$@" >/dev/null 2>&1 || fail "not refused: $*"
}

# Users and groups are let in, or refused what all others may do.
file=$mnt/file
echo text >"$file"
chmod 640 "$file"
refused as_nobody cat "$file"
setfacl -m "u:$nobody:r" "$file"
expect "$file" "user::rw- user:$nobody:r-- group::r-- mask::r-- other::---"
as_nobody cat "$file" >/dev/null || fail "whom the list names is refused"
refused as_nobody sh -c "echo more >>'$file'"
refused as_member cat "$file"
setfacl -m "g:$group:rw" "$file"
as_member sh -c "echo more >>'$file'" || fail "a member of a group that the list names is refused"
expect_mode "$file" 660
setfacl -x "g:$group" "$file"
chmod o+r "$file"
as_member cat "$file" >/dev/null || fail "others are refused"
setfacl -m "u:$nobody:-" "$file"
refused as_nobody cat "$file"
refused as_nobody setfacl -b "$file"

# The mode's group is the mask.
setfacl -m "u:$nobody:rw" "$file"
chmod 600 "$file"
expect "$file" "user::rw- user:$nobody:rw- group::r-- mask::--- other::---"
refused as_nobody cat "$file"
chmod 664 "$file"
expect "$file" "user::rw- user:$nobody:rw- group::r-- mask::rw- other::r--"
as_nobody sh -c "echo more >>'$file'" || fail "the mask does not give back what it took"

# A list that says no more than a mode is a mode.
is_listed "$file" || fail "ls shows no list"
setfacl --set u::rw,g::r,o::- "$file"
! is_listed "$file" || fail "a list like a mode stays"
expect_mode "$file" 640
setfacl -m "u:$nobody:r" "$file"
setfacl -b "$file"
! is_listed "$file" || fail "a list without names stays"
expect "$file" "user::rw- group::r-- other::---"

# What is made in a directory gets its default list in place of the umask.
dir=$mnt/dir
mkdir "$dir"
(umask 077 && touch "$dir/before" && mkdir "$dir/dir before")
expect_mode "$dir/before" 600
expect_mode "$dir/dir before" 700
setfacl -d -m "u:$nobody:rwx" "$dir"
expect_mode "$dir" 755
default="default:user::rwx default:user:$nobody:rwx default:group::r-x default:mask::rwx default:other::r-x"
expect "$dir" "user::rwx group::r-x other::r-x $default"
(umask 077 && echo text >"$dir/file" && mkdir "$dir/inner" && mkfifo "$dir/fifo" && ln -s file "$dir/link")
for name in file fifo; do
    expect "$dir/$name" "user::rw- user:$nobody:rwx group::r-x mask::rw- other::r--"
    expect_mode "$dir/$name" 664
done
expect "$dir/inner" "user::rwx user:$nobody:rwx group::r-x mask::rwx other::r-x $default"
expect_mode "$dir/link" 777
as_nobody sh -c "echo more >>'$dir/file' && touch '$dir/inner/file'" || fail "what is handed down does not count"
(umask 077 && mkdir -m 700 "$dir/private")
expect "$dir/private" "user::rwx user:$nobody:rwx group::r-x mask::--- other::--- $default"
refused as_nobody ls "$dir/private"
# One that is like a mode takes the umask's place as well.
mkdir "$mnt/plain"
setfacl --set u::rwx,g::r-x,o::r-x,d:u::rwx,d:g::r-x,d:o::- "$mnt/plain"
(umask 022 && touch "$mnt/plain/file")
expect "$mnt/plain/file" "user::rw- group::r-- other::---"
! is_listed "$mnt/plain/file" || fail "a file has a list like a mode"
setfacl -k "$mnt/plain"
(umask 022 && touch "$mnt/plain/later")
expect_mode "$mnt/plain/later" 644

# Set-group-id stays for members of the group, and for root.
touch "$mnt/program"
for owner in "$nobody:$group" "$nobody:$nobody" "0:$nobody"; do
    chown "$owner" "$mnt/program"
    chmod 2755 "$mnt/program"
    case $owner in
        0:*) setfacl -m u:1:rx "$mnt/program" ;;
        *) as_nobody setfacl -m u:1:rx "$mnt/program" ;;
    esac
    case $owner in
        *:"$group") expect_mode "$mnt/program" 755 ;;
        *) expect_mode "$mnt/program" 2755 ;;
    esac
done

# Members by another than their first group count too where the kernel says who is one, and there directories lose the
# bit as well.
mkdir "$mnt/team"
chown "64989:$group" "$mnt/program" "$mnt/team"
chmod 2775 "$mnt/program" "$mnt/team"
as_member setfacl -m u:2:rx "$mnt/program"
as_member setfacl -m u:1:rx "$mnt/team"
expect_mode "$mnt/team" 2775
chown "$nobody:$group" "$mnt/team"
chmod 2775 "$mnt/team"
as_nobody setfacl -m u:2:rx "$mnt/team"
if "$LACUNA" info "$store" | grep -q "over uring"; then
    expect_mode "$mnt/program" 2755 # the mask is what its entries need
    expect_mode "$mnt/team" 775
else
    expect_mode "$mnt/program" 755
    expect_mode "$mnt/team" 2775
fi

# Copies keep all of this, and so does the store.
lists() { (cd "$1" && getfacl -R --numeric .); }
cp -a "$dir" "$mnt/copy"
before=$(lists "$dir")
[ "$(lists "$mnt/copy")" = "$before" ] || fail "cp -a: $(diff <(lists "$mnt/copy") <(echo "$before"))"
before=$(lists "$mnt")
umount_store
mount_store
[ "$(lists "$mnt")" = "$before" ] || fail "remount: $(diff <(lists "$mnt") <(echo "$before"))"
refused as_nobody ls "$dir/private"
as_nobody sh -c "echo more >>'$dir/file'" || fail "a list is forgotten"
check_store
