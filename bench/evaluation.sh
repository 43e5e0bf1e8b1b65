# shellcheck shell=bash disable=SC2034 # its variables are those of ./evaluate
# The steps of ./evaluate, which sources this: what each is about, what it needs, takes and runs. The names are those of
# crates/bench/src/proof/rounds.rs, which says in what order they are judged.

STEPS=(linkbench full flash volume ablations algorithms datasets tpcc clients rate goals amplification-uniform
    amplification-zipf mount trim unlink peers mariadb postgres log-device)

declare -A ABOUT=(
    [linkbench]='LinkBench on plain, page-, row-compressed tables, processor-bound'
    [full]='LinkBench with 75% of the device live and a log that wraps'
    [flash]='LinkBench as the flash of a nearly full SSD sees it, on XFS and nvmfs'
    [volume]='LinkBench on a device of 3,000 IOPS and 125 MB/s'
    [ablations]='LinkBench with one switch at a time'
    [algorithms]='LinkBench with each codec'
    [datasets]='text and numbers that no generator made'
    [tpcc]='TPC-C style on plain, page-, row-compressed tables'
    [clients]='TPC-C style by number of clients'
    [rate]='latency at a fixed rate, atomic writes and doublewrite'
    [goals]='the ftl beside the bare device'
    [amplification-uniform]='write amplification of the ftl, uniform'
    [amplification-zipf]='write amplification of the ftl, Zipf 0.99'
    [mount]='opening a store after a crash'
    [trim]='writes, trims and scans of files with holes on ext4, XFS, nvmfs'
    [unlink]='dropping a file with very many holes'
    [peers]='LinkBench on other storage engines'
    [mariadb]='LinkBench through SQL on MariaDB, on ext4, XFS, nvmfs'
    [postgres]='pgbench on PostgreSQL, on ext4, XFS, nvmfs'
    [log-device]='a log device in memory'
)
declare -A SECONDS_OF

