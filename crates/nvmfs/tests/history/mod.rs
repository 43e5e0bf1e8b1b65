//! Random operations on a VFS, and the model that they are compared with.

use std::{collections::BTreeMap, sync::Arc};

use lacuna_device::{BatchOp, Error, Result, StreamHint, Vfs};
use lacuna_sim::SeededRng;

pub(crate) const SECTOR: u64 = 512;

/// A file that random changes leave alone.
pub(crate) const BALLAST: &str = "ballast";

/// Largest file of a history in sectors.
const FILE_SECTORS_MAX: u64 = 64;

/// The content of a VFS: contents by name. Contents are shared between states of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model(pub(crate) BTreeMap<String, Arc<Vec<u8>>>);

/// One operation, whole or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Create(String, StreamHint),
    Remove(String),
    Rename(String, String),
    SetLen(String, u64),
    Batch(Vec<Part>),
}

/// One element of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) offset: u64,
    pub(crate) data: Data,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    Write(Vec<u8>),
    Punch(u64),
}

fn random_name(rng: &mut SeededRng) -> String {
    match rng.below(12) {
        11 => "x".repeat(255),
        number => format!("file {number}"),
    }
}

/// Bytes of which the tail of some sectors is zero, as compressed pages have them.
fn random_data(rng: &mut SeededRng, sectors: u64) -> Vec<u8> {
    let mut data = vec![0; (sectors * SECTOR) as usize];
    let filled = if rng.chance(50) { data.len() } else { rng.below(data.len() as u64 + 1) as usize };
    rng.fill(&mut data[..filled]);
    data
}

fn random_part(rng: &mut SeededRng, name: String) -> Part {
    let offset = rng.below(FILE_SECTORS_MAX);
    let sectors_max = if rng.chance(20) { FILE_SECTORS_MAX } else { 8 };
    let sectors = 1 + rng.below(sectors_max.min(FILE_SECTORS_MAX - offset));
    let data =
        if rng.chance(25) { Data::Punch(sectors * SECTOR) } else { Data::Write(random_data(rng, sectors)) };
    Part { name, offset: offset * SECTOR, data }
}

/// Overwrites some sectors of the ballast, `len` bytes long.
pub(crate) fn ballast_change(rng: &mut SeededRng, len: u64) -> Change {
    let sectors = len / SECTOR;
    let offset = rng.below(sectors);
    let count = 1 + rng.below(32).min(sectors - offset - 1);
    let data = random_data(rng, count);
    Change::Batch(vec![Part { name: BALLAST.to_owned(), offset: offset * SECTOR, data: Data::Write(data) }])
}

/// A random change; most succeed, some are refused.
pub(crate) fn random_change(rng: &mut SeededRng, model: &Model) -> Change {
    let existing = |rng: &mut SeededRng| {
        let small = || model.0.keys().filter(|name| *name != BALLAST);
        let name = small().nth(rng.below(1 + small().count() as u64) as usize);
        name.cloned()
    };
    // Sometimes a file that does not exist.
    let name = existing(rng).unwrap_or_else(|| random_name(rng));
    match rng.below(20) {
        0..=2 => {
            let hint = if rng.chance(30) { StreamHint::Log } else { StreamHint::Data };
            Change::Create(random_name(rng), hint)
        }
        3 => Change::Remove(name),
        4..=5 => Change::Rename(name, random_name(rng)),
        6..=7 => Change::SetLen(name, rng.below(FILE_SECTORS_MAX + 1) * SECTOR),
        _ => {
            let parts = if rng.chance(30) { 2 + rng.below(5) } else { 1 };
            let part = |_| {
                let name = existing(rng).unwrap_or_else(|| name.clone());
                random_part(rng, name)
            };
            Change::Batch((0..parts).map(part).collect())
        }
    }
}

/// Applies a change to a VFS.
pub(crate) fn apply(vfs: &dyn Vfs, change: &Change) -> Result<()> {
    match change {
        Change::Create(name, hint) => vfs.create(name, *hint).map(drop),
        Change::Remove(name) => vfs.remove(name),
        Change::Rename(from, to) => vfs.rename(from, to),
        Change::SetLen(name, len) => vfs.open(name, StreamHint::Data)?.set_len(*len),
        Change::Batch(parts) => {
            let opened: Result<Vec<_>> =
                parts.iter().map(|part| vfs.open(&part.name, StreamHint::Data)).collect();
            let opened = opened?;
            let ops: Vec<BatchOp<'_>> = parts
                .iter()
                .zip(&opened)
                .map(|(part, file)| match &part.data {
                    Data::Write(data) => BatchOp::Write { file: file.id(), offset: part.offset, data },
                    Data::Punch(len) => BatchOp::Punch { file: file.id(), offset: part.offset, len: *len },
                })
                .collect();
            vfs.write_batch(&ops)
        }
    }
}

impl Model {
    /// The model after a change, or the error that a VFS returns for it.
    pub(crate) fn after(&self, change: &Change) -> Result<Model> {
        let mut model = self.clone();
        model.apply(change)?;
        Ok(model)
    }

    /// As [`Model::after`], in place; half done after an error.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<()> {
        let Model(files) = self;
        let missing = |name: &String| Error::NotFound { name: name.clone() };
        match change {
            Change::Create(name, _) => {
                if files.insert(name.clone(), Arc::default()).is_some() {
                    return Err(Error::Exists { name: name.clone() });
                }
            }
            Change::Remove(name) => {
                files.remove(name).ok_or_else(|| missing(name))?;
            }
            Change::Rename(from, to) => {
                let content = files.remove(from).ok_or_else(|| missing(from))?;
                files.insert(to.clone(), content);
            }
            Change::SetLen(name, len) => {
                let content = files.get_mut(name).ok_or_else(|| missing(name))?;
                Arc::make_mut(content).resize(*len as usize, 0);
            }
            Change::Batch(parts) => {
                for part in parts {
                    let content = files.get_mut(&part.name).ok_or_else(|| missing(&part.name))?;
                    part.apply(Arc::make_mut(content));
                }
            }
        }
        Ok(())
    }

    /// Reads the content of a VFS.
    pub(crate) fn read(vfs: &dyn Vfs) -> Result<Model> {
        let mut model = Model::default();
        for name in vfs.list()? {
            let file = vfs.open(&name, StreamHint::Data)?;
            let len = file.len()?;
            // A little past the end, where zeros must be.
            let mut content = vec![1; (len + 4 * SECTOR) as usize];
            file.read_at(0, &mut content)?;
            assert!(content[len as usize..].iter().all(|byte| *byte == 0), "{name}: data past its end");
            content.truncate(len as usize);
            assert!(model.0.insert(name.clone(), Arc::new(content)).is_none(), "{name} is listed twice");
        }
        Ok(model)
    }

    /// In short, for messages: names and lengths.
    pub(crate) fn summary(&self) -> String {
        let files = self.0.iter().map(|(name, content)| format!("{:.9}:{}", name, content.len()));
        files.collect::<Vec<_>>().join(" ")
    }
}

impl Part {
    fn apply(&self, content: &mut Vec<u8>) {
        let start = self.offset as usize;
        match &self.data {
            Data::Write(data) => {
                let end = start + data.len();
                content.resize(content.len().max(end), 0);
                content[start..end].copy_from_slice(data);
            }
            Data::Punch(len) => {
                let end = (start + *len as usize).min(content.len());
                content[start.min(end)..end].fill(0);
            }
        }
    }
}

/// Whether two errors are of the same kind.
pub(crate) fn same_kind(a: &Error, b: &Error) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}
