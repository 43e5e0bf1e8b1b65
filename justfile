# `just` lists the recipes. Each calls a script that works without just.

_list:
    @{{ just_executable() }} --list --unsorted

# Format, references, layers, clippy and fast units: less than two minutes once everything has been built
check:
    ./check

# All tests of the workspace; `just test --nightly` for hours of random cases
test *ARGS:
    ./test {{ ARGS }}

# Everything that must hold before a merge: about half an hour
ci:
    .ci/run

# LinkBench on plain and compressed tables, two minutes
demo *ARGS:
    ./demo {{ ARGS }}

# Run again one random case that failed: just seed lacuna-ftl any_cut 3182
seed CRATE TEST SEED:
    LACUNA_SEED={{ SEED }} LACUNA_CASES=1 cargo test -p {{ CRATE }} {{ TEST }} -- --nocapture

# Every fuzz target for some seconds, or the named ones: just fuzz 60 ftl_record
fuzz *ARGS:
    .ci/fuzz {{ ARGS }}

# The oldest compiler that is promised
msrv:
    .ci/msrv

# Paths, functions and headings that documents name
links:
    .ci/links

# The crates' documentation, in a browser
doc:
    cargo doc --workspace --no-deps --open

# The chart of README from its figures
chart:
    docs/charts/draw > docs/charts/linkbench.svg
