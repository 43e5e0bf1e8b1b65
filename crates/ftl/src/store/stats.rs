//! State and traffic of a store.

use super::parts::Store;
use crate::{
    Stats,
    log::{AppendPoint, Claim},
    paging::Base,
    space::Space,
};

impl Store {
    pub(super) fn stats(&self) -> Stats {
        let Base { volume, map, journal, pages } = &self.base;
        let log = journal.lock();
        let map = map.read();
        let total = map.total();
        let segments = volume.space().segments as u64;
        let free = log.free().len() as u64;
        let counters = log.counters();
        let waiting = self.reuse.waiting(&log, &map);
        let reserved = log.left_by(Claim::Fresh);
        let residence = map.residence();
        let (map_faults, map_evictions) = pages.faults_and_evictions();
        let segment_bytes = volume.space().segment_bytes as u64;
        let log_use = log.log_use().unwrap_or_default();
        let cache = self.reader.cache_use();
        Stats {
            capacity_bytes: self.checkpointer.superblock().capacity_bytes,
            segment_bytes,
            segments,
            free_segments: free,
            waiting_for_flush: (waiting.flush + waiting.ready + waiting.reader) as u64,
            waiting_for_checkpoint: waiting.checkpoint as u64,
            reserved_segments: reserved as u64,
            open_segments: log.positions().iter().flatten().count() as u64,
            open_free_bytes: AppendPoint::all().map(|point| log.bytes_left(point) as u64).sum(),
            allocated_bytes: total.bytes,
            store_bytes: (segments - free) * segment_bytes,
            touched_bytes: log.touched() as u64 * segment_bytes,
            target_bytes: log.target_segments() as u64 * segment_bytes,
            live_bytes: Space::cost(total),
            live_limit_bytes: log.limits().grow,
            extents: total.extents,
            map_memory_bytes: map.memory_bytes(),
            summary_memory_bytes: log.summary_bytes(),
            chunk_cache_bytes: cache.bytes,
            chunk_cache_hits: cache.hits,
            chunk_cache_misses: cache.misses,
            map_leaves: residence.leaves,
            map_leaves_resident: residence.resident,
            map_faults,
            map_evictions,
            map_segments: log.map_segments() as u64,
            data_stream: counters.data,
            log_stream: counters.log,
            host_bytes: counters.data.host_bytes + counters.log.host_bytes,
            log_bytes: counters.data.written_bytes + counters.log.written_bytes,
            gc_bytes: counters.gc_bytes,
            checkpoint_bytes: counters.checkpoint_bytes,
            prepared_bytes: counters.prepared_bytes,
            batches: counters.data.batches + counters.log.batches,
            unflushed_batches: log.unflushed(),
            flushes: counters.flushes,
            gc_segments: counters.gc_segments,
            retained: counters.retained,
            checkpoints: counters.checkpoints,
            replayed_batches: counters.replayed_batches,
            corrupt_chunks: counters.corrupt_chunks,
            log_device_bytes: log_use.capacity_bytes,
            log_device_used_bytes: log_use.used_bytes,
            log_device_written_bytes: log_use.written_bytes,
            log_device_flushes: log_use.flushes,
            log_device_is_volatile: log_use.is_volatile,
            device: volume.device().stats(),
            io_engine: volume.device().io_engine().unwrap_or("none"),
        }
    }
}
