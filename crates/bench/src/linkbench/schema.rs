//! Rows of the graph as keys and values. Keys compare bytewise as their columns do; values start
//! with fixed little-endian columns and end in the payload.

use anyhow::{Result, bail, format_err};

/// Types of nodes and links are large arbitrary numbers in LinkBench; so are they here.
pub(crate) const NODE_TYPE: u32 = 2048;
const FIRST_LINK_TYPE: u64 = 123_456_789;

pub(crate) const HIDDEN: u8 = 0;
pub(crate) const VISIBLE: u8 = 1;

/// The type with index `index`.
pub(crate) fn link_type(index: usize) -> u64 {
    FIRST_LINK_TYPE + index as u64
}

/// Primary key of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    pub link_type: u64,
    pub id1: u64,
    pub id2: u64,
}

impl LinkId {
    pub(crate) fn key(&self) -> [u8; 24] {
        join([&self.link_type.to_be_bytes(), &self.id1.to_be_bytes(), &self.id2.to_be_bytes()])
    }

    pub(crate) fn of_key(key: &[u8]) -> Result<LinkId> {
        let Some(([link_type, id1, id2], [])) = words(key) else { bail!("link key of {} bytes", key.len()) };
        Ok(LinkId { link_type, id1, id2 })
    }
}

/// A link but for its primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkRow<'a> {
    pub visibility: u8,
    /// Milliseconds since 1970.
    pub time: u64,
    /// Counts the changes of this link.
    pub version: u32,
    pub data: &'a [u8],
}

impl<'a> LinkRow<'a> {
    pub(crate) fn value(&self, out: &mut Vec<u8>) {
        out.clear();
        out.push(self.visibility);
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(self.data);
    }

    pub(crate) fn of_value(value: &'a [u8]) -> Result<LinkRow<'a>> {
        let Some((head, data)) = value.split_first_chunk::<13>() else {
            bail!("link row of {} bytes", value.len())
        };
        let [visibility, t @ ..] = head;
        let (time, version) = t.split_at(8);
        Ok(LinkRow {
            visibility: *visibility,
            time: u64::from_le_bytes(time.try_into()?),
            version: u32::from_le_bytes(version.try_into()?),
            data,
        })
    }

    /// Key of this link in the index.
    pub(crate) fn index_key(&self, id: &LinkId) -> [u8; 33] {
        join([
            &index_prefix(id.id1, id.link_type, self.visibility),
            &newest_first(self.time),
            &id.id2.to_be_bytes(),
        ])
    }

    /// Value of this link in the index: the columns that its key lacks.
    pub(crate) fn index_value(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(self.data);
    }

    /// The link that an entry of the index stands for.
    pub(crate) fn of_index(key: &[u8], value: &'a [u8]) -> Result<(LinkId, LinkRow<'a>)> {
        let (Some(([id1, link_type], tail)), Some((version, data))) = (words(key), value.split_first_chunk())
        else {
            bail!("index entry of {} and {} bytes", key.len(), value.len())
        };
        let Some((&visibility, tail)) = tail.split_first() else { bail!("index key is cut") };
        let Some(([time, id2], [])) = words(tail) else { bail!("index key of {} bytes", key.len()) };
        let row = LinkRow { visibility, time: !time, version: u32::from_le_bytes(*version), data };
        Ok((LinkId { link_type, id1, id2 }, row))
    }
}

/// The common start of the index keys of all links of a list.
pub(crate) fn index_prefix(id1: u64, link_type: u64, visibility: u8) -> [u8; 17] {
    join([&id1.to_be_bytes(), &link_type.to_be_bytes(), &[visibility]])
}

/// Decodes the first key of a part of a list: id1, link type, visibility, and the newest time.
pub(crate) fn list_of_prefix(key: &[u8]) -> Result<(u64, u64, u8, u64)> {
    let cut = || format_err!("index key of {} bytes", key.len());
    let ([id1, link_type], tail) = words(key).ok_or_else(cut)?;
    let (&visibility, tail) = tail.split_first().ok_or_else(cut)?;
    let ([time], _) = words(tail).ok_or_else(cut)?;
    Ok((id1, link_type, visibility, !time))
}

/// The part of an index key that sorts by falling time.
pub(crate) fn newest_first(time: u64) -> [u8; 8] {
    (!time).to_be_bytes()
}

/// Primary key of a count.
pub(crate) fn count_key(id: u64, link_type: u64) -> [u8; 16] {
    join([&id.to_be_bytes(), &link_type.to_be_bytes()])
}

/// The list whose count a key stands for.
pub(crate) fn list_of_count(key: &[u8]) -> Result<(u64, u64)> {
    let Some(([id, link_type], [])) = words(key) else { bail!("count key of {} bytes", key.len()) };
    Ok((id, link_type))
}

/// A count but for its primary key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountRow {
    pub count: u32,
    pub time: u64,
    pub version: u64,
}

