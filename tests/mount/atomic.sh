#!/usr/bin/env bash
# Writes are whole or not there at all when the daemon is killed, whichever way they came: each run fills
# blocks with a byte of its own, and no block may ever show two. ROUNDS (1) for each engine and size.
. "$(dirname "$0")/lib.sh"
need_fuse
need fio perl
build
start 512M --threads 16

run=0
blocks() {
    perl -e '
        my ($file, $bytes, $run) = @ARGV;
        open(my $in, "<:raw", $file) or die "$file: $!\n";
        my ($block, $of) = (0, {});
        while (my $got = read($in, my $data, $bytes)) {
            my $first = substr($data, 0, 1);
            die "block $block is torn\n" if $data ne $first x $got;
            $of->{ord $first}++;
            $block++;
        }
        $of->{$run} or die "nothing of this run is there\n";
        print "$block blocks of ", scalar(keys %$of), " runs\n";
    ' "$@"
}

# How many writes the daemon has answered.
writes() {
    metric writes_total
}

has_written() {
    [ "$(writes)" -ge "$1" ]
}

for round in $(seq "${ROUNDS:-1}"); do
    for shape in "libaio 65536" "io_uring 65536" "psync 1048576" "libaio 1048576" "io_uring 1048576"; do
        read -r engine bytes <<<"$shape"
        run=$((run % 250 + 1))
        file=$mnt/$bytes
        [ -e "$file" ] || truncate -s 64M "$file"
        enough=$(($(writes) + 256))
        fio --name=atomic --filename="$file" --size=64M --bs="$bytes" --rw=randwrite --norandommap=1 \
            --time_based --runtime=600 --direct=1 --ioengine="$engine" --iodepth=16 --randseed="$RANDOM" \
            --buffer_pattern="0x$(printf %02x "$run")" >"$WORK/fio.log" 2>&1 &
        fio=$!
        await "fio does not write" has_written "$enough"
        sleep "0.$((RANDOM % 10))"
        kill -0 "$fio" || { cat "$WORK/fio.log" >&2; fail "fio ended early"; }
        kill_daemon
        { wait "$fio" || true; } 2>/dev/null
        umount -l "$mnt"
        "$LACUNA" check "$store" >/dev/null || fail "the store is not sound"
        mount_store
        found=$(blocks "$file" "$bytes" "$run") || fail "$engine, $bytes bytes, round $round"
        echo "atomic: $engine, $bytes bytes: $found"
    done
done
check_store
echo "atomic: passed"
