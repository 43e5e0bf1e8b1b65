# shellcheck shell=bash
# A Cassandra node of a script's own, sourced by it: the jars come from Maven Central, and the node and its clients live
# in a network namespace, so that they take no port of this machine.
#
#   cassandra_fetch DIR         downloads the jars of pom.xml into DIR, unless they are there
#   cassandra_network           makes the network namespace
#   cassandra_start DATA [LINE...]    starts the node with everything below DATA, LINEs added to cassandra.yaml, and waits
#                               until it listens
#   cassandra_load ARGUMENT...  runs Load.java in the namespace
#   cassandra_stop              lets it end in order
#   cassandra_remove            ends it at once and removes the namespace; idempotent
#
# Wants `work`, a directory for the configuration and the log.

CASSANDRA_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CASSANDRA_JARS=
CASSANDRA_PID=
CASSANDRA_LOAD_PID=
CASSANDRA_NETWORK=lacuna-cassandra-$$
# The heap of the node. Its memory-mapped files and buffers outside of the heap come on top.
CASSANDRA_HEAP=${CASSANDRA_HEAP:-1G}

# What Cassandra's own conf/jvm17-server.options opens of the Java runtime.
CASSANDRA_JAVA=(
    --add-exports=java.base/{java.lang.ref,jdk.internal.misc,jdk.internal.ref,sun.nio.ch}"=ALL-UNNAMED"
    --add-exports=java.management.rmi/com.sun.jmx.remote.internal.rmi=ALL-UNNAMED
    --add-exports=java.rmi/sun.rmi.{registry,server,transport.tcp}"=ALL-UNNAMED"
    --add-exports=java.sql/java.sql=ALL-UNNAMED
    --add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED
    --add-opens=java.base/{java.io,java.lang,java.lang.module,java.lang.reflect,java.math,java.net}"=ALL-UNNAMED"
    --add-opens=java.base/{java.nio,java.util,java.util.concurrent,java.util.concurrent.atomic}"=ALL-UNNAMED"
    --add-opens=java.base/{jdk.internal.loader,jdk.internal.math,jdk.internal.module,jdk.internal.ref}"=ALL-UNNAMED"
    --add-opens=java.base/{jdk.internal.reflect,jdk.internal.util.jar,sun.nio.ch}"=ALL-UNNAMED"
    --add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED
)

cassandra_fetch() {
    CASSANDRA_JARS=$1
    [ ! -e "$1/complete" ] || return 0
    echo "fetching Cassandra into $1" >&2
    mvn --quiet --batch-mode --file "$CASSANDRA_HOME/pom.xml" dependency:copy-dependencies -DoutputDirectory="$1" >&2
    touch "$1/complete"
}

cassandra_network() {
    ip netns add "$CASSANDRA_NETWORK"
    ip -n "$CASSANDRA_NETWORK" link set lo up
}

# Small memtables and a small commit log: a load of minutes has many flushes and compactions, as one of weeks with large
# ones. Everything else is Cassandra's default; the commit log is synced every 10 s.
cassandra_configure() {
    local data=$1
    shift
    cat <<END
cluster_name: lacuna
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider: [{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{seeds: 127.0.0.1}]}]
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
data_file_directories: [$data/data]
commitlog_directory: $data/commitlog
saved_caches_directory: $data/saved_caches
hints_directory: $data/hints
cdc_raw_directory: $data/cdc_raw
commitlog_sync: periodic
commitlog_sync_period: 10000ms
commitlog_total_space: 128MiB
commitlog_segment_size: 16MiB
memtable_heap_space: 96MiB
memtable_offheap_space: 96MiB
file_cache_size: 32MiB
concurrent_compactors: 1
compaction_throughput: 0MiB/s
disk_failure_policy: die
commit_failure_policy: die
write_request_timeout: 60000ms
read_request_timeout: 60000ms
END
    printf '%s\n' "$@"
}

cassandra_start() {
    local tries
    cassandra_configure "$@" >"$work/cassandra.yaml"
    : >"$work/cassandra.log"
    nsenter --net="/run/netns/$CASSANDRA_NETWORK" java -Xms"$CASSANDRA_HEAP" -Xmx"$CASSANDRA_HEAP" \
        -XX:+UseG1GC -XX:+ExitOnOutOfMemoryError -javaagent:"$(echo "$CASSANDRA_JARS"/jamm-*.jar)" "${CASSANDRA_JAVA[@]}" \
        -Dcassandra.config="file://$work/cassandra.yaml" -Dcassandra.storagedir="$1" -Dcassandra-foreground=yes \
        -Dlogback.configurationFile="$CASSANDRA_HOME/logback.xml" -Dcassandra.ring_delay_ms=1000 \
        -Dcassandra.skip_wait_for_gossip_to_settle=0 -Djava.io.tmpdir="$work" \
        -cp "$CASSANDRA_JARS/*" org.apache.cassandra.service.CassandraDaemon >>"$work/cassandra.log" 2>&1 &
    CASSANDRA_PID=$!
    for tries in $(seq 600); do
        if grep -q 'Starting listening for CQL clients' "$work/cassandra.log"; then return; fi
        kill -0 "$CASSANDRA_PID" 2>/dev/null || break
        sleep 0.5
    done
    tail -30 "$work/cassandra.log" >&2
    echo "$0: Cassandra does not listen after $((tries / 2)) s" >&2
    exit 1
}

# In the background, so that a signal need not wait for its end.
cassandra_load() {
    nsenter --net="/run/netns/$CASSANDRA_NETWORK" java -Xmx512M -cp "$CASSANDRA_JARS/*" \
        -Dlogback.configurationFile="$CASSANDRA_HOME/logback.xml" "$CASSANDRA_HOME/Load.java" "$@" 2>"$work/load.log" &
    CASSANDRA_LOAD_PID=$!
    wait "$CASSANDRA_LOAD_PID" || {
        tail -30 "$work/load.log" >&2
        echo "$0: the load failed" >&2
        exit 1
    }
    CASSANDRA_LOAD_PID=
}

cassandra_stop() {
    kill -TERM "$CASSANDRA_PID"
    wait "$CASSANDRA_PID" || true # Java leaves with 143
    CASSANDRA_PID=
}

cassandra_remove() {
    local pid
    for pid in $CASSANDRA_LOAD_PID $CASSANDRA_PID; do
        kill -KILL "$pid" || true
        wait "$pid" || true
    done 2>/dev/null
    CASSANDRA_LOAD_PID='' CASSANDRA_PID=''
    ip netns del "$CASSANDRA_NETWORK" 2>/dev/null || true
}
