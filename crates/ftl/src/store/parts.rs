//! The parts of an open store.

use std::sync::Arc;

use lacuna_device::{BlockDevice, Process};

use crate::{
    Options, Result,
    checkpoint::Checkpointer,
    format::LogHeader,
    gc::Collector,
    maintenance::Maintenance,
    media::ring::Ring,
    paging::Base,
    read::{ChunkCache, Reader},
    recovery::{self, Losses},
    reuse::Reuse,
    sync::Mutex,
    verify::Verifier,
    write::Writer,
};

/// The parts of an open store, each of which knows those above it only.
pub(crate) struct Store {
    pub(super) base: Base,
    pub(super) reader: Arc<Reader>,
    pub(super) reuse: Arc<Reuse>,
    pub(super) checkpointer: Arc<Checkpointer>,
    pub(super) collector: Arc<Collector>,
    pub(super) maintenance: Arc<Maintenance>,
    pub(super) writer: Writer,
    pub(super) verifier: Verifier,
    /// The process that opened it.
    pub(super) process: Process,
    /// The log device, until flushes go there.
    ring: Mutex<Option<(Ring, LogHeader)>>,
}

impl Store {
    /// Recovers the store on `device`, apart from damage that `losses` lets pass. Nothing of that is permanent yet.
    pub(super) fn open(device: Arc<dyn BlockDevice>, options: &Options, losses: &Losses) -> Result<Store> {
        let recovery::Opened { volume, superblock, log, map, lost_headers, ring } =
            recovery::open(device, options, losses)?;
        let base = Base::new(volume, map, log, options.map_memory);
        let cache = ChunkCache::new(options.chunk_cache).map(Arc::new);
        let reader = Arc::new(Reader::new(base.clone(), cache.clone()));
        let reuse = Arc::new(Reuse::new(base.clone(), options.discard, lost_headers));
        let checkpointer = Arc::new(Checkpointer::new(base.clone(), reuse.clone(), superblock));
        let collector =
            Arc::new(Collector::new(base.clone(), reader.clone(), reuse.clone(), checkpointer.clone()));
        let maintenance = Arc::new(Maintenance::new(
            base.clone(),
            reuse.clone(),
            checkpointer.clone(),
            collector.clone(),
            options.background,
        ));
        let writer = Writer::new(
            base.clone(),
            maintenance.clone(),
            checkpointer.clone(),
            options.elide_zero_tails,
            cache,
        );
        let verifier = Verifier::new(base.clone(), reader.clone(), reuse.clone(), checkpointer.clone());
        Ok(Store {
            process: Process::current(),
            base,
            reader,
            reuse,
            checkpointer,
            collector,
            maintenance,
            writer,
            verifier,
            ring: Mutex::new(ring),
        })
    }

    /// Makes the recovery permanent.
    pub(super) fn settle(&self) -> Result<()> {
        let mut ring = self.ring.lock().take();
        let mut announce = |epoch| match &mut ring {
            Some((ring, header)) => self.base.journal.announce(ring, header, epoch),
            None => Ok(()),
        };
        let epoch = self.base.journal.lock().epoch();
        announce(epoch)?;
        self.checkpointer.checkpoint()?;
        self.collector.restore(announce)?;
        match ring {
            Some((ring, header)) => self.base.journal.begin_logging(ring, header.sequence),
            None => Ok(()),
        }
    }

    /// Flushes and writes a checkpoint, and gives segments that are not used soon back to the host.
    pub(super) fn close(&self) -> Result<()> {
        self.checkpointer.checkpoint()?;
        self.maintenance.release_all();
        Ok(())
    }
}