# sizes_of MODE: the sizes of all steps, and what each is estimated to take in seconds on two cores and an NVMe-like disk.
sizes_of() {
    ONCE='amplification-uniform amplification-zipf datasets flash'
    degrees=() postgres=() log_device=()
    linkbench_variants=plain,page,page-zlib,row,plain-doublewrite,row-papers
    ablation_variants=page,page-none,page-no-trim,page-no-atomic,page-no-packing,page-no-checksums,page-one-flusher
    ablation_variants+=,page-doublewrite,plain,plain-doublewrite,row,row-doublewrite
    dataset_variants=plain,row,page,page-no-packing,page-zstd
    algorithm_variants=page-none,page-lz4,page-snappy,page-lzo,page-zstd,page-zlib,page-bzip2,page-lzma
    case $1 in
        full)
            ROUNDS=5
            linkbench=(--ids 1000000 --pool 256M) linkbench_size=8G requests=(--seconds 60 --warmup 10 --window 10)
            full=(--ids 1000000 --pool 256M) full_size=8G full_requests=(--seconds 120 --warmup 10 --wraps 3)
            flash_size=8G flash_requests=(--seconds 120 --warmup 10)
            volume_requests=(--seconds 60 --warmup 30 --window 10)
            algorithms=(--ids 300000 --pool 80M --seconds 30 --warmup 5)
            tpcc=(--warehouses 10 --pool 256M) clients='4 8 16 32 64 128 256 512'
            rate=(--rate 3000)
            goals=(--seconds 20) goals_size=8G
            amplification_mib=4096 mount=(5000000 64 1024)
            trim=(--file 1G) trim_size=12G unlink=(--holes 1000000) unlink_size=8G
            # With less memory RocksDB is killed at this size.
            peers=(--ids 1000000 --pool 256M --memory 768M --size 16G --limit 3600 --seconds 60 --warmup 10)
            mariadb=(--ids 1000000 --pool 256M --size 12G --seconds 60 --warmup 10)
            postgres=(--scale 100 --buffers 384MB --seconds 60 --size 12G)
            log_device=(--ids 100000 --seconds 15)
            SECONDS_OF=([linkbench]=620 [full]=1100 [flash]=1000 [datasets]=115 [volume]=800 [ablations]=1100 [algorithms]=520 [tpcc]=360
                [clients]=2400 [rate]=200 [goals]=240 [amplification-uniform]=120 [amplification-zipf]=120 [mount]=120
                [trim]=480 [unlink]=120 [peers]=1400 [mariadb]=1000 [postgres]=420 [log-device]=300)
            ONCE+=' algorithms clients'
            ;;
        quick)
            ROUNDS=2
            # LinkBench's own out-degrees have a node of a million links, however few nodes there are. These have five
            # links for a node as well, and at most 4,000.
            degrees=(--distribution bench/degrees-small)
            linkbench=(--ids 60000 --pool 20M) linkbench_size=1G requests=(--seconds 6 --warmup 2 --window 1)
            full=(--ids 60000 --pool 20M) full_size=2G full_requests=(--seconds 12 --warmup 2 --wraps 1)
            flash_size=2G flash_requests=(--seconds 20 --warmup 2)
            volume_requests=(--seconds 8 --warmup 4 --window 1)
            algorithms=(--ids 30000 --pool 10M --seconds 4 --warmup 1)
            tpcc=(--warehouses 1 --pool 24M) clients='4 32 128'
            rate=(--rate 2000)
            goals=(--seconds 2) goals_size=1G
            amplification_mib=1024 mount=(200000 4 64)
            trim=(--file 64M --trims 1K,4K,12K) trim_size=2G unlink=(--holes 100000) unlink_size=2G
            SECONDS_OF=([linkbench]=90 [full]=110 [flash]=150 [datasets]=115 [volume]=100 [ablations]=150 [algorithms]=90 [tpcc]=60 [clients]=120
                [rate]=30 [goals]=40 [amplification-uniform]=30 [amplification-zipf]=30 [mount]=5 [trim]=60 [unlink]=15)
            ONCE+=' algorithms clients'
            ;;
        tiny)
            ROUNDS=1
            degrees=(--distribution bench/degrees-small)
            linkbench=(--ids 1500 --pool 4M) linkbench_size=256M requests=(--seconds 2 --warmup 0 --window 1)
            full=(--ids 1500 --pool 4M) full_size=256M full_requests=(--seconds 1 --warmup 0 --live 50 --wraps 1)
            flash_size=512M flash_requests=(--seconds 1 --warmup 0 --live 50)
            volume_requests=(--seconds 1 --warmup 0)
            linkbench_variants=plain,page,page-zlib,row,plain-doublewrite,row-papers
            algorithms=(--ids 1500 --pool 4M --seconds 1 --warmup 0)
            tpcc=(--warehouses 1 --items 500 --customers 30 --pool 8M) clients='2 4'
            rate=(--rate 200)
            goals=(--seconds 1) goals_size=512M
            amplification_mib=512 mount=(2000 1 8)
            trim=(--file 2M --trims 1K,4K,12K) trim_size=512M unlink=(--holes 500) unlink_size=512M
            SECONDS_OF=([linkbench]=60 [full]=40 [flash]=40 [datasets]=115 [volume]=35 [ablations]=90 [algorithms]=40 [tpcc]=20 [clients]=30
                [rate]=15 [goals]=30 [amplification-uniform]=10 [amplification-zipf]=10 [mount]=5 [trim]=15 [unlink]=10)
            ONCE+=' algorithms clients'
            ;;
    esac
}

# why_not STEP: why it cannot run, if it cannot.
why_not() {
    case $1 in
        amplification-* | mount)
            if [ ! -x "$(example_path "${1%%-*}")" ] && ! command -v cargo > /dev/null; then
                echo "it is an example that cargo builds, and there is no cargo"
            fi
            return
            ;;
        peers | mariadb | postgres | log-device)
            [ "$mode" = full ] || { echo "it takes long: only with --full"; return; }
            ;;
    esac
    [ "$(id -u)" = 0 ] || { echo "loop devices need root"; return; }
    losetup --find > /dev/null 2>&1 || { echo "there is no loop device here"; return; }
    case $1 in
        volume)
            awk -F: '$2 ~ /(^|,)blkio(,|$)/ { found = 1 } END { exit !found }' /proc/self/cgroup ||
                grep -qw io /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null ||
                echo "no control group limits devices here"
            ;;
        datasets)
            bench/datasets "$out/sets" > /dev/null 2>&1 || echo "its files are not to be had: bench/datasets fetches them"
            ;;
        flash) grep -qw tracefs /proc/filesystems || echo "this kernel records no events of block devices" ;;
        trim | unlink) [ -e /dev/fuse ] || echo "there is no /dev/fuse for a mount" ;;
        mariadb) command -v mariadbd > /dev/null || echo "mariadbd is not installed (Debian: mariadb-server)" ;;
        postgres) compgen -G '/usr/lib/postgresql/*/bin/initdb' > /dev/null || echo "PostgreSQL is not installed (Debian: postgresql)" ;;
        log-device)
            command -v mariadbd > /dev/null || echo "mariadbd is not installed (Debian: mariadb-server)"
            ;;
    esac
}

