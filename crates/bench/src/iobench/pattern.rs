use std::str::FromStr;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Blocks one after the other, from front to back and again.
    SequentialWrite,
    /// The same, read.
    SequentialRead,
    /// Blocks in random order, over a part of the store that is written already.
    RandomWrite,
    /// The same, read.
    RandomRead,
    /// 4 KiB at the end, made durable, again and again: a log.
    AppendSync,
    /// A block written and then a part of its end, 1 KiB to 3/4 of it, trimmed: page compression.
    WriteTrim,
    /// Random overwrites of a store that is filled to a chosen share, until several times its capacity
    /// was written.
    Overwrite,
}

/// Bytes of one append.
pub(super) const APPEND_BYTES: u64 = 4096;
/// Share of the capacity that all patterns but one work on, in percent.
const SPAN_PERCENT: u64 = 30;

impl Pattern {
    /// All patterns, in the order of reports.
    pub const ALL: [Pattern; 7] = [
        Pattern::SequentialWrite,
        Pattern::SequentialRead,
        Pattern::RandomWrite,
        Pattern::RandomRead,
        Pattern::AppendSync,
        Pattern::WriteTrim,
        Pattern::Overwrite,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::SequentialWrite => "seqwrite",
            Pattern::SequentialRead => "seqread",
            Pattern::RandomWrite => "randwrite",
            Pattern::RandomRead => "randread",
            Pattern::AppendSync => "append",
            Pattern::WriteTrim => "writetrim",
            Pattern::Overwrite => "overwrite",
        }
    }

    /// Whether the span is written before the measured part.
    pub(super) fn is_filled(self) -> bool {
        !matches!(self, Pattern::SequentialWrite)
    }

    /// Whether blocks are read.
    pub(super) fn is_read(self) -> bool {
        matches!(self, Pattern::SequentialRead | Pattern::RandomRead)
    }

    /// Bytes of one request.
    pub(super) fn request_bytes(self, block_bytes: u64) -> u64 {
        if self == Pattern::AppendSync { APPEND_BYTES } else { block_bytes }
    }

    /// Bytes of the space that it works on.
    pub(super) fn span_bytes(self, capacity_bytes: u64, live_percent: u64) -> u64 {
        let percent = if self == Pattern::Overwrite { live_percent } else { SPAN_PERCENT };
        (u128::from(capacity_bytes) * u128::from(percent) / 100) as u64
    }
}

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Pattern, &'static str> {
        let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.name() == name);
        pattern.ok_or("known patterns: seqwrite, seqread, randwrite, randread, append, writetrim, overwrite")
    }
}
