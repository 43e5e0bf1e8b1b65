# shellcheck shell=bash
# The kinds of tables and switches that benchmarks of the engine compare, by name. Sourced by the scripts beside it.
#
#   plain, page, row, adaptive the kinds of tables
#   row-lz4                    row tables by LZ4, as page tables are by default
#   page-ALGORITHM, page-none  page tables compressed by it, or by nothing
#   page-zstd-LEVEL            or by zstd at that level
#   adaptive-LEVEL             pages that rest by zstd at that level
#   *-doublewrite              every page is written twice
#   *-cached                   two thirds of the pool's memory hold pages as they are stored
#   row-papers                 that, and a single flusher: the baseline of the NVM Compression papers
#   page-no-trim, page-no-packing, page-no-checksums, page-no-atomic, page-one-flusher: all but one
#   NAME@N                     with N requesters
#
# variant_options NAME        sets the array `tables` to the options of `lacuna linkbench` and `lacuna tpcc`, or fails
variant_options() {
    local name=${1%@*} requesters=()
    if [[ $1 == *@* ]]; then requesters=(--requesters "${1#*@}"); fi
    case $name in
        plain | page | row | adaptive) tables=(--tables "$name") ;;
        row-lz4) tables=(--tables row --row-algorithm lz4) ;;
        plain-doublewrite | page-doublewrite | row-doublewrite) tables=(--tables "${name%-*}" --doublewrite on) ;;
        plain-cached | page-cached | row-cached) tables=(--tables "${name%-*}" --chunk-cache 67%) ;;
        row-papers) tables=(--tables row --doublewrite on --flush-threads 1) ;;
        page-no-trim) tables=(--tables page --trim off) ;;
        page-no-packing) tables=(--tables page --packing off) ;;
        page-no-checksums) tables=(--tables page --checksums off) ;;
        page-no-atomic) tables=(--tables page --atomic-writes off) ;;
        page-one-flusher) tables=(--tables page --flush-threads 1) ;;
        page-none | page-lz4 | page-zstd | page-zlib | page-lzo | page-snappy | page-bzip2 | page-lzma)
            tables=(--tables page --algorithm "${name#page-}")
            ;;
        page-zstd-[1-9]*) tables=(--tables page --algorithm zstd --level "${name##*-}") ;;
        adaptive-[1-9]*) tables=(--tables adaptive --level "${name##*-}") ;;
        *)
            echo "$0: unknown variant $1: bench/variants.sh lists them" >&2
            return 1
            ;;
    esac
    tables+=("${requesters[@]}")
}
