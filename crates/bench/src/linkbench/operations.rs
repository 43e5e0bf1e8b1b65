//! The ten requests as transactions.

use std::{ops::ControlFlow, sync::atomic::AtomicU64, sync::atomic::Ordering::Relaxed};

use anyhow::anyhow;

use super::{
    RANGE_LIMIT,
    acks::{Ack, AckLog},
    db::{Db, DbError, DbResult, Table, Txn, insert},
    schema::{
        self, CountRow, HIDDEN, LinkId, LinkRow, NODE_TYPE, NodeRow, VISIBLE, count_key, index_prefix,
        newest_first, node_key,
    },
};

/// A transaction that loses this often in a row is abandoned: something is wrong with the engine.
const RETRIES_MAX: u32 = 10_000;

/// A list of links as a client would hold it, its memory reused.
#[derive(Debug, Default)]
pub(crate) struct LinkList {
    links: Vec<(LinkId, u64)>,
    payload: Vec<u8>,
}

impl LinkList {
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// The oldest link of the list and its time.
    pub(crate) fn last(&self) -> Option<(LinkId, u64)> {
        self.links.last().copied()
    }

    fn clear(&mut self) {
        self.links.clear();
        self.payload.clear();
    }
}

/// One client of the database.
pub(crate) struct Client<'a, D: Db> {
    db: &'a D,
    acks: Option<&'a AckLog>,
    next_node_id: &'a AtomicU64,
    retries: u64,
    value: Vec<u8>,
}

impl<'a, D: Db> Client<'a, D> {
    pub(crate) fn new(db: &'a D, acks: Option<&'a AckLog>, next_node_id: &'a AtomicU64) -> Self {
        Client { db, acks, next_node_id, retries: 0, value: Vec::new() }
    }

    /// Transactions that lost and were run again, so far.
    pub(crate) fn retries(&self) -> u64 {
        self.retries
    }

