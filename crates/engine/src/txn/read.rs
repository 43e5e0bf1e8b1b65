//! Visibility: a reader sees the newest version that its view sees, or else that is committed, or the reader's own.
//!
//! A snapshot follows undo pointers from one version to the one before, with the leaf latched, as long as
//! its view does not see the writer. Each record on that way is kept for the view (undo's invariant 4).

use std::{borrow::Cow, sync::Arc};

use super::view::View;
use crate::{
    mutant::{Rule, is_broken},
    overflow::{self, Ticket},
    page::{
        delta,
        node::{DELETED, LeafCell, OVERFLOW},
        overflow::Reference,
        undo::Change,
    },
    space::{Space, corrupt},
    txn::TxnEngine,
    types::{Circle, Result, TxnId},
    undo,
};

/// A reader: a transaction, and its view.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) me: TxnId,
    /// A snapshot's view; without one the reader sees everything committed.
    pub(crate) view: Option<&'a View>,
}

impl Reader<'_> {
    /// A reader outside of any transaction.
    pub(crate) const COMMITTED: Reader<'static> = Reader { me: TxnId::NONE, view: None };

    fn sees(&self, engine: &TxnEngine, txn: TxnId) -> bool {
        (txn == self.me && !is_broken(Rule::OwnChangesSeen))
            || match self.view {
                Some(view) => view.sees(txn),
                None => engine.txns.get(txn).is_none(),
            }
    }

    /// See [`View::check`].
    pub(crate) fn check(&self) -> Result<()> {
        self.view.map_or(Ok(()), View::check)
    }
}

/// A value as a leaf or an undo record holds it.
pub(super) enum StoredValue<'c> {
    Short(Cow<'c, [u8]>),
    Long(Reference),
}

impl<'c> StoredValue<'c> {
    fn new(flags: u8, value: Cow<'c, [u8]>) -> StoredValue<'c> {
        if flags & OVERFLOW == 0 {
            StoredValue::Short(value)
        } else {
            StoredValue::Long(Reference::parse(&value).expect("proven when leaf or undo record was read"))
        }
    }
}

/// A value that was found under a leaf's latch, and the ticket that keeps it readable after the latch is released.
pub(crate) struct VisibleValue<'a, 'c> {
    pub(super) found: StoredValue<'c>,
    ticket: Option<Ticket<'a>>,
}

impl<'a, 'c> VisibleValue<'a, 'c> {
    /// The caller still holds the leaf's latch.
    fn new(engine: &'a TxnEngine, found: StoredValue<'c>) -> VisibleValue<'a, 'c> {
        let ticket = matches!(found, StoredValue::Long(_)).then(|| engine.chains.enter());
        VisibleValue { found, ticket }
    }

    /// The same without the leaf.
    pub(crate) fn detached(self) -> VisibleValue<'a, 'static> {
        let found = match self.found {
            StoredValue::Short(value) => StoredValue::Short(Cow::Owned(value.into_owned())),
            StoredValue::Long(reference) => StoredValue::Long(reference),
        };
        VisibleValue { found, ticket: self.ticket }
    }

    /// Appends the value to `value` if it is short; else gives it back, for [`VisibleValue::read`].
    pub(crate) fn into_short(self, value: &mut Vec<u8>) -> Option<VisibleValue<'a, 'static>> {
        match self.found {
            StoredValue::Short(short) => {
                value.extend_from_slice(&short);
                None
            }
            StoredValue::Long(reference) => {
                Some(VisibleValue { found: StoredValue::Long(reference), ticket: self.ticket })
            }
        }
    }

    /// The value; the caller holds no latch any more.
    pub(crate) fn read(self, engine: &TxnEngine, space: &Arc<Space>) -> Result<Vec<u8>> {
        match (self.found, self.ticket) {
            (StoredValue::Short(value), _) => Ok(value.into_owned()),
            (StoredValue::Long(reference), Some(ticket)) => {
                overflow::read(&engine.pager, space, reference, &ticket)
            }
            (StoredValue::Long(_), None) => unreachable!("made with a ticket"),
        }
    }
}

/// The version of a leaf record that `reader` sees, `None` when there is none. The caller holds the leaf's latch, so
/// the record's writer can neither change it nor roll it back meanwhile; if the writer finishes, it has committed. As
/// for [`VisibleValue::new`], the result is valid only if [`Reader::check`] succeeds after it.
pub(crate) fn visible<'a, 'c>(
    engine: &'a TxnEngine,
    reader: Reader<'_>,
    cell: LeafCell<'c>,
) -> Result<Option<VisibleValue<'a, 'c>>> {
    let found = find_visible(engine, reader, cell);
    let kept = found.map(|found| found.map(|found| VisibleValue::new(engine, found)));
    // A revoked view may lead to any bytes, even ones that look damaged. A reader whose view is still valid here has a
    // ticket, for which purge waits.
    reader.check()?;
    kept
}

fn find_visible<'c>(
    engine: &TxnEngine,
    reader: Reader<'_>,
    cell: LeafCell<'c>,
) -> Result<Option<StoredValue<'c>>> {
    let current = || (!cell.is_deleted()).then(|| StoredValue::new(cell.flags, Cow::Borrowed(cell.value)));
    if reader.sees(engine, cell.txn) || is_broken(Rule::VersionsFollowed) {
        return Ok(current());
    }
    let mut value = cell.value.to_vec();
    let (mut txn, mut ptr, mut circle) = (cell.txn, cell.undo, Circle::new());
    loop {
        undo::must_go_on(&engine.undo, &mut circle, ptr)?;
        let record = match reader.view {
            Some(_) => undo::read_kept(&engine.undo, ptr)?,
            None => match undo::read(&engine.undo, ptr, txn)? {
                Some(record) => record,
                None => return Ok(current()),
            },
        };
        // Once the view is revoked the record may be another one: the walk need not go on to where that ends.
        reader.check()?;
        if record.key != cell.key {
            return Err(corrupt(engine.undo.space(), ptr.page(), "a record names another one's undo record"));
        }
        match record.change {
            Change::Insert => return Ok(None),
            Change::Update => value = record.old_value.into_owned(),
            Change::Edit => {
                let no_such = || corrupt(engine.undo.space(), ptr.page(), "an edit of another value");
                delta::apply(&record.old_value, &mut value).ok_or_else(no_such)?;
            }
            // The value stayed in the leaf.
            Change::Delete => {}
            Change::Chain | Change::Orphan | Change::Spent | Change::Link => {
                return Err(corrupt(
                    engine.undo.space(),
                    ptr.page(),
                    "a leaf names no undo record of a change",
                ));
            }
        }
        if record.old_txn != txn && reader.sees(engine, record.old_txn) {
            let is_deleted = record.old_flags & DELETED != 0;
            return Ok((!is_deleted).then(|| StoredValue::new(record.old_flags, Cow::Owned(value))));
        }
        (txn, ptr) = (record.old_txn, record.old_undo);
    }
}
