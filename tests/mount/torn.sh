#!/usr/bin/env bash
# Is one write of a page of 8 KiB whole after a crash? A program writes such a page from memory of which the kernel
# lacks a part at that moment; then the daemon is killed. With O_DIRECT, and on a mount with --cache=none, the page must
# be the old one or the new one, wherever it lies in memory: PostgreSQL may then do without full_page_writes. In the page
# cache a page is handed over in two requests if it does not begin on a page of memory, and is torn in between: if that
# does not happen on Linux 6.18 or later, this test proves nothing, and fails. With --cache=writeback the kernel may write
# half of it back while the writer waits for the other half.
. "$(dirname "$0")/lib.sh"
need_fuse
need python3 perl
[ "$(uname -m)" = x86_64 ] || skip "userfaultfd is called by the number that it has on x86-64"
build
start 256M --threads 4
page=$mnt/page
pages=$here/pages.py

# What is in the page: old, new or torn.
content() {
    perl -e 'open(my $in, "<:raw", $ARGV[0]) or die; seek($in, 64 * 8192, 0); read($in, my $data, 8192);
        my ($old, $new) = ($data =~ tr/O//, $data =~ tr/N//);
        print $old == 8192 ? "old" : $new == 8192 ? "new" : "torn", "\n"' "$page"
}

# In the page cache as a database has it that read the table before: with what the kernel read ahead.
old_page() {
    perl -e 'print "O" x (1 << 20)' | dd of="$page" bs=1M iflag=fullblock conv=notrunc,fsync status=none
    dd of="$page" oflag=nocache conv=notrunc,fdatasync count=0 status=none
    cat "$page" >/dev/null
}

has_fault() {
    grep -q fault "$WORK/pages.out"
}

# Writes the page as told and kills the daemon while the kernel waits for the missing part.
killed_within() {
    local writer
    old_page
    rm -f "$WORK/go"
    mkfifo "$WORK/go"
    python3 "$pages" tear "$page" "$@" <"$WORK/go" >"$WORK/pages.out" 2>"$WORK/pages.err" &
    writer=$!
    exec 9>"$WORK/go"
    await "the kernel does not miss the memory: $(cat "$WORK/pages.err")" has_fault
    # An opening for direct I/O has the kernel write back; a sync would wait for the writer.
    [ -z "$is_written_back" ] || dd if="$page" of=/dev/null bs=8192 skip=64 count=1 iflag=direct status=none
    # What was answered so far is made durable by any sync.
    dd if=/dev/zero of="$mnt/other" bs=512 count=1 conv=fsync status=none
    kill_daemon
    echo go >&9
    exec 9>&-
    { wait "$writer" || true; } 2>/dev/null
    umount -l "$mnt"
    "$LACUNA" check "$store" >/dev/null || fail "the store is not sound"
    mount_store
}

torn=0
is_written_back=
judge() {
    local how=$1 must_be=$2 found
    found=$(content)
    echo "torn: $how: the page is $found"
    case $must_be,$found in
        whole,torn) fail "$how: a page is torn" ;;
        any,torn) torn=$((torn + 1)) ;;
    esac
}

for shift in 0 128 2048; do
    killed_within "$shift"
    judge "cached, $shift bytes behind a page of memory" any
    killed_within "$shift" direct
    judge "O_DIRECT, $shift bytes behind a page of memory" whole
done
umount_store
remount_with+=(--cache=none)
mount_store
for shift in 0 128 2048; do
    killed_within "$shift"
    judge "--cache=none, $shift bytes behind a page of memory" whole
done
umount_store
remount_with=(--threads 4 --cache=writeback)
mount_store
is_written_back=yes
torn_through=$torn
for shift in 0 2048; do
    killed_within "$shift"
    judge "--cache=writeback, $shift bytes behind a page of memory" any
done
[ "$torn" -gt "$torn_through" ] || echo "not tested: this kernel tears no page that it writes back in this way" >&2
is_written_back=
killed_within 128 direct
judge "--cache=writeback with O_DIRECT, 128 bytes behind a page of memory" whole
umount_store
remount_with=(--threads 4 --cache=none)
mount_store
torn=$torn_through
# Older kernels wait for all memory first, or nearly always.
[ "$torn" -gt 0 ] || [ "$(printf '6.18\n%s\n' "$(uname -r)" | sort -V | head -1)" != 6.18 ] ||
    fail "no page was torn where one should be: what was whole proves nothing"

# The same without a kill: requests for a page from memory that another process filled.
requests() {
    local before
    before=$(metric writes_total)
    truncate -s 8M "$mnt/many"
    python3 "$pages" count "$mnt/many" "$1" 1000
    echo "$(($(metric writes_total) - before))"
}
for shift in 0 128; do
    sent=$(requests "$shift")
    echo "torn: --cache=none, $shift bytes behind a page of memory: $sent requests for 1000 pages"
    [ "$sent" = 1000 ] || fail "a page is not one request"
done
umount_store
remount_with=(--threads 4)
mount_store
for shift in 0 128; do
    echo "torn: cached, $shift bytes behind a page of memory: $(requests "$shift") requests for 1000 pages"
done
check_store
echo "torn: passed"
