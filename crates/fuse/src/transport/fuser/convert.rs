//! The terms of fuser and of the service, each in those of the other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileType, Generation, ReplyEmpty, ReplyXattr, Request, TimeOrNow};
use lacuna_nvmfs::{
    Timestamp,
    posix::{Attr, Caller, FileKind, SetTime},
};

use crate::service::Errno;

impl From<Errno> for fuser::Errno {
    fn from(errno: Errno) -> fuser::Errno {
        fuser::Errno::from_i32(errno.0)
    }
}

pub(super) fn empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno.into()),
    }
}

/// The protocol of extended attributes: length 0 asks for the length.
pub(super) fn sized(result: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno.into()),
    }
}

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), umask: 0 }
}

pub(super) fn generation(attr: &Attr) -> Generation {
    Generation(attr.generation.into())
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

/// A time as the kernel sent it. For times before 1970, fuser 0.18.0 counts the nanoseconds backwards as well; this
/// counts them forwards again, as in `struct timespec`.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        Err(before) => Timestamp {
            seconds: (before.duration().as_secs() as i64).wrapping_neg(),
            nanoseconds: before.duration().subsec_nanos(),
        },
    }
}

/// The time as it is; fuser gets this direction right.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let fraction = Duration::from_nanos(time.nanoseconds.into());
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let time = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    time.and_then(|time| time.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_fuser() {
        // 1969-12-31 23:59:58.25: seconds -2, nanoseconds 250,000,000, and what fuser makes of that.
        let sent = UNIX_EPOCH - Duration::new(2, 250_000_000);
        let time = timestamp(sent);
        assert_eq!(time, Timestamp { seconds: -2, nanoseconds: 250_000_000 });
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::from_millis(1750));
        let later = Timestamp { seconds: 5_000_000_000, nanoseconds: 1 };
        assert_eq!(timestamp(system_time(later)), later);
    }
}
