//! Reading leaves of the map from a device.

use std::ops::Range;

use lacuna_crc::crc32c;
use lacuna_device::AlignedBuf;

use crate::{
    Result,
    format::LeafAddr,
    map::{Absent, Leaf, Map},
    media::Volume,
    mutant::{Rule, is_broken},
    space::Space,
};

/// Leaves that lie in one run of at most this many bytes are read at once.
const RUN_BYTES: usize = 256 << 10;

/// A gap of at most this many bytes between two leaves does not end a run: reading it takes less time than another run.
const GAP_BYTES: usize = 16 << 10;

/// Runs that are read at the same time.
const RUNS_AT_ONCE: usize = 16;

/// Reads leaves from a device.
#[derive(Clone, Copy)]
pub(crate) struct LeafReader<'a> {
    volume: &'a Volume,
    space: Space,
}

impl<'a> LeafReader<'a> {
    pub(crate) fn new(volume: &'a Volume) -> LeafReader<'a> {
        LeafReader { volume, space: volume.space() }
    }

    fn device_offset(&self, place: &LeafAddr) -> u64 {
        self.volume.offset(place.segment, place.offset())
    }

    /// Reads and verifies `absent`, and passes each leaf to `install`.
    pub(crate) fn read(&self, mut absent: Vec<Absent>, mut install: impl FnMut(&Absent, Leaf)) -> Result<()> {
        absent.sort_unstable_by_key(|absent| (absent.place.segment, absent.place.grain));
        let (mut runs, mut rest) = (Vec::new(), &absent[..]);
        while !rest.is_empty() {
            let (run, later) = rest.split_at(self.run_length(rest));
            runs.push(run);
            rest = later;
        }
        for runs in runs.chunks(RUNS_AT_ONCE) {
            let bytes = runs.iter().map(|run| self.blocks(run));
            let mut reads: Vec<_> = bytes.map(|(at, len)| (at, AlignedBuf::zeroed(len))).collect();
            if self.volume.device().read_many(&mut reads).is_ok() {
                for (run, (start, buf)) in runs.iter().zip(&reads) {
                    run.iter().try_for_each(|absent| self.take(absent, *start, buf, &mut install))?;
                }
                continue;
            }
            // The unreadable block may belong to another leaf, or lie between leaves.
            for absent in runs.iter().copied().flatten() {
                let (start, len) = self.blocks(std::slice::from_ref(absent));
                let mut buf = AlignedBuf::zeroed(len);
                self.volume.device().read_at(start, &mut buf)?;
                self.take(absent, start, &buf, &mut install)?;
            }
        }
        Ok(())
    }

    /// As [`LeafReader::read`], but continues past damage: `take` gets each leaf, or why it cannot be read. Leaves that
    /// cannot be read together are read one by one; then `take` may get a leaf twice.
    pub(crate) fn read_each(&self, absent: &[Absent], mut take: impl FnMut(&Absent, Result<Leaf>)) {
        if self.read(absent.to_vec(), |absent, leaf| take(absent, Ok(leaf))).is_ok() {
            return;
        }
        for absent in absent {
            if let Err(error) = self.read(vec![absent.clone()], |absent, leaf| take(absent, Ok(leaf))) {
                take(absent, Err(error));
            }
        }
    }

    /// Byte on the device and length of the blocks that `run` lies in.
    fn blocks(&self, run: &[Absent]) -> (u64, usize) {
        let (first, last) = (run[0].place, run[run.len() - 1].place);
        let start = first.offset() / self.space.block_bytes * self.space.block_bytes;
        let end = (last.offset() + usize::from(last.bytes)).next_multiple_of(self.space.block_bytes);
        (self.device_offset(&first) - (first.offset() - start) as u64, end - start)
    }

    /// Passes the leaf to `install` that lies in `buf`, which was read from byte `start` of the device.
    fn take(
        &self,
        absent: &Absent,
        start: u64,
        buf: &[u8],
        install: &mut impl FnMut(&Absent, Leaf),
    ) -> Result<()> {
        let at = (self.device_offset(&absent.place) - start) as usize;
        install(absent, self.verify(absent, &buf[at..][..usize::from(absent.place.bytes)])?);
        Ok(())
    }

    /// How many of `absent`, from the first, lie in one run.
    fn run_length(&self, absent: &[Absent]) -> usize {
        let first = absent[0].place;
        let mut end = first.offset() + usize::from(first.bytes);
        let follows = absent[1..].iter().take_while(|absent| {
            let place = absent.place;
            let is_near = place.segment == first.segment
                && place.offset() <= end + GAP_BYTES
                && place.offset() + usize::from(place.bytes) <= first.offset() + RUN_BYTES;
            end = place.offset() + usize::from(place.bytes);
            is_near
        });
        1 + follows.count()
    }

    fn verify(&self, absent: &Absent, bytes: &[u8]) -> Result<Leaf> {
        let Absent { span, live, place } = absent;
        let verified = match crc32c(bytes) == place.crc || is_broken(Rule::LeavesVerified) {
            true => Leaf::verify(bytes, span, *live, self.space.segments as u32, self.space.segment_bytes),
            false => Err("checksum does not match"),
        };
        verified.map_err(|flaw| self.volume.corrupt("map leaf", self.device_offset(place), flaw))
    }

    /// Brings in all leaves that changes of `ranges` (sorted, without overlap) need, where no other thread sees the
    /// map.
    pub(crate) fn fault_in(&self, map: &mut Map, ranges: &[Range<u64>]) -> Result<()> {
        loop {
            let absent = map.absent(ranges);
            if absent.is_empty() {
                return Ok(());
            }
            let mut outcome = Ok(());
            self.read_each(&absent, |absent, leaf| match leaf {
                Ok(leaf) => drop(map.install(absent, leaf)),
                Err(error) => {
                    map.note_unreadable(absent);
                    outcome = Err(error);
                }
            });
            if outcome.is_err() && map.needs_unreadable(ranges) {
                return outcome;
            }
        }
    }
}
