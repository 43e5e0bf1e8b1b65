#!/usr/bin/env bash
# fsx: random reads, writes, mappings, truncations, holes and copies of a file against a model in memory.
# OPERATIONS (50,000) for each of SEEDS, by processes of 25,000: fsx 0.3.2 never unmaps what it wrote through
# mappings, so a longer one spends its time, and in the end the kernel's limit, on old mappings.
. "$(dirname "$0")/lib.sh"
need_fuse
need fsx
build
operations=${OPERATIONS:-50000}
read -r -a seeds <<<"${SEEDS:-1}"
slice=25000

cat >"${TMPDIR:-/tmp}/fsx-$$.toml" <<'TOML'
# 2 MiB: beyond one request.
flen = 2097152
[opsize]
max = 262144
min = 0
[weights]
close_open = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 5
sendfile = 2
posix_fadvise = 1
copy_file_range = 3
TOML
config=${TMPDIR:-/tmp}/fsx-$$.toml
for options in --cache=none --cache=auto --cache=writeback '--cache=none --compress=lz4' '--cache=writeback --compress=zstd:1'; do
    # shellcheck disable=SC2086
    start 256M --threads 4 $options
    for seed in "${seeds[@]}"; do
        for ((done = 0; done < operations; done += slice)); do
            fsx -f "$config" -S "$((seed + done))" -N "$slice" "$mnt/fsx" >"$WORK/fsx.log" 2>&1 || {
                tail -30 "$WORK/fsx.log" >&2
                fail "fsx -S $((seed + done)) -N $slice, options '$options'"
            }
        done
    done
    check_store
    discard_work
done
rm "$config"
echo "fsx: passed: $operations operations, seeds ${seeds[*]}"
