//! What a reader sees: the newest version that its view sees, or else is committed, or the reader's own.
//!
//! A snapshot follows undo pointers from one version to the one before, with the leaf latched, as long as
//! its view does not see the writer. Each record on that way is kept for the view (undo's invariant 4).

use std::{
    borrow::Cow,
    mem,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use super::view::View;
use crate::{
    ahead,
    alloc::corrupt,
    btree::{Direction, Start, Tree},
    core::Core,
    delta,
    error::Result,
    ids::TxnId,
    mutant::{Rule, is_broken},
    node::{DELETED, LeafCell, Node, OVERFLOW},
    overflow::{self, Reference, Ticket},
    scratch::Scratch,
    space::Space,
    undo::{self, Change},
};

/// Records that a scan copies at a time.
const SCAN_RECORDS: usize = 128;
/// Bytes of long values beyond which it copies no more.
const SCAN_LONG_BYTES: u64 = 1 << 20;

/// Who reads.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) me: TxnId,
    /// A snapshot; without, all that is committed is seen.
    pub(crate) view: Option<&'a View>,
}

impl Reader<'_> {
    /// Nobody's transaction.
    pub(crate) const COMMITTED: Reader<'static> = Reader { me: TxnId::NONE, view: None };

    fn sees(&self, core: &Core, txn: TxnId) -> bool {
        txn == self.me
            || match self.view {
                Some(view) => view.sees(txn),
                None => core.txns.get(txn).is_none(),
            }
    }

    /// See [`View::check`].
    pub(crate) fn check(&self) -> Result<()> {
        self.view.map_or(Ok(()), View::check)
    }
}

/// A value as a leaf or an undo record holds it.
enum Found<'c> {
    Short(Cow<'c, [u8]>),
    Long(Reference),
}

impl<'c> Found<'c> {
    fn new(flags: u8, value: Cow<'c, [u8]>) -> Found<'c> {
        if flags & OVERFLOW == 0 {
            Found::Short(value)
        } else {
            Found::Long(Reference::parse(&value).expect("proven when leaf or undo record was read"))
        }
    }
}

/// A value that was found under a leaf's latch, and the ticket that keeps it readable without.
pub(crate) struct Kept<'a, 'c> {
    found: Found<'c>,
    ticket: Option<Ticket<'a>>,
}

impl<'a, 'c> Kept<'a, 'c> {
    /// The caller still holds the leaf's latch.
    fn new(core: &'a Core, found: Found<'c>) -> Kept<'a, 'c> {
        let ticket = matches!(found, Found::Long(_)).then(|| core.chain_readers.enter());
        Kept { found, ticket }
    }

    /// The same without the leaf.
    pub(crate) fn detached(self) -> Kept<'a, 'static> {
        let found = match self.found {
            Found::Short(value) => Found::Short(Cow::Owned(value.into_owned())),
            Found::Long(reference) => Found::Long(reference),
        };
        Kept { found, ticket: self.ticket }
    }

    /// The value; the caller holds no latch any more.
    pub(crate) fn read(self, core: &Core, space: &Arc<Space>) -> Result<Vec<u8>> {
        match (self.found, self.ticket) {
            (Found::Short(value), _) => Ok(value.into_owned()),
            (Found::Long(reference), Some(ticket)) => overflow::read(core, space, reference, &ticket),
            (Found::Long(_), None) => unreachable!("made with a ticket"),
        }
    }
}

/// Records copied from a leaf, in the order of the scan. The memory is used again for the next leaf.
#[derive(Default)]
struct Copied<'a> {
    /// Keys and short values, back to back.
    bytes: Scratch,
    /// Length of each key, and the value.
    records: Vec<(usize, Value<'a>)>,
    long_bytes: u64,
}

enum Value<'a> {
    /// So many bytes behind the key.
    Short(usize),
    Kept(Kept<'a, 'static>),
    Read(Vec<u8>),
}

impl<'a> Copied<'a> {
    fn push(&mut self, key: &[u8], kept: Kept<'a, '_>) {
        self.bytes.extend_from_slice(key);
        let value = match &kept.found {
            Found::Short(value) => {
                self.bytes.extend_from_slice(value);
                Value::Short(value.len())
            }
            Found::Long(reference) => {
                self.long_bytes += u64::from(reference.bytes);
                Value::Kept(kept.detached())
            }
        };
        self.records.push((key.len(), value));
    }

    fn is_enough(&self) -> bool {
        self.records.len() >= SCAN_RECORDS || self.long_bytes >= SCAN_LONG_BYTES
    }

    /// Reads long values. All are read before one is passed on: what that calls may wait for what waits for
    /// tickets. The caller holds no latch.
    fn read_long(&mut self, core: &Core, space: &Arc<Space>) -> Result<()> {
        for (_, value) in &mut self.records {
            *value = match mem::replace(value, Value::Short(0)) {
                Value::Kept(kept) => Value::Read(kept.read(core, space)?),
                other => other,
            };
        }
        Ok(())
    }

    /// Calls `each` with all records until it breaks, and forgets them. Long ones were read.
    fn pass_on(&mut self, each: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut rest = &self.bytes[..];
        for (key_bytes, value) in &self.records {
            let key = rest.split_off(..*key_bytes).expect("pushed with its key");
            let value = match value {
                Value::Short(bytes) => rest.split_off(..*bytes).expect("pushed with its value"),
                Value::Read(value) => value,
                Value::Kept(_) => unreachable!("read above"),
            };
            if each(key, value).is_break() {
                return ControlFlow::Break(());
            }
        }
        self.bytes.clear();
        self.records.clear();
        self.long_bytes = 0;
        ControlFlow::Continue(())
    }
}

