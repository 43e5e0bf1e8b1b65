//! The record of a run: transactions, their operations, and when each began and ended.
//!
//! Time is a counter that all threads share. An operation takes effect between its two stamps, so of two operations
//! whose stamps do not overlap the order is known.

use std::collections::{BTreeMap, BTreeSet};

use lacuna_engine::Isolation;

/// A moment of the run. 0 is before it.
pub(crate) type Stamp = u64;

/// A record's address: the number of its table, which is never reused, and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) table: u32,
    pub(crate) number: u32,
}

/// Names one write of the whole case. The value carries it, so a read shows which write it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WriteId(pub(crate) u64);

impl WriteId {
    pub(crate) fn new(txn: u64, index: u16) -> WriteId {
        WriteId(txn << 16 | u64::from(index))
    }

    pub(crate) fn txn(self) -> u64 {
        self.0 >> 16
    }
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Absent,
    /// A record, of which nothing is known but that it is there.
    Present,
    /// The value of a write, and the elements that it carries: the writes that it was made from, and itself.
    Version(WriteId, Vec<WriteId>),
    /// Bytes that are no value of this key.
    Garbage(String),
}

/// Whether a read locked the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    No,
    /// As long as the write of the same operation counts.
    Write,
    /// To the end of the transaction.
    Explicit,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Read {
        key: Key,
        seen: Seen,
        lock: Lock,
    },
    Scan(Scan),
    Count(Count),
    Write {
        key: Key,
        write: WriteId,
        list: Vec<WriteId>,
    },
    Delete {
        key: Key,
        write: WriteId,
    },
    Savepoint,
    /// Back to the savepoint that is the operation of this number.
    RollbackTo {
        savepoint: usize,
    },
    /// Nothing was read and nothing changed.
    Failed(String),
}

/// The records of one table from `lower` to `upper`, both included.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) table: u32,
    pub(crate) lower: u32,
    pub(crate) upper: u32,
    pub(crate) is_backward: bool,
    /// In the order in which they came.
    pub(crate) found: Vec<(u32, Seen)>,
    /// The caller broke it off after the last one found.
    pub(crate) is_broken_off: bool,
}

/// How many records of one table there were from `lower` to `upper`, both included.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    pub(crate) table: u32,
    pub(crate) lower: u32,
    pub(crate) upper: u32,
    pub(crate) records: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) began: Stamp,
    pub(crate) ended: Stamp,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    Aborted,
    /// The commit returned an error, or never returned.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct TxnRecord {
    pub(crate) id: u64,
    pub(crate) isolation: Isolation,
    pub(crate) ops: Vec<Op>,
    pub(crate) outcome: Outcome,
    /// When its commit or rollback was asked for.
    pub(crate) end_began: Stamp,
    pub(crate) end_ended: Stamp,
}

/// The state of records: the write of each, and the elements of its value.
pub(crate) type State = BTreeMap<Key, (WriteId, Vec<WriteId>)>;

/// The history from one opening of the store to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The store's content when it was opened.
    pub(crate) initial: State,
    pub(crate) txns: Vec<TxnRecord>,
    /// Transactions of unknown outcome that were found to be there when the store was opened again.
    pub(crate) survived: BTreeSet<u64>,
    /// Tables whose removal was asked for.
    pub(crate) dropped: BTreeSet<u32>,
    /// Commits before this moment are durable, whatever they promised.
    pub(crate) durable_until: Stamp,
}