# This list as it is in odd rounds, from back to front in even ones: no one always runs first.
turned() {
    if ((round % 2)); then echo "$1"; else tr , '\n' <<< "$1" | tac | paste -sd ,; fi
}

# engine BENCHMARK VARIANTS SIZE OPTION...
engine() {
    run bench/engine-compare "$1" --variants "$(turned "$2")" --size "$3" --dir "$work" --json "$report" -- \
        "${@:4}" --seed "$round"
}

step_linkbench() { engine linkbench $linkbench_variants "$linkbench_size" "${linkbench[@]}" "${degrees[@]}" "${requests[@]}"; }
step_ablations() { engine linkbench $ablation_variants "$linkbench_size" "${linkbench[@]}" "${degrees[@]}" "${requests[@]}"; }
step_algorithms() { engine linkbench $algorithm_variants "$linkbench_size" "${algorithms[@]}" "${degrees[@]}"; }
step_tpcc() { engine tpcc plain,page,row "$linkbench_size" "${tpcc[@]}" "${requests[@]}"; }
step_rate() {
    engine linkbench plain,plain-doublewrite "$linkbench_size" "${linkbench[@]}" "${degrees[@]}" "${requests[@]}" "${rate[@]}"
}
step_clients() {
    local variants='' of
    for of in $clients; do variants+=${variants:+,}plain@$of,page@$of,row@$of; done
    engine tpcc "$variants" "$linkbench_size" "${tpcc[@]}" "${requests[@]}"
}
step_volume() {
    run bench/engine-compare linkbench --variants "$(turned plain,page,page-cached,row,row-cached)" --size "$linkbench_size" --dir "$work" \
        --iops 3000 --bytes 125000000 --json "$report" -- "${linkbench[@]}" "${degrees[@]}" "${volume_requests[@]}" \
        --seed "$round"
}
step_full() {
    run bench/full-device --variants "$(turned plain,page,plain-doublewrite)" --size "$full_size" "${full_requests[@]}" \
        --dir "$work" --json "$report" -- "${full[@]}" "${degrees[@]}" --seed "$round"
}
step_flash() {
    run bench/flash-compare --on xfs/plain-doublewrite,xfs/row-doublewrite,plain,page --size "$flash_size" \
        "${flash_requests[@]}" --dir "$work" --json "$report" -- "${full[@]}" "${degrees[@]}" --seed "$round"
}
step_datasets() {
    shown="bench/datasets sets; bench/engine-compare dataset --variants $dataset_variants --size 1G -- sets/nouns.txt"
    shown+=" --pool 4M; the same with sets/stars.txt"
    # shellcheck disable=SC2016 # of the inner shell
    run bash -c 'set -euo pipefail
        for set in nouns stars; do
            bench/engine-compare dataset --variants "$1" --size 1G --dir "$2" --json "$2/$set.json" -- "$3/$set.txt" \
                --pool 4M --seed "$4"
            jq --arg set "$set" "{benchmark, of, runs: [.runs[] | .variant = \"\(\$set)/\(.variant)\"]}" \
                "$2/$set.json" > "$2/$set.named.json"
        done
        jq --slurp "{benchmark: .[0].benchmark, of: .[0].of, runs: map(.runs) | add}" "$2"/{nouns,stars}.named.json > "$5"' \
        datasets "$dataset_variants" "$work" "$out/sets" "$round" "$report"
}
step_goals() {
    run bench/ftl-goals --size "$goals_size" --dir "$work" -- "${goals[@]}" --rounds 1 --seed "$round" --json "$report"
}

