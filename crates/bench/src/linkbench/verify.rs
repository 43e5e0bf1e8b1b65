//! The graph's own invariants, and the acknowledgement log, against the store.
//!
//! 1. Every link has exactly one entry in the index, with its very columns, and no entry is without
//!    a link.
//! 2. Every count equals the number of visible links of its list.
//! 3. Every acknowledged row is there (see [`super::acks`]).
//!
//! Each table is read once from end to end in the order of its keys. Links and index sort
//! differently, so invariant 1 is checked by comparing sums of 128-bit hashes of all their rows;
//! only when these differ are links looked up one by one to name the first culprit.

use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
    path::Path,
};

use anyhow::{Result, anyhow, bail, ensure};

use super::{
    acks::Demands,
    db::{Db, DbError, Table, Txn},
    schema::{self, CountRow, LinkId, LinkRow, NodeRow, VISIBLE},
};

/// The counts of a sound graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Nodes.
    pub nodes: u64,
    /// Links, hidden ones included.
    pub links: u64,
    /// Visible links.
    pub visible_links: u64,
    /// Verified acknowledgements, if any were asked for.
    pub acks: u64,
}

/// Checks invariants 1 and 2; an error names the first violation.
pub(crate) fn verify_graph<D: Db>(db: &D) -> Result<Verified> {
    verify(db, &mut Demands::default())
}

/// Checks all invariants, with the demands of the log at `acks`.
///
/// # Errors
/// When the log or the store cannot be read, and for the first violation.
pub fn verify_acks<D: Db>(db: &D, acks: &Path) -> Result<Verified> {
    verify(db, &mut Demands::read(acks)?)
}

fn verify<D: Db>(db: &D, demands: &mut Demands) -> Result<Verified> {
    let nodes = check_nodes(db, demands)?;
    let (links, link_sum) = check_links(db, demands)?;
    let (visible_links, index_sum) = check_index_and_counts(db)?;
    if link_sum != index_sum {
        find_index_mismatch(db)?;
        bail!("links and their index differ: the index has entries without a link");
    }
    Ok(Verified { nodes, links, visible_links, acks: demands.acks })
}

fn scan_all<D: Db>(db: &D, table: Table, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let plain = |error| match error {
        DbError::Retry(reason) => anyhow!("a scan of table {} lost: {reason}", table.name()),
        DbError::Fatal(error) => error,
    };
    let mut failure = None;
    let mut txn = db.begin().map_err(plain)?;
    txn.scan(table, &[], &[0xFF; 64], &mut |key, value| match visit(key, value) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    })
    .map_err(plain)?;
    txn.commit().map_err(plain)?;
    failure.map_or(Ok(()), Err)
}

/// Invariant 3 for nodes; their number.
fn check_nodes<D: Db>(db: &D, demands: &mut Demands) -> Result<u64> {
    let mut nodes = 0;
    let mut ranges = std::mem::take(&mut demands.nodes_loaded).into_iter().peekable();
    // First id of the open range that was not met yet, and its end.
    let mut open = 0..0;
    let gone = |ids: std::ops::Range<u64>, demands: &Demands| {
        let lost = |id: &u64| !demands.deleting.contains(id);
        ids.clone().find(lost).map_or(Ok(()), |id| Err(anyhow!("loaded node {id} is lost")))
    };
    scan_all(db, Table::Node, |key, value| {
        let (id, row) = (schema::node_id(key)?, NodeRow::of_value(value)?);
        nodes += 1;
        loop {
            let met = id.min(open.end).max(open.start);
            gone(open.start..met, demands)?;
            open.start = met;
            let Some((first, n)) = ranges.next_if(|&(first, _)| open.is_empty() && first <= id) else {
                break;
            };
            open = first..first + n;
        }
        if open.start == id && !open.is_empty() {
            open.start += 1;
        }
        ensure!(!demands.deleted.contains(&id), "node {id} is there though its deletion was acknowledged");
        if let Some((version, crc)) = demands.nodes.remove(&id) {
            check_version("node", id, (row.version, value), (version, crc))?;
        }
        Ok(())
    })?;
    gone(open, demands)?;
    for (first, n) in ranges {
        gone(first..first + n, demands)?;
    }
    if let Some(id) = demands.nodes.keys().find(|id| !demands.deleting.contains(id)) {
        bail!("acknowledged node {id} is lost");
    }
    Ok(nodes)
}

fn check_version(
    what: &str,
    id: impl std::fmt::Debug,
    (found, value): (u64, &[u8]),
    (acked, crc): (u64, u32),
) -> Result<()> {
    ensure!(found >= acked, "{what} {id:?} is at version {found}, acknowledged was {acked}");
    ensure!(
        found > acked || lacuna_crc::crc32c(value) == crc,
        "{what} {id:?} at version {found} is not what was acknowledged"
    );
    Ok(())
}