impl CountRow {
    pub(crate) fn value(&self) -> [u8; 20] {
        join([&self.count.to_le_bytes(), &self.time.to_le_bytes(), &self.version.to_le_bytes()])
    }

    pub(crate) fn of_value(value: &[u8]) -> Result<CountRow> {
        let Some((count, rest)) = value.split_first_chunk() else { bail!("count row is cut") };
        let Some((time, version)) = rest.split_first_chunk() else { bail!("count row is cut") };
        Ok(CountRow {
            count: u32::from_le_bytes(*count),
            time: u64::from_le_bytes(*time),
            version: u64::from_le_bytes(version.try_into()?),
        })
    }
}

/// A node but for its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRow<'a> {
    pub node_type: u32,
    /// Counts the changes of this node.
    pub version: u64,
    /// Seconds since 1970.
    pub time: u32,
    pub data: &'a [u8],
}

impl<'a> NodeRow<'a> {
    pub(crate) fn value(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.node_type.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(self.data);
    }

    pub(crate) fn of_value(value: &'a [u8]) -> Result<NodeRow<'a>> {
        let Some((head, data)) = value.split_first_chunk::<16>() else {
            bail!("node row of {} bytes", value.len())
        };
        Ok(NodeRow {
            node_type: u32::from_le_bytes(head[..4].try_into()?),
            version: u64::from_le_bytes(head[4..12].try_into()?),
            time: u32::from_le_bytes(head[12..].try_into()?),
            data,
        })
    }
}

/// Key of a node.
pub(crate) fn node_key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

/// The id in a key of a node.
pub(crate) fn node_id(key: &[u8]) -> Result<u64> {
    let Some(([id], [])) = words(key) else { bail!("node key of {} bytes", key.len()) };
    Ok(id)
}

fn join<const N: usize, const PARTS: usize>(parts: [&[u8]; PARTS]) -> [u8; N] {
    let mut joined = [0; N];
    let mut at = 0;
    for part in parts {
        joined[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    assert_eq!(at, N);
    joined
}

/// The first N big-endian words of `bytes`, and the rest.
fn words<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let mut rest = bytes;
    let mut words = [0; N];
    for word in &mut words {
        let (head, tail) = rest.split_first_chunk()?;
        *word = u64::from_be_bytes(*head);
        rest = tail;
    }
    Some((words, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LinkId = LinkId { link_type: 3, id1: 1 << 40, id2: u64::MAX };
    const ROW: LinkRow<'static> = LinkRow { visibility: VISIBLE, time: 1234, version: 9, data: b"xy" };

    #[test]
    fn rows_come_back() {
        let mut value = Vec::new();
        ROW.value(&mut value);
        assert_eq!(LinkRow::of_value(&value).unwrap(), ROW);
        assert_eq!(LinkId::of_key(&ID.key()).unwrap(), ID);
        ROW.index_value(&mut value);
        assert_eq!(LinkRow::of_index(&ROW.index_key(&ID), &value).unwrap(), (ID, ROW));
        let count = CountRow { count: 1, time: 2, version: 3 };
        assert_eq!(CountRow::of_value(&count.value()).unwrap(), count);
        let node = NodeRow { node_type: 1, version: 2, time: 3, data: b"" };
        node.value(&mut value);
        assert_eq!(NodeRow::of_value(&value).unwrap(), node);
        assert_eq!(node_id(&node_key(7)).unwrap(), 7);
    }

    #[test]
    fn cut_rows_are_errors() {
        for cut in 0..13 {
            assert!(LinkRow::of_value(&[0; 12][..cut.min(12)]).is_err());
            assert!(NodeRow::of_value(&[0; 15][..cut]).is_err());
            assert!(CountRow::of_value(&[0; 19][..cut]).is_err());
            assert!(LinkId::of_key(&ID.key()[..cut]).is_err());
            assert!(LinkRow::of_index(&ROW.index_key(&ID)[..cut], &[0; 4]).is_err());
        }
    }

    #[test]
    fn lists_sort_newest_first() {
        let key = |time, id2| LinkRow { time, ..ROW }.index_key(&LinkId { id2, ..ID });
        assert!(key(2, 0) < key(1, 0));
        assert!(key(2, 0) < key(2, 1));
        assert!(key(2, 1) < key(1, 0));
        assert!(key(5, 5).starts_with(&index_prefix(ID.id1, ID.link_type, VISIBLE)));
    }
}
