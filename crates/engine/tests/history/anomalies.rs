//! The anomalies that a history may have.

use std::fmt;

use super::record::{History, TxnRecord};

/// The phenomena of Adya's thesis ("Weak Consistency", MIT 1999), and violations of the engine's further promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Writes of transactions follow each other in a cycle.
    G0,
    /// A write that was rolled back was read.
    G1a,
    /// A write was read that its transaction overwrote.
    G1b,
    /// Transactions read from and overwrite each other in a cycle.
    G1c,
    /// Two transactions had one record locked at the same time.
    TwoOwners,
    /// A write does not follow on the version that its transaction read, locked, or has in its snapshot.
    LostUpdate,
    /// A cycle of dependencies with one anti-dependency, which is that of a snapshot: read skew.
    GSingle,
    /// A transaction does not see its own write, or sees one that it rolled back.
    Internal,
    /// A snapshot saw two versions of one record.
    NonRepeatable,
    /// There is no moment at which every version that a snapshot saw was committed and not yet overwritten.
    Fractured,
    /// A version was read before its commit was asked for.
    Uncommitted,
    /// The version read was overwritten before, or never existed.
    Stale,
    /// Bytes that no transaction wrote.
    Garbage,
    /// A scan out of order or bounds, or with a record twice.
    BadScan,
    /// A count that fits no moment at which it can have been made.
    Miscount,
    /// The elements of a list are not in the order of the versions.
    ListOrder,
    /// Opening the store lost a durable commit.
    LostCommit,
    /// Opening the store left part of a transaction that did not survive.
    PartOfTransaction,
    /// A transaction survived a crash, and another that came before it did not.
    LostBefore,
    /// A durable table is gone.
    LostTable,
}

pub(crate) struct Anomaly {
    pub(crate) kind: Kind,
    /// The transactions to look at.
    pub(crate) txns: Vec<u64>,
    pub(crate) detail: String,
}

/// Anomalies of one history, with the transactions that they are of.
pub(crate) struct Shown<'a>(pub(crate) &'a [Anomaly], pub(crate) &'a History);

/// At most this many anomalies are printed in full.
const SHOWN: usize = 6;

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} anomalies", self.0.len())?;
        for anomaly in self.0.iter().take(SHOWN) {
            writeln!(f, "anomaly {:?}: {}", anomaly.kind, anomaly.detail)?;
            for txn in self.1.txns.iter().filter(|txn| anomaly.txns.contains(&txn.id)) {
                show_txn(f, txn)?;
            }
        }
        for anomaly in self.0.iter().skip(SHOWN).take(50) {
            writeln!(f, "anomaly {:?}: {}", anomaly.kind, anomaly.detail)?;
        }
        Ok(())
    }
}

fn show_txn(f: &mut fmt::Formatter<'_>, txn: &TxnRecord) -> fmt::Result {
    writeln!(f, "  transaction {} ({:?})", txn.id, txn.isolation)?;
    for op in &txn.ops {
        writeln!(f, "    {}..{} {:?}", op.began, op.ended, op.what)?;
    }
    writeln!(f, "    {}..{} {:?}", txn.end_began, txn.end_ended, txn.outcome)
}
