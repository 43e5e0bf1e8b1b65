//! The acknowledgement log: the rows that must be found in the store after any crash.
//!
//! An [`AckFile`] with these lines:
//!
//! ```text
//! lacuna-acks 1            first line
//! B id n                   nodes id .. id + n were loaded
//! S type id1 id2 n         links (type, id1, id2 .. id2 + n) were loaded
//! N id version crc         node put; CRC32C of its row
//! L type id1 id2 version crc
//!                          link put or hidden
//! d id                     node is about to be deleted (written before the commit)
//! D id                     node deleted
//! ```
//!
//! Why this is conclusive although requesters race: versions are read and incremented under the row's lock inside the
//! transaction, so per row they grow in commit order. A row must be there at its highest acknowledged version, with
//! that very content, or at a later one (of a commit that was not acknowledged). Ids of nodes are never reused within a
//! run, so a deletion is final, and only a row whose deletion was at least announced may be missing.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    hash::Hash,
    path::Path,
};

use anyhow::Result;

use super::schema::LinkId;
use crate::ack_file::{self, AckFile, Acknowledgement, fields};

/// The changes of one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    NodesLoaded { id: u64, n: u64 },
    LinksLoaded { first: LinkId, n: u64 },
    Node { id: u64, version: u64, crc: u32 },
    Link { id: LinkId, version: u32, crc: u32 },
    NodeDeleting { id: u64 },
    NodeDeleted { id: u64 },
}

impl Acknowledgement for Ack {
    const FIRST_LINE: &'static str = "lacuna-acks 1";
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ack::NodesLoaded { id, n } => write!(f, "B {id} {n}"),
            Ack::LinksLoaded { first: LinkId { link_type, id1, id2 }, n } => {
                write!(f, "S {link_type} {id1} {id2} {n}")
            }
            Ack::Node { id, version, crc } => write!(f, "N {id} {version} {crc}"),
            Ack::Link { id: LinkId { link_type, id1, id2 }, version, crc } => {
                write!(f, "L {link_type} {id1} {id2} {version} {crc}")
            }
            Ack::NodeDeleting { id } => write!(f, "d {id}"),
            Ack::NodeDeleted { id } => write!(f, "D {id}"),
        }
    }
}

/// Writes acknowledgements.
pub type AckLog = AckFile<Ack>;

/// All rows that a log requires of the store.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    /// First id to number of nodes.
    pub nodes_loaded: BTreeMap<u64, u64>,
    /// First link to number of links with ascending id2.
    pub links_loaded: BTreeMap<LinkId, u64>,
    /// Highest version and checksum of the row at that version.
    pub nodes: HashMap<u64, (u64, u32)>,
    pub links: HashMap<LinkId, (u32, u32)>,
    pub deleting: HashSet<u64>,
    pub deleted: HashSet<u64>,
    /// Number of acknowledgements.
    pub acks: u64,
}

impl Demands {
    /// Reads a log.
    pub(crate) fn read(path: &Path) -> Result<Demands> {
        let mut demands = Demands::default();
        ack_file::read::<Ack>(path, |line| demands.add(line))?;
        Ok(demands)
    }

    fn add(&mut self, line: &str) -> bool {
        self.acks += 1;
        let Some((kind, rest)) = line.split_once(' ') else { return false };
        match kind {
            "B" => fields(rest).map(|[id, n]| {
                self.nodes_loaded.insert(id, n);
            }),
            "S" => fields(rest).map(|[link_type, id1, id2, n]| {
                self.links_loaded.insert(LinkId { link_type, id1, id2 }, n);
            }),
            "N" => fields(rest).map(|[id, version, crc]| {
                keep_highest(&mut self.nodes, id, (version, crc as u32));
            }),
            "L" => fields(rest).map(|[link_type, id1, id2, version, crc]| {
                let id = LinkId { link_type, id1, id2 };
                keep_highest(&mut self.links, id, (version as u32, crc as u32));
            }),
            "d" => fields(rest).map(|[id]| {
                self.deleting.insert(id);
            }),
            "D" => fields(rest).map(|[id]| {
                self.deleted.insert(id);
            }),
            _ => None,
        }
        .is_some()
    }
}

/// A log of acknowledgements, line by line; see fuzz/.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let mut demands = Demands::default();
    let text = String::from_utf8_lossy(bytes);
    let accepted = text.lines().filter(|line| demands.add(line)).count() as u64;
    assert!(accepted <= demands.acks);
}

fn keep_highest<K: Eq + Hash, V: PartialOrd + Copy>(kept: &mut HashMap<K, V>, key: K, seen: V) {
    kept.entry(key).and_modify(|v| *v = if seen > *v { seen } else { *v }).or_insert(seen);
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, path::PathBuf};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("lacuna-acks-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_is_written_is_demanded() {
        let path = scratch("log");
        let link = LinkId { link_type: 1, id1: 2, id2: 3 };
        let log = AckLog::create(&path).unwrap();
        log.append(&[Ack::NodesLoaded { id: 1, n: 10 }, Ack::LinksLoaded { first: link, n: 4 }]).unwrap();
        log.append(&[Ack::Link { id: link, version: 3, crc: 33 }]).unwrap();
        log.append(&[Ack::Link { id: link, version: 2, crc: 22 }]).unwrap();
        log.append(&[Ack::Node { id: 5, version: 2, crc: 9 }, Ack::NodeDeleting { id: 6 }]).unwrap();
        log.append(&[Ack::NodeDeleted { id: 6 }]).unwrap();
        fs::File::options().append(true).open(&path).unwrap().write_all(b"D 1").unwrap();
        let demands = Demands::read(&path).unwrap();
        assert_eq!(demands.nodes_loaded, BTreeMap::from([(1, 10)]));
        assert_eq!(demands.links_loaded, BTreeMap::from([(link, 4)]));
        assert_eq!(demands.links, HashMap::from([(link, (3, 33))]));
        assert_eq!(demands.nodes, HashMap::from([(5, (2, 9))]));
        assert_eq!((demands.deleting, demands.deleted), (HashSet::from([6]), HashSet::from([6])));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn other_files_are_neither_read_nor_overwritten() {
        let path = scratch("foreign");
        std::fs::write(&path, "dear diary\n").unwrap();
        assert!(AckLog::create(&path).is_err());
        assert!(Demands::read(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary\n");
        std::fs::write(&path, format!("{}\nN 1\n", Ack::FIRST_LINE)).unwrap();
        assert!(Demands::read(&path).is_err());
        std::fs::remove_file(path).unwrap();
    }
}
