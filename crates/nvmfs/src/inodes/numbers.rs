//! Numbers for new inodes.

use crate::{
    error::{Refusal, Result},
    format::{Ino, Timestamp},
    inodes::Inodes,
    mutant::{Rule, is_broken},
};

/// The source of numbers for new inodes.
pub(super) struct Numbers {
    /// The number at which the search for a free one starts.
    next_ino: Ino,
    /// Generation of the next new inode.
    next_generation: u32,
}

impl Numbers {
    /// `now` keeps generations from repeating after the file system was opened anew.
    pub(super) fn new(now: Timestamp) -> Numbers {
        let seed = (now.seconds as u32).wrapping_mul(1 << 12) ^ now.nanoseconds;
        let next_generation = if is_broken(Rule::GenerationsGoOn) { 0 } else { seed };
        Numbers { next_ino: Ino::FIRST, next_generation }
    }
}

impl Inodes {
    /// A number that no inode has, and a generation for it. The number is not given out again before all others were.
    /// The search may read the device, so the lock is released meanwhile.
    pub(crate) fn take_number(&self) -> Result<(Ino, u32)> {
        loop {
            let (start, generation) = {
                let mut numbers = self.numbers.lock();
                numbers.next_generation = numbers.next_generation.wrapping_add(1);
                let start = numbers.next_ino;
                numbers.next_ino = after(start);
                (start, numbers.next_generation)
            };
            let free = self.free_ino(start)?;
            if free == start {
                return Ok((free, generation));
            }
            let mut numbers = self.numbers.lock();
            if ahead(start, numbers.next_ino) <= ahead(start, free) {
                numbers.next_ino = after(free);
                return Ok((free, generation));
            }
            // That number was given out meanwhile.
        }
    }

    /// The first number at or after `start` that no inode has, starting over at the end (invariant 2).
    fn free_ino(&self, start: Ino) -> Result<Ino> {
        for numbers in [start.0..Ino::LAST.0 + 1, Ino::FIRST.0..start.0] {
            let (mut first, mut step) = (numbers.start, 1);
            while first < numbers.end {
                let len = step.min(numbers.end - first);
                let range = Ino::TABLE.lba(first.into())..Ino::TABLE.lba((first + len).into());
                // Each inode is an extent: the map's sums show whether one is missing.
                if self.volume.ftl().extents(range)? == u64::from(len) {
                    (first, step) = (first + len, len * 2);
                } else if len == 1 {
                    return Ok(Ino(first));
                } else {
                    step = len / 2;
                }
            }
        }
        Err(Refusal::NoSpace.into())
    }
}

/// The number to be examined after `ino`.
fn after(ino: Ino) -> Ino {
    if ino < Ino::LAST { Ino(ino.0 + 1) } else { Ino::FIRST }
}

/// How many numbers after `start` the search reaches `ino`.
fn ahead(start: Ino, ino: Ino) -> u32 {
    let numbers = Ino::LAST.0 - Ino::FIRST.0 + 1;
    (ino.0 + numbers - start.0) % numbers
}
