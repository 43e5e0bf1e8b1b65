//! Points in time, in memory and on the device.

use std::time::{SystemTime, UNIX_EPOCH};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{I64, U32},
};

/// Time since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds of the second, below 10^9.
    pub nanoseconds: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DiskTime {
    seconds: I64,
    nanoseconds: U32,
}

impl From<Timestamp> for DiskTime {
    fn from(time: Timestamp) -> DiskTime {
        DiskTime { seconds: time.seconds.into(), nanoseconds: time.nanoseconds.into() }
    }
}

impl From<DiskTime> for Timestamp {
    fn from(time: DiskTime) -> Timestamp {
        Timestamp { seconds: time.seconds.get(), nanoseconds: time.nanoseconds.get() }
    }
}

impl DiskTime {
    pub(super) fn is_sound(self) -> bool {
        self.nanoseconds.get() < 1_000_000_000
    }
}

/// The system's clock.
pub fn system_time() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since_epoch.subsec_nanos() }
}
