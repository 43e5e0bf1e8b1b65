import com.datastax.driver.core.*;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The load of bench/cassandra-compare: inserts KEYS rows in the order of their keys, overwrites rows chosen uniformly
 * OVERWRITES times, waits until no compaction is left, and reads all rows back, of which each must be as it was
 * written last.
 *
 *   Load COMPRESSOR KEYS OVERWRITES SEED PID      COMPRESSOR as LZ4Compressor, or none; PID of the node
 *
 * Rows are of 1,000 bytes, of which LZ4 makes about half. Prints a line of JSON.
 */
public class Load {
    static final int ROW_BYTES = 1000;
    /** Writes on their way to the server at a time. */
    static final int IN_FLIGHT = 128;
    /** Compaction has ended when none was seen in so many looks, one a second. */
    static final int QUIET_LOOKS = 10;

    static Session session;
    static PreparedStatement insert;
    static int[] versions;
    static final Semaphore slots = new Semaphore(IN_FLIGHT);
    static final AtomicReference<Throwable> failure = new AtomicReference<>();

    /** What a row is by its key and version: half of it noise, half of it all alike. */
    static ByteBuffer row(int key, int version) {
        byte[] bytes = new byte[ROW_BYTES];
        byte[] noise = new byte[ROW_BYTES / 2];
        new Random(key * 1_000_003L + version).nextBytes(noise);
        System.arraycopy(noise, 0, bytes, 0, noise.length);
        Arrays.fill(bytes, noise.length, bytes.length, (byte) version);
        return ByteBuffer.wrap(bytes);
    }

    static void write(int key) throws InterruptedException {
        slots.acquire();
        ResultSetFuture written = session.executeAsync(insert.bind((long) key, row(key, ++versions[key])));
        written.addListener(() -> {
            try {
                written.getUninterruptibly();
            } catch (Throwable error) {
                failure.compareAndSet(null, error);
            }
            slots.release();
        }, Runnable::run);
        if (failure.get() != null) throw new IllegalStateException("a write failed", failure.get());
    }

    static void awaitWrites() throws InterruptedException {
        slots.acquire(IN_FLIGHT);
        slots.release(IN_FLIGHT);
        if (failure.get() != null) throw new IllegalStateException("a write failed", failure.get());
    }

    static void awaitCompactions() throws InterruptedException {
        for (int quiet = 0; quiet < QUIET_LOOKS; Thread.sleep(1000)) {
            boolean busy = session.execute("SELECT * FROM system_views.sstable_tasks").one() != null;
            quiet = busy ? 0 : quiet + 1;
        }
    }

    static void verify(int keys) {
        PreparedStatement select = session.prepare("SELECT value FROM bench.rows WHERE key = ?");
        ArrayDeque<ResultSetFuture> reads = new ArrayDeque<>();
        for (int key = 0, verified = 0; verified < keys; ) {
            while (key < keys && reads.size() < IN_FLIGHT) reads.add(session.executeAsync(select.bind((long) key++)));
            Row found = reads.remove().getUninterruptibly().one();
            if (found == null) throw new IllegalStateException("row " + verified + " is lost");
            if (!found.getBytes(0).equals(row(verified, versions[verified])))
                throw new IllegalStateException("row " + verified + " is not as it was written last");
            verified++;
        }
    }

    /** Bytes that a process handed to write(2) and its kin: files, and the little that it answers. */
    static long bytesWritten(String pid) throws java.io.IOException {
        for (String line : Files.readAllLines(Path.of("/proc", pid, "io")))
            if (line.startsWith("wchar: ")) return Long.parseLong(line.substring("wchar: ".length()));
        throw new IllegalStateException("the kernel counts no bytes of processes");
    }

    public static void main(String[] arguments) throws Exception {
        String compressor = arguments[0];
        int keys = Integer.parseInt(arguments[1]), overwrites = Integer.parseInt(arguments[2]);
        Random random = new Random(Long.parseLong(arguments[3]));
        versions = new int[keys];
        // Of a machine that has other things to do.
        SocketOptions patient = new SocketOptions().setConnectTimeoutMillis(120_000).setReadTimeoutMillis(120_000);
        PoolingOptions pooling = new PoolingOptions().setMaxQueueSize(IN_FLIGHT);
        try (Cluster cluster = Cluster.builder().addContactPoint("127.0.0.1").withSocketOptions(patient)
                .withPoolingOptions(pooling).withoutMetrics().build()) {
            session = cluster.connect();
            session.execute("CREATE KEYSPACE bench WITH replication = "
                    + "{'class': 'SimpleStrategy', 'replication_factor': 1}");
            String compression = compressor.equals("none") ? "{'enabled': false}" : "{'class': '" + compressor + "'}";
            session.execute("CREATE TABLE bench.rows (key bigint PRIMARY KEY, value blob) WITH compression = "
                    + compression);
            insert = session.prepare("INSERT INTO bench.rows (key, value) VALUES (?, ?)");
            long start = System.nanoTime();
            for (int key = 0; key < keys; key++) write(key);
            for (int i = 0; i < overwrites; i++) write(random.nextInt(keys));
            awaitWrites();
            double seconds = (System.nanoTime() - start) / 1e9;
            awaitCompactions();
            long written = bytesWritten(arguments[4]);
            verify(keys);
            long payload = (long) (keys + overwrites) * ROW_BYTES;
            System.out.printf(Locale.ROOT, "{\"payload_bytes\": %d, \"node_bytes\": %d, \"write_seconds\": %.1f, "
                    + "\"rows_verified\": %d}%n", payload, written, seconds, keys);
        }
    }
}