/// The version of a leaf record that `reader` sees, `None` when there is none. The caller holds the
/// leaf's latch, so the record's writer can neither change it nor take it back meanwhile; if the
/// writer finishes, it has committed. Like [`Kept::new`] it is made good by [`Reader::check`] behind it.
pub(crate) fn visible<'a, 'c>(
    core: &'a Core,
    reader: Reader<'_>,
    cell: LeafCell<'c>,
) -> Result<Option<Kept<'a, 'c>>> {
    let found = find_visible(core, reader, cell);
    let kept = found.map(|found| found.map(|found| Kept::new(core, found)));
    // What a view that was given up leads to may be anything, damage too. Who was told that it is good has
    // a ticket, for which purge waits.
    reader.check()?;
    kept
}

fn find_visible<'c>(core: &Core, reader: Reader<'_>, cell: LeafCell<'c>) -> Result<Option<Found<'c>>> {
    let current = || (!cell.is_deleted()).then(|| Found::new(cell.flags, Cow::Borrowed(cell.value)));
    if reader.sees(core, cell.txn) {
        return Ok(current());
    }
    let mut value = cell.value.to_vec();
    let (mut txn, mut ptr) = (cell.txn, cell.undo);
    loop {
        let record = match reader.view {
            Some(_) => undo::read_kept(core, ptr)?,
            None => match undo::read(core, ptr, txn)? {
                Some(record) => record,
                None => return Ok(current()),
            },
        };
        // Once the view is given up the record may be another one, even one that leads back to itself.
        if !is_broken(Rule::VersionsAskTheView) {
            reader.check()?;
        }
        if record.key != cell.key {
            return Err(corrupt(core.undo_space(), ptr.page(), "a record names another one's undo record"));
        }
        match record.change {
            Change::Insert => return Ok(None),
            Change::Update => value = record.old_value.into_owned(),
            Change::Edit => {
                let no_such = || corrupt(core.undo_space(), ptr.page(), "an edit of another value");
                delta::apply(&record.old_value, &mut value).ok_or_else(no_such)?;
            }
            // The value stayed in the leaf.
            Change::Delete => {}
            Change::Chain | Change::Orphan | Change::Spent | Change::Link => {
                return Err(corrupt(
                    core.undo_space(),
                    ptr.page(),
                    "a leaf names no undo record of a change",
                ));
            }
        }
        if record.old_txn != txn && reader.sees(core, record.old_txn) {
            let is_deleted = record.old_flags & DELETED != 0;
            return Ok((!is_deleted).then(|| Found::new(record.old_flags, Cow::Owned(value))));
        }
        (txn, ptr) = (record.old_txn, record.old_undo);
    }
}

/// Calls `each` with the records between the bounds that `reader` sees, in order, until it breaks. No
/// latch is held during the calls.
pub(crate) fn scan(
    core: &Core,
    space: &Arc<Space>,
    reader: Reader<'_>,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    direction: Direction,
    mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
) -> Result<()> {
    let tree = Tree::new(core, space);
    let (from, to) = match direction {
        Direction::Forward => (lower, upper),
        Direction::Backward => (upper, lower),
    };
    let mut start = Some(match from {
        Bound::Unbounded => Start::End,
        Bound::Included(key) => Start::At(key.to_vec()),
        Bound::Excluded(key) => Start::Behind(key.to_vec()),
    });
    let is_past = |key: &[u8]| match (to, direction) {
        (Bound::Unbounded, _) => false,
        (Bound::Included(end), Direction::Forward) => key > end,
        (Bound::Excluded(end), Direction::Forward) => key >= end,
        (Bound::Included(end), Direction::Backward) => key < end,
        (Bound::Excluded(end), Direction::Backward) => key <= end,
    };
    let mut copied = Copied::default();
    let mut run = ahead::Run::default();
    while let Some(at) = start.take() {
        let call = core.poison.call();
        let leaf = tree.scan_leaf(&at, direction, run.wish())?;
        core.name_ahead(&mut run, space.id, &leaf.following);
        let node = Node::new(&leaf.page);
        let mut is_done = false;
        let slots = leaf.slots;
        for i in 0..slots.len() {
            let slot = if direction == Direction::Forward { slots.start + i } else { slots.end - 1 - i };
            let cell = node.leaf_cell(slot);
            if is_past(cell.key) {
                is_done = true;
                break;
            }
            if let Some(kept) = visible(core, reader, cell)? {
                copied.push(cell.key, kept);
            }
            if copied.is_enough() && i + 1 < slots.len() {
                start = Some(Start::Behind(cell.key.to_vec()));
                break;
            }
        }
        if start.is_none() && !is_done {
            start = leaf.next;
            run.step();
        }
        // Records that the view should see may have been purged from the leaf.
        reader.check()?;
        drop(leaf.page);
        copied.read_long(core, space)?;
        // What the caller's closure does is the caller's.
        drop(call);
        if copied.pass_on(&mut each).is_break() {
            return Ok(());
        }
    }
    Ok(())
}