    /// Runs `work` as a transaction until it does not lose, then acknowledges its changes.
    pub(crate) fn transact<T>(
        &mut self,
        mut work: impl FnMut(&mut D::Txn<'a>, &mut Vec<u8>, &mut Vec<Ack>) -> DbResult<T>,
    ) -> anyhow::Result<T> {
        let mut acks = Vec::new();
        for _ in 0..RETRIES_MAX {
            acks.clear();
            let attempt = self.db.begin().and_then(|mut txn| {
                let result = work(&mut txn, &mut self.value, &mut acks)?;
                if let (Some(log), Some(&Ack::NodeDeleted { id })) = (self.acks, acks.last()) {
                    log.append(&[Ack::NodeDeleting { id }])?;
                }
                txn.commit()?;
                Ok(result)
            });
            match attempt {
                Ok(result) => {
                    if let (Some(log), false) = (self.acks, acks.is_empty()) {
                        log.append(&acks)?;
                    }
                    return Ok(result);
                }
                Err(DbError::Retry(_)) => self.retries += 1,
                Err(DbError::Fatal(error)) => return Err(error),
            }
        }
        Err(anyhow!("a transaction lost {RETRIES_MAX} times in a row"))
    }

    /// Adds a visible link or overwrites it; returns whether it is new. Updates of links are this too.
    pub(crate) fn add_link(&mut self, id: LinkId, time: u64, data: &[u8]) -> anyhow::Result<bool> {
        self.transact(|txn, value, acks| {
            let key = id.key();
            let old_value = txn.get_for_update(Table::Link, &key)?;
            let old = old_value.as_deref().map(LinkRow::of_value).transpose()?;
            let version = old.map_or(0, |old| old.version + 1);
            let new = LinkRow { visibility: VISIBLE, time, version, data };
            new.value(value);
            acks.push(Ack::Link { id, version, crc: lacuna_crc::crc32c(value) });
            match old {
                Some(old) => {
                    txn.put(Table::Link, &key, value)?;
                    replace_index_entry(txn, &id, &old, &new, value)?;
                }
                None => {
                    insert(txn, Table::Link, &key, value)?;
                    new.index_value(value);
                    insert(txn, Table::LinkByTime, &new.index_key(&id), value)?;
                }
            }
            if old.is_none_or(|old| old.visibility == HIDDEN) {
                txn.change_count((id.id1, id.link_type), 1, time)?;
            }
            Ok(old.is_none())
        })
    }

    /// Hides a link; returns whether it was visible.
    pub(crate) fn delete_link(&mut self, id: LinkId, now: u64) -> anyhow::Result<bool> {
        self.transact(|txn, value, acks| {
            let key = id.key();
            let Some(old_value) = txn.get_for_update(Table::Link, &key)? else { return Ok(false) };
            let old = LinkRow::of_value(&old_value)?;
            if old.visibility == HIDDEN {
                return Ok(false);
            }
            let new = LinkRow { visibility: HIDDEN, version: old.version + 1, ..old };
            new.value(value);
            acks.push(Ack::Link { id, version: new.version, crc: lacuna_crc::crc32c(value) });
            txn.put(Table::Link, &key, value)?;
            replace_index_entry(txn, &id, &old, &new, value)?;
            txn.change_count((id.id1, id.link_type), -1, now)?;
            Ok(true)
        })
    }

    /// Number of visible links of a list.
    pub(crate) fn count_links(&mut self, id1: u64, link_type: u64) -> anyhow::Result<u32> {
        self.transact(|txn, _, _| {
            let Some(value) = txn.get(Table::Count, &count_key(id1, link_type))? else { return Ok(0) };
            Ok(CountRow::of_value(&value)?.count)
        })
    }

    /// Fetches single links, visible or not; returns how many there were.
    pub(crate) fn get_links(&mut self, id1: u64, link_type: u64, id2s: &[u64]) -> anyhow::Result<usize> {
        self.transact(|txn, _, _| {
            let mut found = 0;
            for &id2 in id2s {
                if let Some(value) = txn.get(Table::Link, &LinkId { link_type, id1, id2 }.key())? {
                    LinkRow::of_value(&value)?;
                    found += 1;
                }
            }
            Ok(found)
        })
    }

    /// Fetches the visible links of a list that are not newer than `newest`, newest first, without
    /// the first `skip`, at most [`RANGE_LIMIT`].
    pub(crate) fn get_link_list(
        &mut self,
        id1: u64,
        link_type: u64,
        newest: u64,
        skip: usize,
        list: &mut LinkList,
    ) -> anyhow::Result<()> {
        self.transact(|txn, _, _| {
            list.clear();
            let prefix = index_prefix(id1, link_type, VISIBLE);
            let from = [&prefix[..], &newest_first(newest)].concat();
            let to = index_prefix(id1, link_type, VISIBLE + 1);
            let mut to_skip = skip;
            let mut damage = None;
            txn.scan(Table::LinkByTime, &from, &to, &mut |key, value| {
                if to_skip > 0 {
                    to_skip -= 1;
                    return ControlFlow::Continue(());
                }
                match LinkRow::of_index(key, value) {
                    Ok((id, row)) => {
                        list.links.push((id, row.time));
                        list.payload.extend_from_slice(row.data);
                    }
                    Err(error) => damage = Some(error),
                }
                if list.links.len() == RANGE_LIMIT || damage.is_some() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            damage.map_or(Ok(()), |error| Err(error.into()))
        })
    }

    /// Adds a node; its id.
    pub(crate) fn add_node(&mut self, time: u32, data: &[u8]) -> anyhow::Result<u64> {
        let id = self.next_node_id.fetch_add(1, Relaxed);
        self.transact(|txn, value, acks| {
            NodeRow { node_type: NODE_TYPE, version: 1, time, data }.value(value);
            acks.push(Ack::Node { id, version: 1, crc: lacuna_crc::crc32c(value) });
            insert(txn, Table::Node, &node_key(id), value)
        })?;
        Ok(id)
    }

    /// Overwrites a node; returns whether it was there.
    pub(crate) fn update_node(&mut self, id: u64, time: u32, data: &[u8]) -> anyhow::Result<bool> {
        self.transact(|txn, value, acks| {
            let Some(old) = txn.get_for_update(Table::Node, &node_key(id))? else { return Ok(false) };
            let version = NodeRow::of_value(&old)?.version + 1;
            NodeRow { node_type: NODE_TYPE, version, time, data }.value(value);
            acks.push(Ack::Node { id, version, crc: lacuna_crc::crc32c(value) });
            txn.put(Table::Node, &node_key(id), value)?;
            Ok(true)
        })
    }

    /// Removes a node; returns whether it was there.
    pub(crate) fn delete_node(&mut self, id: u64) -> anyhow::Result<bool> {
        self.transact(|txn, _, acks| {
            let deleted = txn.delete(Table::Node, &node_key(id))?;
            if deleted {
                acks.push(Ack::NodeDeleted { id });
            }
            Ok(deleted)
        })
    }

    /// Fetches a node; returns whether it is there.
    pub(crate) fn get_node(&mut self, id: u64) -> anyhow::Result<bool> {
        self.transact(|txn, _, _| {
            let Some(value) = txn.get(Table::Node, &node_key(id))? else { return Ok(false) };
            Ok(NodeRow::of_value(&value)?.node_type == NODE_TYPE)
        })
    }
}

fn replace_index_entry(
    txn: &mut impl Txn,
    id: &LinkId,
    old: &LinkRow<'_>,
    new: &LinkRow<'_>,
    value: &mut Vec<u8>,
) -> DbResult<()> {
    let (old_key, new_key) = (old.index_key(id), new.index_key(id));
    new.index_value(value);
    if old_key == new_key {
        return txn.put(Table::LinkByTime, &new_key, value);
    }
    if !txn.delete(Table::LinkByTime, &old_key)? {
        return Err(anyhow!("link {id:?} has no entry in its index").into());
    }
    insert(txn, Table::LinkByTime, &new_key, value)
}

/// The link with index numbers as the generators give them.
pub(crate) fn link_id(id1: u64, type_index: usize, id2: u64) -> LinkId {
    LinkId { link_type: schema::link_type(type_index), id1, id2 }
}
