#!/usr/bin/env bash
# 1,000 files open at once, 64 clients in parallel.
. "$(dirname "$0")/lib.sh"
need_fuse
build
start 512M --threads 16

ulimit -n 4096
for i in $(seq 1000); do
    exec {fd}<>"$mnt/open$i"
    echo "$i" >&"$fd"
    fds[i]=$fd
done
rm "$mnt"/open*
for i in $(seq 1000); do
    [ "$(cat "/proc/self/fd/${fds[i]}")" = "$i" ] || fail "open file $i"
    fd=${fds[i]}
    exec {fd}>&-
done
clients=()
for client in $(seq 64); do
    (
        mkdir "$mnt/client$client"
        cd "$mnt/client$client"
        for i in $(seq 10); do
            head -c 100000 /dev/urandom >"$i"
            cp "$i" "$i.copy"
            cmp "$i" "$i.copy"
            mv "$i.copy" "$i.moved"
            sync "$i.moved"
        done
        [ "$(ls | wc -l)" = 20 ]
    ) &
    clients+=($!)
done
for client in "${clients[@]}"; do wait "$client" || fail "a client failed"; done
rm -r "$mnt"/client*
[ "$(ls -A "$mnt" | wc -l)" = 0 ] || fail "something is left"
check_store
echo "many: passed"
