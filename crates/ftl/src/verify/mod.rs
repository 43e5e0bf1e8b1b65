//! Verifying that mapped data is what was written.

mod check;
mod scrub;
pub(crate) mod sweep;

use std::sync::Arc;

pub use scrub::{Damage, Scrub};

use crate::{
    Lba, Result, SECTOR,
    addr::CHUNK_BYTES,
    checkpoint::Checkpointer,
    log::Journal,
    map::SharedMap,
    media::Volume,
    paging::{Base, PagedMap},
    read::{READ_BYTES, Reader},
    reuse::Reuse,
    verify::sweep::{Ranges, Sweep, Swept},
};

/// Verifies everything, while the store stays in use.
pub(crate) struct Verifier {
    volume: Arc<Volume>,
    map: Arc<SharedMap>,
    journal: Arc<Journal>,
    pages: Arc<PagedMap>,
    reader: Arc<Reader>,
    reuse: Arc<Reuse>,
    checkpointer: Arc<Checkpointer>,
}

impl Verifier {
    pub(crate) fn new(
        base: Base,
        reader: Arc<Reader>,
        reuse: Arc<Reuse>,
        checkpointer: Arc<Checkpointer>,
    ) -> Verifier {
        let Base { volume, map, journal, pages } = base;
        Verifier { volume, map, journal, pages, reader, reuse, checkpointer }
    }

    /// See [`crate::Ftl::sweep_sectors`].
    pub(crate) fn sweep_sectors(
        &self,
        ranges: Ranges<'_>,
        plan_extents: usize,
        mut visit: impl FnMut(Lba, Result<&[u8; SECTOR]>),
    ) -> Result<()> {
        self.journal.must_not_be_stopped()?;
        self.volume.must_have_key()?;
        let mut space = [0; CHUNK_BYTES];
        let mut sweep = Sweep::in_plans(&self.reader, ranges, READ_BYTES, plan_extents);
        let mut outcome = Ok(());
        let mut goes_on = true;
        while goes_on && outcome.is_ok() {
            goes_on = sweep.step(|swept| match swept {
                Swept::Extent((lba, _), Ok(stored)) => {
                    for (index, data) in (0..).zip(stored.data(&mut space).chunks(SECTOR)) {
                        let mut sector = [0; SECTOR];
                        sector[..data.len()].copy_from_slice(data);
                        visit(Lba(lba.0 + index), Ok(&sector));
                    }
                }
                Swept::Extent((lba, extent), Err(_)) if extent.sectors > 1 => {
                    // Each sector with an error of its own.
                    let lbas: Vec<_> = (lba.0..lba.0 + u64::from(extent.sectors)).map(Lba).collect();
                    let visited = self.reader.visit_sectors(&lbas, &mut visit);
                    outcome = std::mem::replace(&mut outcome, Ok(())).and(visited);
                }
                Swept::Extent((lba, _), Err(error)) => visit(*lba, Err(error)),
                Swept::Unknown(_, error) => outcome = Err(error),
            })?;
        }
        outcome
    }
}