# Where an example of the ftl is: beside the program, or where cargo builds it.
example_path() {
    local beside
    beside=$(dirname "$LACUNA")/examples/$1
    if [ -x "$beside" ]; then echo "$beside"; else echo "${CARGO_TARGET_DIR:-target}/release/examples/$1"; fi
}
# example NAME PATTERN ARGUMENT...: an example of the ftl; the number that the pattern finds is its result.
example() {
    local path
    path=$(example_path "$1")
    shown="cargo run --release -p lacuna-ftl --example $1 -- ${*:3}"
    # shellcheck disable=SC2016 # of the inner shell
    run bash -c 'set -euo pipefail
        [ -x "$1" ] || cargo build --release --locked --quiet -p lacuna-ftl --example "$2"
        text=$("$1" "${@:5}")
        echo "$text"
        sed -n "$3" <<< "$text" | head -n 1 | jq "{value: .}" > "$4"' \
        example "$path" "$1" "$2" "$report" "${@:3}"
    rm -f "$work/store"
}
step_amplification_uniform() {
    example amplification 's/^80% live.*: \([0-9.]*\) bytes written per byte.*/\1/p' 80 "$amplification_mib" 0
}
step_amplification_zipf() {
    example amplification 's/^80% live.*: \([0-9.]*\) bytes written per byte.*/\1/p' 80 "$amplification_mib" 0.99
}
step_mount() { example mount 's/^opened in \([0-9.]*\) s.*/\1/p' "$work/store" "${mount[@]}"; }
step_trim() {
    run bench/trimbench-all --size "$trim_size" --dir "$work" --on "$(turned ext4,xfs,nvmfs,store)" --json "$report" -- \
        --experiment beside,then,scan --no-zeros "${trim[@]}" --seed "$round"
}
step_unlink() {
    run bench/trimbench-all --size "$unlink_size" --dir "$work" --on "$(turned nvmfs,store)" --json "$report" -- \
        --experiment holes --no-copy "${unlink[@]}" --seed "$round"
}
step_peers() {
    run compare/run --peers "$(turned lacuna/lz4,rocksdb/lz4,rocksdb/zstd,rocksdb/lz4-blobs,lmdb,redb,fjall,sqlite)" "${peers[@]}" \
        --rounds 1 --seed "$round" --dir "$work" --json "$report"
}
step_mariadb() {
    run bench/mariadb-compare --on "$(turned ext4,xfs,nvmfs,ext4/plain,ext4/row,xfs/myrocks)" "${mariadb[@]}" --rounds 1 \
        --seed "$round" --dir "$work" --json "$report"
}
step_postgres() {
    run bench/postgres-compare --on "$(turned ext4,xfs,nvmfs-lz4)" --load update --checkpoints frequent \
        "${postgres[@]}" --rounds 1 --dir "$work" --json "$report"
}
step_log_device() {
    run bench/log-device-compare --on "$(turned alone,logged)" --only inserts "${log_device[@]}" --rounds 1 --dir "$work" --json "$report"
}

# What is measured on, with the disk of the directory in which devices are made.
machine_json() {
    local source kind disk size
    read -r source kind < <(findmnt --noheadings --output SOURCE,FSTYPE --target "$1" || echo unknown unknown)
    # What a file system on a partition or a mapped device lies on is the last line.
    disk() { lsblk --noheadings --inverse --output "$1" "$source" 2> /dev/null | tail -n 1 | xargs || true; }
    if [ -b "$source" ]; then disk=$(disk MODEL) size=$(disk SIZE); fi
    jq -n --arg processor "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" --argjson cores "$(nproc)" \
        --arg kernel "$(uname -srm)" --argjson memory "$(awk '/^MemTotal/ { print $2 * 1024 }' /proc/meminfo)" \
        --arg source "$source" --arg kind "$kind" --arg disk "${disk:-}" --arg size "${size:-unknown}" \
        --arg virtual "$(systemd-detect-virt 2> /dev/null || true)" '
        {processor: $processor, cores: $cores, memory_bytes: $memory, kernel: $kernel, virtual: $virtual,
         disk: {device: $source, model: (if $disk == "" then "not named by the system" else $disk end), size: $size,
             file_system: $kind}}'
}

versions_json() {
    local first
    # The first line that a program says of its version, if it is there.
    first() { command -v "$1" > /dev/null && "$@" 2>&1 | head -n 1 || true; }
    jq -n --arg lacuna "$("$LACUNA" --version)" \
        --arg commit "$(git describe --always --dirty 2> /dev/null || echo unknown)" \
        --arg rustc "$(first rustc --version)" --arg system "$(. /etc/os-release && echo "$PRETTY_NAME")" \
        --arg ext4 "$(first mkfs.ext4 -V)" --arg xfs "$(first mkfs.xfs -V)" --arg mariadb "$(first mariadbd --version)" '
        {lacuna: $lacuna, commit: $commit, rustc: $rustc, system: $system, "mkfs.ext4": $ext4, "mkfs.xfs": $xfs,
         mariadb: $mariadb} | map_values(if . == "" then "not there" else . end)'
}