/// Invariant 3 for links; their number and the sum of their hashes.
fn check_links<D: Db>(db: &D, demands: &mut Demands) -> Result<(u64, Sum)> {
    let (mut links, mut sum) = (0, Sum::default());
    let mut loads = Loads::new(std::mem::take(&mut demands.links_loaded));
    scan_all(db, Table::Link, |key, value| {
        let (id, row) = (LinkId::of_key(key)?, LinkRow::of_value(value)?);
        links += 1;
        sum.add(&id, &row);
        loads.meet(id)?;
        if let Some((version, crc)) = demands.links.remove(&id) {
            check_version("link", id, (u64::from(row.version), value), (u64::from(version), crc))?;
        }
        Ok(())
    })?;
    loads.finish()?;
    if let Some(id) = demands.links.keys().next() {
        bail!("acknowledged {id:?} is lost");
    }
    Ok((links, sum))
}

/// The loaded links that are still to be met by a scan in key order.
struct Loads {
    ranges: std::iter::Peekable<std::collections::btree_map::IntoIter<LinkId, u64>>,
}

impl Loads {
    fn new(ranges: BTreeMap<LinkId, u64>) -> Loads {
        Loads { ranges: ranges.into_iter().peekable() }
    }

    fn meet(&mut self, id: LinkId) -> Result<()> {
        let Some((first, n)) = self.ranges.peek_mut() else { return Ok(()) };
        ensure!(*first >= id, "loaded {first:?} is lost");
        if *first == id {
            first.id2 += 1;
            *n -= 1;
            if *n == 0 {
                self.ranges.next();
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.ranges.next().map_or(Ok(()), |(first, _)| Err(anyhow!("loaded {first:?} is lost")))
    }
}

/// Invariant 2; the number of visible links and the sum of the hashes of the index.
fn check_index_and_counts<D: Db>(db: &D) -> Result<(u64, Sum)> {
    let (mut total, mut sum) = (0u64, Sum::default());
    // Lists with their visible links, in the order of the index, which is that of the counts.
    let mut lists: Vec<((u64, u64), u32)> = Vec::new();
    scan_all(db, Table::LinkByTime, |key, value| {
        let (id, row) = LinkRow::of_index(key, value)?;
        sum.add(&id, &row);
        if row.visibility == VISIBLE {
            total += 1;
            let list = (id.id1, id.link_type);
            match lists.last_mut().filter(|(last, _)| *last == list) {
                Some((_, visible)) => *visible += 1,
                None => lists.push((list, 1)),
            }
        }
        Ok(())
    })?;
    let mut lists = lists.into_iter().peekable();
    scan_all(db, Table::Count, |key, value| {
        let list = schema::list_of_count(key)?;
        if let Some(skipped) = lists.next_if(|&(next, _)| next < list) {
            return Err(uncounted(skipped));
        }
        let visible = lists.next_if(|&(next, _)| next == list).map_or(0, |(_, visible)| visible);
        let count = CountRow::of_value(value)?.count;
        ensure!(count == visible, "count of list {list:?} is {count}, it has {visible} visible links");
        Ok(())
    })?;
    lists.next().map_or(Ok((total, sum)), |list| Err(uncounted(list)))
}

fn uncounted((list, visible): ((u64, u64), u32)) -> anyhow::Error {
    anyhow!("list {list:?} has {visible} visible links and no count")
}

/// Names the first link whose index entry is not as it should be, if it is a link that is wrong.
fn find_index_mismatch<D: Db>(db: &D) -> Result<()> {
    let mut entries: HashMap<LinkId, u32> = HashMap::new();
    scan_all(db, Table::LinkByTime, |key, value| {
        let (id, row) = LinkRow::of_index(key, value)?;
        let mut whole = Vec::new();
        row.value(&mut whole);
        ensure!(entries.insert(id, lacuna_crc::crc32c(&whole)).is_none(), "{id:?} is in the index twice");
        Ok(())
    })?;
    scan_all(db, Table::Link, |key, value| {
        let id = LinkId::of_key(key)?;
        let entry = entries.get(&id).ok_or_else(|| anyhow!("{id:?} is not in the index"))?;
        ensure!(*entry == lacuna_crc::crc32c(value), "{id:?} differs from its entry in the index");
        Ok(())
    })
}

/// An order-independent hash of a set of links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum([u64; 2]);

impl Sum {
    fn add(&mut self, id: &LinkId, row: &LinkRow<'_>) {
        use std::hash::{DefaultHasher, Hash, Hasher};
        for (sum, salt) in self.0.iter_mut().zip([1u8, 2]) {
            let mut hasher = DefaultHasher::new();
            (salt, id, row.visibility, row.time, row.version, row.data).hash(&mut hasher);
            *sum = sum.wrapping_add(hasher.finish());
        }
    }
}
