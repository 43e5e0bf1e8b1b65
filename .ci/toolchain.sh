# Sourced by ./demo, ./test and .ci/run: makes sure that there are a C compiler and cargo.
# Says what it installs before it does.

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    echo "Installing with apt-get: ${missing[*]}" >&2
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >&2
}

need_toolchain() {
    # gcc builds the C libraries lz4 and zstd.
    command -v cc >/dev/null 2>&1 || need_packages gcc libc6-dev
    if ! command -v cargo >/dev/null 2>&1 && [ -x "$HOME/.cargo/bin/cargo" ]; then
        export PATH="$HOME/.cargo/bin:$PATH"
    fi
    if ! command -v cargo >/dev/null 2>&1; then
        echo "Installing rustup from https://sh.rustup.rs into $HOME/.cargo and $HOME/.rustup" >&2
        echo "(the Rust of Debian 12 is too old). It leaves your shell's start files alone:" >&2
        echo "for cargo commands of your own say:  . $HOME/.cargo/env" >&2
        need_packages curl ca-certificates
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -q -y --no-modify-path --profile minimal --default-toolchain none
        export PATH="$HOME/.cargo/bin:$PATH"
    fi
    # rustup installs the toolchain of rust-toolchain.toml when it is first used.
    if ! cargo --version >&2; then
        echo "cargo does not run; the toolchain named in rust-toolchain.toml is needed." >&2
        exit 1
    fi
}
