//! The batches and flushes of a store, to judge what a damaged copy of it returns later.

use std::sync::Arc;

use lacuna_device::BlockDevice;
use lacuna_ftl::{Error, Ftl, Lba, Lost, Options, Remains, SECTOR};

use super::{Change, Model};

/// The content that each sector reads as; none where damage is reported.
pub(crate) type Found = Vec<Option<[u8; SECTOR]>>;

/// The batches that a store accepted, in order, and its flushes.
#[derive(Clone)]
pub(crate) struct History {
    /// The space after all batches.
    pub(crate) model: Model,
    batches: Vec<Vec<Change>>,
    /// Number of batches at each flush that was the first after some.
    flushes: Vec<usize>,
}

impl History {
    pub(crate) fn new(sectors: u64) -> History {
        History { model: Model::new(sectors), batches: Vec::new(), flushes: Vec::new() }
    }

    /// Number of batches.
    pub(crate) fn batches(&self) -> usize {
        self.batches.len()
    }

    pub(crate) fn accepted(&mut self, batch: Vec<Change>) {
        self.model.apply(&batch);
        self.batches.push(batch);
    }

    pub(crate) fn flushed(&mut self) {
        if self.flushes.last() != Some(&self.batches.len()) {
            self.flushes.push(self.batches.len());
        }
    }

    /// Whether `found` is a permitted state of the reopened store: the result of a prefix that contains everything up
    /// to the flush before the last.
    pub(crate) fn is_late_prefix(&self, found: &Found) -> bool {
        self.is_prefix_from(self.flushes.iter().rev().nth(1).copied().unwrap_or(0), found)
    }

    /// Whether `found` is the result of the first batches, at least `promised` of them.
    fn is_prefix_from(&self, promised: usize, found: &Found) -> bool {
        let mut model = Model::new(self.model.sectors());
        (0..=self.batches.len()).any(|count| {
            count.checked_sub(1).into_iter().for_each(|last| model.apply(&self.batches[last]));
            count >= promised && first_wrong(found, &model).is_none()
        })
    }

    /// First sector that reads as something that it never held.
    pub(crate) fn first_foreign(&self, found: &Found) -> Option<usize> {
        let mut model = Model::new(self.model.sectors());
        let mut known: Vec<bool> = found.iter().map(|s| s.is_none_or(|s| s == [0; SECTOR])).collect();
        for batch in &self.batches {
            model.apply(batch);
            for (lba, known) in known.iter_mut().enumerate() {
                *known |= found[lba].is_some_and(|sector| sector == model.sector(lba as u64));
            }
        }
        known.iter().position(|known| !known)
    }
}

/// Outcomes of salvage.
#[derive(Debug, Default)]
pub(crate) struct Salvages {
    /// Stores that open; nothing was missing.
    pub(crate) sound: u64,
    /// Stores that do not open, of which a part was read.
    pub(crate) salvaged: u64,
    /// Those of them in which everything readable was as after the last batch.
    pub(crate) newest: u64,
    /// Stores without a superblock to begin with.
    pub(crate) hopeless: u64,
}

impl Salvages {
    /// Salvages the store on `device` before it is opened: everything readable must be the result of some prefix of the
    /// batches. Returns whether nothing is missing, which must be so if and only if the store opens.
    pub(crate) fn judge(&mut self, device: &Arc<dyn BlockDevice>, history: &History, what: &str) -> bool {
        let Ok((ftl, missing)) = Ftl::salvage(device.clone(), Options::default()) else {
            self.hopeless += 1;
            return false;
        };
        if missing.is_empty() {
            self.sound += 1;
            return true;
        }
        let read = |lba| {
            let mut sector = [0xee; SECTOR];
            ftl.read(Lba(lba), &mut sector).ok().map(|()| sector)
        };
        let found = (0..history.model.sectors()).map(read).collect();
        assert!(history.is_prefix_from(0, &found), "{what}: {missing:?}");
        assert!(read_past_damage(&ftl, history.model.sectors()) == found, "{what}");
        self.salvaged += 1;
        self.newest += u64::from(first_wrong(&found, &history.model).is_none());
        false
    }
}

/// The same as one read of each sector, by few large ones.
fn read_past_damage(ftl: &Ftl, sectors: u64) -> Found {
    let mut found: Found = (0..sectors).map(|_| Some([0; SECTOR])).collect();
    let mut at = Lba(0);
    while at.0 < sectors {
        let Remains { mapped, lost } = ftl.read_past_damage(at..Lba(sectors), 100 << 10).expect("goes on");
        for (start, data) in mapped.runs {
            let (data, _) = data.as_chunks();
            (start.0..).zip(data).for_each(|(lba, sector)| found[lba as usize] = Some(*sector));
        }
        for Lost { range, .. } in lost {
            (range.start.0..range.end.0).for_each(|lba| found[lba as usize] = None);
        }
        assert!(mapped.end > at);
        at = mapped.end;
    }
    found
}

/// The error names a place on a device of `bytes`.
pub(crate) fn assert_names_the_place(error: &Error, bytes: u64) {
    match error {
        Error::Corrupt { what, at, .. } => assert!(what.contains("device") && *at < bytes, "{error}"),
        other => panic!("{other}"),
    }
}

/// Reads `sectors` sectors one by one. Damage must be reported with its place on a device of `bytes`.
pub(crate) fn read_all(ftl: &Ftl, sectors: u64, bytes: u64) -> Found {
    let read = |lba| {
        let mut sector = [0xee; SECTOR];
        let result = ftl.read(Lba(lba), &mut sector);
        result.inspect_err(|error| assert_names_the_place(error, bytes)).ok().map(|()| sector)
    };
    (0..sectors).map(read).collect()
}

pub(crate) fn has_errors(found: &Found) -> bool {
    found.iter().any(Option::is_none)
}

/// First sector that reads as something else than in the model.
pub(crate) fn first_wrong(found: &Found, model: &Model) -> Option<usize> {
    let is_wrong = |(lba, sector): (usize, &Option<[u8; SECTOR]>)| {
        sector.is_some_and(|sector| sector != model.sector(lba as u64))
    };
    found.iter().enumerate().position(is_wrong)
}
