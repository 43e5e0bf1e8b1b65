//! A sweep, step by step: see the documentation of the folder.

use std::ops::Range;

use super::survey::Survey;
use super::walk::{LEAVES_AT_ONCE, Walk};

use crate::{
    Error, Lba, Result, Seq,
    addr::PhysAddr,
    format::Extent,
    read::{NEAR_BYTES, Pinned, Reader, Stored},
};

/// Extents of a plan, about.
const PLAN_EXTENTS: usize = 1 << 21;

/// Extents of a piece, however short they are.
const PIECE_EXTENTS: usize = 1 << 14;

/// The first range of a sweep that ends behind an address. Ranges have an order, and do not overlap.
pub(crate) type Ranges<'a> = &'a dyn Fn(u64) -> Option<Range<u64>>;

/// Everything that is mapped.
pub(crate) fn everything(at: u64) -> Option<Range<u64>> {
    (at < u64::MAX).then_some(at..u64::MAX)
}

/// An extent as it lay when it was planned. They are ordered by their places.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Planned {
    phys: PhysAddr,
    lba: u64,
    crc: u32,
    shape: u32,
}

const _: () = assert!(size_of::<Planned>() == 24);

impl Planned {
    fn new((lba, extent): &(Lba, Extent)) -> Planned {
        Planned { phys: extent.phys, lba: lba.0, crc: extent.crc, shape: extent.shape() }
    }

    /// As it was planned, but for its birth.
    fn extent(&self) -> (Lba, Extent) {
        let Planned { phys, lba, crc, shape } = *self;
        let extent = Extent { phys, crc, birth: Seq(0), ..Extent::default() };
        (Lba(lba), extent.with_shape(shape).expect("the shape of an extent"))
    }
}

fn range_of((lba, extent): &(Lba, Extent)) -> Range<u64> {
    lba.0..lba.0 + u64::from(extent.sectors)
}

/// A result of a sweep.
pub(crate) enum Swept<'a> {
    /// An extent, and what is stored of it, or why its chunk is not what was written.
    Extent(&'a (Lba, Extent), Result<Stored<'a>>),
    /// The mapping there is unknown: a leaf of the map cannot be read.
    Unknown(Range<u64>, Error),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first walk over the map, if there are to be several.
    Survey,
    Plan,
    Read,
    End,
}

/// See the module.
pub(crate) struct Sweep<'a> {
    reader: &'a Reader,
    walk: Walk<'a>,
    /// About how much a piece reads.
    piece_bytes: usize,
    /// About how much is planned.
    plan_extents: usize,
    phase: Phase,
    survey: Option<Survey>,
    /// The slices of the survey that are in the window, and its next block.
    window: Range<usize>,
    block: usize,
    plan: Vec<Planned>,
    /// Segments of this generation and later ones were opened after the plan was begun.
    generation_next: u64,
    /// Nothing of the window is left to be planned.
    is_planned: bool,
    /// How much of the plan was read.
    read: usize,
}

