//! Data on its way to the store, compressed as its file says.
//!
//! The thread that writes compresses, before the first attempt to submit the batch: it holds the sectors that it writes
//! and no other lock, and an attempt that must be made again compresses nothing again (`commit.rs`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use lacuna_ftl::{Encoded, Op, SECTOR};

use super::{Inodes, Node, Target, shrinking::Attempts};
use crate::format::{Compression, Ino, Inode};

/// Shorter writes are not compressed: there is no sector to be saved.
const BYTES_MIN: usize = 2 * SECTOR;

/// What compression did since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionStats {
    /// Bytes that became shorter.
    pub shortened_bytes: u64,
    /// What these became.
    pub stored_bytes: u64,
    /// Chunks that would not become a sector shorter.
    pub in_vain_chunks: u64,
    /// Chunks that were not tried because those before them in their file did not shrink.
    pub skipped_chunks: u64,
    /// Bytes that were compressed again because nobody had written them for long.
    pub recompressed_bytes: u64,
    /// What these became.
    pub recompressed_stored_bytes: u64,
}

/// The same while it is counted.
#[derive(Default)]
pub(super) struct Counters {
    shortened_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    in_vain_chunks: AtomicU64,
    skipped_chunks: AtomicU64,
    recompressed_bytes: AtomicU64,
    recompressed_stored_bytes: AtomicU64,
}

/// Changes of data, each with what it was compressed to.
pub(super) struct Compressed<'a> {
    ops: &'a [Op<'a>],
    /// Nothing for what is stored as it is.
    encoded: Vec<Option<Encoded<'a>>>,
}

impl<'a> Compressed<'a> {
    /// The changes to submit.
    pub(super) fn ops(&self) -> Vec<Op<'_>> {
        let mut ops: Vec<Op<'_>> = Vec::with_capacity(self.ops.len());
        for (op, encoded) in self.ops.iter().zip(&self.encoded) {
            ops.push(encoded.as_ref().map_or(*op, Op::Encoded));
        }
        ops
    }

    /// Whether nothing became shorter.
    pub(super) fn is_plain(&self) -> bool {
        self.encoded.iter().all(Option::is_none)
    }
}

impl Inodes {
    /// The compression of a file or directory, by its own inode, else the mount, else the store.
    pub(crate) fn compression_of(&self, node: &Node) -> Compression {
        node.compression().or(self.mount_compression.get()).or(self.nodes.store_compression.get())
    }

    /// What files have that say nothing themselves.
    pub(crate) fn default_compression(&self) -> Compression {
        self.mount_compression.get().or(self.nodes.store_compression.get())
    }

    /// The default of the store.
    pub(crate) fn store_compression(&self) -> Compression {
        self.nodes.store_compression.get()
    }

    /// Called once, before anything is written.
    pub(crate) fn note_root(&self, root: &Inode) {
        self.nodes.store_compression.set(root.compression());
    }

    /// Sets the default of the mount, which comes before that of the store.
    pub(crate) fn set_mount_compression(&self, compression: Compression) {
        self.mount_compression.set(compression);
    }

    /// See [`crate::Nvmfs::compression_stats`].
    pub(crate) fn compression_stats(&self) -> CompressionStats {
        let Counters { shortened_bytes, stored_bytes, in_vain_chunks, skipped_chunks, .. } = &self.compressed;
        CompressionStats {
            recompressed_bytes: self.compressed.recompressed_bytes.load(Relaxed),
            recompressed_stored_bytes: self.compressed.recompressed_stored_bytes.load(Relaxed),
            shortened_bytes: shortened_bytes.load(Relaxed),
            stored_bytes: stored_bytes.load(Relaxed),
            in_vain_chunks: in_vain_chunks.load(Relaxed),
            skipped_chunks: skipped_chunks.load(Relaxed),
        }
    }

    /// Compresses what `ops` write to `targets`, which come in order of their numbers. Of a rewrite each chunk is tried.
    pub(super) fn compress<'a>(
        &self,
        ops: &'a [Op<'a>],
        targets: &'a [Target],
        is_rewrite: bool,
    ) -> Compressed<'a> {
        let encoded = ops.iter().map(|op| {
            let Op::Write { lba, data } = *op else { return None };
            let (ino, _) = Ino::of(lba);
            let index = targets.binary_search_by_key(&ino, |target| target.node.ino).ok()?;
            let node = &targets[index].node;
            let codec = self.compression_of(node).codec().filter(|_| data.len() >= BYTES_MIN)?;
            let shrinking = (!is_rewrite).then_some(&node.shrinking);
            let mut attempts = Attempts::new(shrinking, codec.algorithm);
            let encoded = Encoded::choosing(lba, data, codec, &mut attempts);
            self.note_compressed(&encoded, &attempts);
            (!encoded.is_plain()).then_some(encoded)
        });
        Compressed { ops, encoded: encoded.collect() }
    }

    /// Counts what was compressed again.
    pub(crate) fn note_recompressed(&self, encoded: &[Encoded<'_>]) {
        for (from, to) in encoded.iter().map(Encoded::shortened) {
            self.compressed.recompressed_bytes.fetch_add(from, Relaxed);
            self.compressed.recompressed_stored_bytes.fetch_add(to, Relaxed);
        }
    }

    fn note_compressed(&self, encoded: &Encoded<'_>, attempts: &Attempts<'_>) {
        let (from, to) = encoded.shortened();
        let Counters { shortened_bytes, stored_bytes, in_vain_chunks, skipped_chunks, .. } = &self.compressed;
        for (counter, added) in [
            (shortened_bytes, from),
            (stored_bytes, to),
            (in_vain_chunks, attempts.in_vain),
            (skipped_chunks, attempts.skipped),
        ] {
            counter.fetch_add(added, Relaxed);
        }
    }
}
