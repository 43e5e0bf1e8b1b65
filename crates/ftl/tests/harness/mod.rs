//! Shared by the integration tests: a model of the space, and seeded batches for store and model.

pub(crate) mod flips;
pub(crate) mod full;
pub(crate) mod history;
pub(crate) mod log_device;
pub(crate) mod matrix;
pub(crate) mod watch;

use std::sync::Arc;

use lacuna_device::{BlockDevice, LogDevice};
use lacuna_ftl::{Algorithm, CheckDepth, Codec, Encoded, FormatOptions, Ftl, Lba, Op, Options, SECTOR};
use lacuna_sim::SeededRng;

/// Segment size of the stores under test: small, so that the log wraps often.
pub(crate) const SEGMENT_BYTES: u32 = 64 << 10;

pub(crate) fn format(device: &Arc<dyn BlockDevice>) {
    format_with(device, None);
}

pub(crate) fn format_with(device: &Arc<dyn BlockDevice>, log_device: Option<Arc<dyn LogDevice>>) {
    let options = FormatOptions {
        segment_bytes: Some(SEGMENT_BYTES),
        force: true,
        log_device,
        ..FormatOptions::default()
    };
    Ftl::format(device.clone(), &options).unwrap();
}

pub(crate) fn open(device: &Arc<dyn BlockDevice>) -> Ftl {
    Ftl::open(device.clone(), Options::default()).unwrap()
}

/// The expected content of the space: a plain array of sectors.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Model(Vec<u8>);

/// An owned [`Op`].
#[derive(Clone)]
pub(crate) enum Change {
    Write(u64, Vec<u8>),
    Encoded(Encoded<'static>),
    Trim(u64, u64),
}

impl Change {
    pub(crate) fn op(&self) -> Op<'_> {
        match self {
            Change::Write(lba, data) => Op::Write { lba: Lba(*lba), data },
            Change::Encoded(encoded) => Op::Encoded(encoded),
            Change::Trim(lba, sectors) => Op::Trim { lba: Lba(*lba), sectors: *sectors },
        }
    }

    /// Three of four writes encoded, with data that shrinks; by address, so that the same seeds make the same batches.
    pub(crate) fn encoded(self) -> Change {
        match self {
            Change::Write(lba, mut data) if (lba + lba / 8) % 4 != 0 => {
                for part in data.chunks_mut(256) {
                    let (first, rest) = part.split_at_mut(64);
                    rest.chunks_mut(64).for_each(|rest| rest.copy_from_slice(first));
                }
                let algorithm = if lba % 3 == 1 { Algorithm::Zstd } else { Algorithm::Lz4 };
                Change::Encoded(Encoded::new(Lba(lba), data, Codec::fast(algorithm)))
            }
            other => other,
        }
    }
}

/// The batch with some of its writes encoded.
pub(crate) fn encode(batch: Vec<Change>) -> Vec<Change> {
    batch.into_iter().map(Change::encoded).collect()
}

impl Model {
    pub(crate) fn new(sectors: u64) -> Model {
        Model(vec![0; sectors as usize * SECTOR])
    }

    pub(crate) fn sectors(&self) -> u64 {
        (self.0.len() / SECTOR) as u64
    }

    pub(crate) fn sector(&self, lba: u64) -> &[u8] {
        &self.0[lba as usize * SECTOR..][..SECTOR]
    }

    pub(crate) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Write(lba, data) => {
                    self.0[*lba as usize * SECTOR..][..data.len()].copy_from_slice(data)
                }
                Change::Encoded(encoded) => {
                    let (lba, data) = (encoded.lba().0, encoded.data());
                    self.0[lba as usize * SECTOR..][..data.len()].copy_from_slice(data);
                }
                Change::Trim(lba, sectors) => {
                    self.0[*lba as usize * SECTOR..][..*sectors as usize * SECTOR].fill(0);
                }
            }
        }
    }

    /// First sector in which the store differs.
    pub(crate) fn first_difference(&self, ftl: &Ftl) -> Option<u64> {
        let mut buf = vec![0; self.0.len()];
        ftl.read(Lba(0), &mut buf).unwrap();
        let differs = |(a, b): (&[u8], &[u8])| a != b;
        buf.chunks(SECTOR).zip(self.0.chunks(SECTOR)).position(differs).map(|sector| sector as u64)
    }

    pub(crate) fn assert_read(&self, ftl: &Ftl, lba: u64, sectors: u64) {
        let mut buf = vec![0xee; sectors as usize * SECTOR];
        ftl.read(Lba(lba), &mut buf).unwrap();
        assert!(buf == self.0[lba as usize * SECTOR..][..buf.len()], "sectors {lba} + {sectors} differ");
    }

    pub(crate) fn assert_same(&self, ftl: &Ftl) {
        if let Some(sector) = self.first_difference(ftl) {
            panic!("sector {sector} differs");
        }
    }
}

/// Payload of `sectors` sectors that often ends in zeros, inside sectors and at their borders.
pub(crate) fn payload(rng: &mut SeededRng, sectors: u64) -> Vec<u8> {
    let mut data = vec![0; sectors as usize * SECTOR];
    let len = match rng.below(4) {
        0 => data.len(),
        1 => rng.below(data.len() as u64 + 1) as usize,
        2 => rng.below(sectors + 1) as usize * SECTOR,
        _ => (data.len() - rng.below(600).min(data.len() as u64) as usize).max(1),
    };
    rng.fill(&mut data[..len]);
    data
}

/// A batch of a few changes within `sectors` sectors, sometimes overlapping each other.
pub(crate) fn changes(rng: &mut SeededRng, sectors: u64) -> Vec<Change> {
    let mut changes = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let len = 1 + if rng.chance(20) { rng.below(100) } else { rng.below(34) };
        let lba = rng.below(sectors - len);
        changes.push(if rng.chance(25) {
            Change::Trim(lba, len)
        } else {
            Change::Write(lba, payload(rng, len))
        });
    }
    changes
}

pub(crate) fn ops(changes: &[Change]) -> Vec<Op<'_>> {
    changes.iter().map(Change::op).collect()
}

pub(crate) fn assert_sound(ftl: &Ftl) {
    let report = ftl.check(CheckDepth::Payload).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}