impl<'a> Sweep<'a> {
    /// Begins a sweep over `ranges` that reads about `piece_bytes` with each step.
    pub(crate) fn new(reader: &'a Reader, ranges: Ranges<'a>, piece_bytes: usize) -> Sweep<'a> {
        Sweep::in_plans(reader, ranges, piece_bytes, PLAN_EXTENTS)
    }

    /// As [`Sweep::new`], with this many extents in a plan.
    pub(crate) fn in_plans(
        reader: &'a Reader,
        ranges: Ranges<'a>,
        piece_bytes: usize,
        plan_extents: usize,
    ) -> Sweep<'a> {
        let map = reader.map().read();
        let is_one_plan = map.total().extents <= plan_extents as u64;
        Sweep {
            reader,
            walk: Walk::new(reader, ranges),
            piece_bytes,
            plan_extents,
            phase: if is_one_plan { Phase::Plan } else { Phase::Survey },
            survey: (!is_one_plan).then(|| Survey::new(map.segments())),
            window: 0..0,
            block: 0,
            plan: Vec::new(),
            generation_next: 0,
            is_planned: false,
            read: 0,
        }
    }

    /// The leaves, if any, that the next step of a sweep over everything meets for the first time: the caller may check
    /// them beforehand.
    pub(crate) fn next_leaves(&self) -> Option<Range<u64>> {
        let is_first_walk =
            self.phase == Phase::Survey || (self.phase == Phase::Plan && self.survey.is_none());
        let at = self.walk.cursor;
        (is_first_walk && at < u64::MAX).then(|| at..self.reader.map().read().leaves_end(at, LEAVES_AT_ONCE))
    }

    /// Plans or reads some more, and passes the results to `found`; false at the end.
    pub(crate) fn step(&mut self, mut found: impl FnMut(Swept<'_>)) -> Result<bool> {
        match self.phase {
            Phase::Survey => self.survey_some(&mut found)?,
            Phase::Plan => self.plan_some(&mut found)?,
            Phase::Read => self.read_piece(&mut found)?,
            Phase::End => {}
        }
        Ok(self.phase != Phase::End)
    }

    fn survey_some(&mut self, found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        let Sweep { walk, survey, .. } = self;
        let survey = survey.as_mut().expect("the phase of a survey");
        let blocks = walk.next_blocks();
        walk.over(&blocks, found, |index, extents| survey.note(blocks[index].clone(), extents))?;
        if walk.is_through() {
            self.next_window();
        }
        Ok(())
    }

    /// Moves on to the next window, if there is one.
    fn next_window(&mut self) {
        self.block = 0;
        self.window = match &self.survey {
            Some(survey) => survey.window(self.window.end, self.plan_extents),
            None => 0..0,
        };
        self.phase = if self.window.is_empty() { Phase::End } else { Phase::Plan };
    }

    fn plan_some(&mut self, found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        let Sweep { walk, survey, window, block, plan, .. } = self;
        if plan.is_empty() {
            self.generation_next = self.reader.generation_next();
        }
        self.is_planned = match survey {
            None => {
                let blocks = walk.next_blocks();
                walk.over(&blocks, found, |_, extents| plan.extend(extents.iter().map(Planned::new)))?;
                walk.is_through()
            }
            Some(survey) => {
                let due = survey.due(window, *block);
                let blocks: Vec<_> = due.iter().map(|index| survey.range(*index)).collect();
                *block = due.last().map_or(usize::MAX, |last| last + 1);
                walk.over(&blocks, found, |index, extents| {
                    plan.extend(survey.choose(due[index], window, extents).map(Planned::new));
                })?;
                due.is_empty()
            }
        };
        if self.plan.is_empty() && self.is_planned {
            self.next_window();
        } else if self.is_planned || self.plan.len() >= self.plan_extents {
            self.plan.sort_unstable();
            self.phase = Phase::Read;
        }
        Ok(())
    }

    /// Reads the next piece of the plan.
    fn read_piece(&mut self, found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        let (mut bytes, piece_bytes) = (0, self.piece_bytes);
        let fits = |planned: &&Planned| {
            bytes += usize::from(planned.extent().1.stored);
            bytes <= piece_bytes
        };
        let piece = &self.plan[self.read..];
        let len = piece.iter().take(PIECE_EXTENTS).take_while(fits).count().max(1).min(piece.len());
        let extents = piece[..len].iter().map(Planned::extent).collect();
        let (pinned, mut anew) = self.reader.pin_unchanged(extents, self.generation_next);
        self.reader.read_each(pinned.extents(), NEAR_BYTES, |extent, stored| match stored {
            Ok(stored) => found(Swept::Extent(extent, Ok(stored))),
            Err(_) => anew.push(*extent),
        });
        drop(pinned);
        self.read_anew(&anew, found)?;
        self.read += len;
        if self.read == self.plan.len() {
            self.plan.clear();
            self.read = 0;
            self.phase = Phase::Plan;
            if self.is_planned {
                self.next_window();
            }
        }
        Ok(())
    }

    /// Reads the data that is mapped now at the addresses of `planned`.
    fn read_anew(&self, planned: &[(Lba, Extent)], found: &mut impl FnMut(Swept<'_>)) -> Result<()> {
        match self.reader.pin_each(planned.iter().map(range_of).collect()) {
            Ok(pinned) => self.verify(&pinned, found),
            // A leaf was evicted meanwhile, and cannot be read back.
            Err(error) if error.is_damage() => {
                for range in planned.iter().map(range_of) {
                    match self.reader.pin_some(range.clone(), usize::MAX) {
                        Ok(pinned) => self.verify(&pinned, found),
                        Err(error) if error.is_damage() => found(Swept::Unknown(range, error)),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn verify(&self, pinned: &Pinned<'_>, found: &mut impl FnMut(Swept<'_>)) {
        self.reader
            .read_each(pinned.extents(), NEAR_BYTES, |extent, stored| found(Swept::Extent(extent, stored)));
    }
}
