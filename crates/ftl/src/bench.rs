//! The map for benches/map.rs, which cannot reach private items. Not part of the interface.

#![allow(missing_docs)]

use std::ops::Range;

use crate::{
    Lba, Seq,
    addr::{CHUNK_SECTORS, PhysAddr, SegNo},
    map::{Map, Snapshot},
};

const SEGMENTS: u32 = 4096;

/// A map that is used in whole chunks.
pub struct MapBench(Map);

/// The leaves of a map at one moment.
pub struct SnapshotBench(Snapshot);

impl SnapshotBench {
    /// The walk of a checkpoint over them, without a lock; returns how many there are.
    pub fn walk(&self) -> usize {
        self.0.leaves(|_| false).len()
    }
}

impl Default for MapBench {
    fn default() -> MapBench {
        MapBench(Map::new(SEGMENTS))
    }
}

impl MapBench {
    /// Maps a chunk to 16 KiB, or to a varying part of them, written by batch `birth`.
    pub fn write(&mut self, chunk: u64, birth: u64, is_whole: bool) {
        let scattered = (birth as u32).wrapping_mul(2_654_435_769);
        let phys = PhysAddr { segment: SegNo((birth / 4096) as u32 % SEGMENTS), grain: scattered >> 8 };
        let stored = if is_whole { 16384 } else { (1 + scattered % 1024) * 16 } as u16;
        self.0.write(Lba(chunk * CHUNK_SECTORS), CHUNK_SECTORS, phys, stored, scattered, Seq(birth));
    }

    /// Unmaps sectors.
    pub fn trim(&mut self, sectors: Range<u64>) {
        self.0.trim(sectors);
    }

    /// The place of a chunk.
    pub fn find(&self, chunk: u64) -> Option<u32> {
        let range = chunk * CHUNK_SECTORS..(chunk + 1) * CHUNK_SECTORS;
        let first = self.0.extents(range).next()?;
        first.ok().map(|(_, extent)| extent.phys.grain)
    }

    /// The sum of the places of `chunks`, which are looked up in groups.
    pub fn find_each(&self, chunks: &[u64]) -> u64 {
        let range = |chunk: &u64| chunk * CHUNK_SECTORS..(chunk + 1) * CHUNK_SECTORS;
        let ranges: Vec<_> = chunks.iter().map(range).collect();
        let mut sum = 0;
        self.0.extents_of_each(&ranges, |_, found| {
            sum += found.map_or(0, |(_, extent)| u64::from(extent.phys.grain));
            true
        });
        sum
    }

    /// As [`MapBench::write`] for each of `chunks`, with consecutive births from `birth` on.
    pub fn write_each(&mut self, chunks: &[u64], birth: u64, is_whole: bool) {
        self.0.load_ahead(chunks.iter().map(|chunk| chunk * CHUNK_SECTORS..(chunk + 1) * CHUNK_SECTORS));
        for (chunk, birth) in chunks.iter().zip(birth..) {
            self.write(*chunk, birth, is_whole);
        }
    }

    /// The snapshot of the leaves that a checkpoint takes with all locks held.
    pub fn snapshot(&self) -> SnapshotBench {
        SnapshotBench(self.0.snapshot())
    }

    pub fn extents(&self) -> u64 {
        self.0.total().extents
    }

    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }
}
