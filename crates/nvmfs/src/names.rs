//! Names in the root directory: create, open, remove, rename, list. Invariants, crash argument and lock
//! order are those of `fs.rs`.

use std::{ops::Range, sync::Arc};

use lacuna_device::{SECTOR, StreamHint, check_file_name};
use lacuna_ftl::{Op, Stream};

use crate::{
    Result,
    addr::{Ino, REGION_SECTORS},
    directory::{self, Bucket, Buckets, Held, Removal, Search},
    format::{self, Dirent, Inode, MODE_FILE, Timestamp},
    fs::{Shared, not_found},
    inode::{OpenInode, Record},
};

/// What changes with the names.
pub(crate) struct Names {
    /// Changes of names since the file system was opened.
    changes: u64,
    /// Where the search for a free inode number starts.
    next_ino: Ino,
    /// Generation of the next new inode.
    next_generation: u32,
}

impl Names {
    /// `now` keeps generations from repeating after the file system was opened anew.
    pub(crate) fn new(now: Timestamp) -> Names {
        let next_generation = (now.seconds as u32).wrapping_mul(1 << 12) ^ now.nanoseconds;
        Names { changes: 0, next_ino: Ino::FIRST, next_generation }
    }

    fn take_generation(&mut self) -> u32 {
        self.next_generation = self.next_generation.wrapping_add(1);
        self.next_generation
    }
}

/// The buckets of the root directory.
impl Buckets for Shared {
    fn get(&self, bucket: Bucket) -> Result<Held> {
        let lba = bucket.lba(Ino::ROOT);
        if !self.ftl.is_mapped(lba)? {
            return Ok(Held::Nothing);
        }
        let mut bytes = [0; SECTOR];
        self.ftl.read(lba, &mut bytes)?;
        if bytes == [0; SECTOR] {
            return Ok(Held::Nothing); // emptied since it was looked up
        }
        directory::parse_bucket(&self.store, Ino::ROOT, bucket, &bytes)
    }
}

impl Shared {
    pub(crate) fn hash_name(&self, name: &str) -> u64 {
        directory::hash_name(&self.uuid, name)
    }

    fn search(&self, name: &str) -> Result<Search> {
        directory::search(self, name, self.hash_name(name))
    }

    /// Searches and plans without a lock, then commits under it; again if names changed in between.
    fn with_names<P, T>(
        &self,
        plan: impl Fn() -> Result<P>,
        commit: impl Fn(&mut Names, P) -> Result<T>,
    ) -> Result<T> {
        loop {
            let changes = self.names.lock().changes;
            let planned = plan();
            let mut names = self.names.lock();
            // A plan made of two states may fail for a reason that never was.
            if names.changes == changes {
                return commit(&mut names, planned?);
            }
        }
    }

    /// Opens the file `name`.
    pub(crate) fn open_file(&self, name: &str, hint: StreamHint) -> Result<Arc<OpenInode>> {
        check_file_name(name)?;
        let inode = self.with_names(
            || self.search(name),
            |_, found| {
                let Search::Found { bucket, entry } = found else { return Err(not_found(name)) };
                let inode = self.inodes.get_or_insert(entry.ino(), entry.generation());
                if inode.generation != entry.generation() {
                    return Err(self.corrupt("directory", bucket.0, "two entries for one inode"));
                }
                Ok(inode)
            },
        )?;
        self.load(&inode, name)?;
        inode.set_hint(hint);
        Ok(inode)
    }

    /// Reads an open inode in, if that was not done yet. Only those who need this very inode wait.
    fn load(&self, inode: &OpenInode, name: &str) -> Result<()> {
        let mut record = inode.record.write();
        match *record {
            Record::Live(_) => Ok(()),
            Record::Removed => Err(not_found(name)),
            Record::Unloaded => {
                let loaded = self.read_inode(inode.ino)?;
                if loaded.generation.get() != inode.generation || !loaded.is_file() {
                    let reason = "it is not the inode that its name stands for";
                    return Err(self.corrupt("inode table", u64::from(inode.ino.0), reason));
                }
                *record = Record::Live(loaded);
                Ok(())
            }
        }
    }

    /// Creates the file `name`: its entry and its inode.
    pub(crate) fn create_file(&self, name: &str, hint: StreamHint) -> Result<Arc<OpenInode>> {
        check_file_name(name)?;
        self.with_names(
            || self.search(name),
            |names, found| {
                let Search::Absent { free } = found else {
                    return Err(lacuna_device::Error::Exists { name: name.to_owned() }.into());
                };
                let ino = self.free_ino(names.next_ino)?;
                let is_log = hint == StreamHint::Log;
                let generation = names.take_generation();
                let inode = Inode::new(ino, generation, MODE_FILE | 0o644, is_log, (self.clock)());
                let entry = Dirent::new(name, self.hash_name(name), &inode);
                let lba = free.lba(Ino::ROOT);
                let ops = [
                    Op::Write { lba, data: &format::seal(&entry, lba) },
                    Op::Write { lba: ino.inode_lba(), data: &inode.seal() },
                ];
                self.ftl.write_batch(&ops, Stream::Data)?;
                names.changes += 1;
                names.next_ino = if ino < Ino::LAST { Ino(ino.0 + 1) } else { Ino::FIRST };
                let open = OpenInode::new(ino, generation, Record::Live(inode));
                open.set_hint(hint);
                self.inodes.insert(&open);
                Ok(open)
            },
        )
    }

    /// The first number at or after `start` that no inode has, starting over at the end (invariant 2).
    fn free_ino(&self, start: Ino) -> Result<Ino> {
        let table = |numbers: Range<u32>| Ino(numbers.start).inode_lba()..Ino(numbers.end).inode_lba();
        for numbers in [start.0..Ino::LAST.0, Ino::FIRST.0..start.0] {
            let mut rest = table(numbers);
            while !rest.is_empty() {
                match self.ftl.mapped(rest.clone())? {
                    Some(used) if used.start == rest.start => rest.start = used.end,
                    _ => return Ok(Ino(Ino::of(rest.start).1 as u32)),
                }
            }
        }
        Err(lacuna_device::Error::Full { what: format!("{}: inodes", self.store) }.into())
    }

    /// Removes the file `name`: its entry, its inode and its data.
    pub(crate) fn remove_file(&self, name: &str) -> Result<()> {
        check_file_name(name)?;
        let plan = || match self.search(name)? {
            Search::Absent { .. } => Err(not_found(name)),
            Search::Found { bucket, entry } => Ok((entry, directory::plan_removal(self, bucket, None)?)),
        };
        self.with_names(plan, |names, (entry, removal)| {
            let bytes = removal.bytes(Ino::ROOT);
            self.remove_inode(names, entry.ino(), &[removal.op(Ino::ROOT, &bytes)])
        })
    }

    /// Applies `ops`, which take the last name from `ino`, in one batch with the end of its inode and
    /// its data.
    fn remove_inode(&self, names: &mut Names, ino: Ino, ops: &[Op<'_>]) -> Result<()> {
        let open = self.inodes.get(ino);
        let record = open.as_ref().map(|inode| inode.record.write());
        let mut batch = ops.to_vec();
        batch.push(Op::Trim { lba: ino.inode_lba(), sectors: 1 });
        batch.push(Op::Trim { lba: ino.lba(0), sectors: REGION_SECTORS });
        self.ftl.write_batch(&batch, Stream::Data)?;
        names.changes += 1;
        if let (Some(inode), Some(mut record)) = (&open, record) {
            inode.mark_removed(&mut record);
        }
        self.inodes.forget(ino);
        Ok(())
    }

    /// Renames a file, which removes what had the new name.
    pub(crate) fn rename_file(&self, from: &str, to: &str) -> Result<()> {
        check_file_name(from)?;
        check_file_name(to)?;
        struct Plan {
            entry: Dirent,
            old: Removal,
            new: Bucket,
            replaced: Option<Ino>,
        }
        let plan = || {
            let Search::Found { bucket: old_bucket, entry } = self.search(from)? else {
                return Err(not_found(from));
            };
            if from == to {
                return Ok(None);
            }
            let (new, replaced) = match self.search(to)? {
                Search::Found { bucket, entry } => (bucket, Some(entry.ino())),
                Search::Absent { free } => (free, None),
            };
            let old = directory::plan_removal(self, old_bucket, Some(new))?;
            Ok(Some(Plan { entry, old, new, replaced }))
        };
        self.with_names(plan, |names, planned| {
            let Some(Plan { entry, old, new, replaced }) = planned else { return Ok(()) };
            let lba = new.lba(Ino::ROOT);
            let renamed = format::seal(&entry.renamed(to, self.hash_name(to)), lba);
            let old_bytes = old.bytes(Ino::ROOT);
            let ops = [old.op(Ino::ROOT, &old_bytes), Op::Write { lba, data: &renamed }];
            match replaced {
                Some(replaced) => self.remove_inode(names, replaced, &ops),
                None => {
                    self.ftl.write_batch(&ops, Stream::Data)?;
                    names.changes += 1;
                    Ok(())
                }
            }
        })
    }

    /// All entries of the root directory. Those that come or go meanwhile may or may not be among them.
    pub(crate) fn entries(&self) -> Result<Vec<Dirent>> {
        let mut entries = Vec::new();
        let mut rest = Ino::ROOT.region();
        while let Some(run) = self.ftl.mapped(rest.clone())? {
            for lba in run.start.0..run.end.0 {
                let bucket = Bucket(lba - Ino::ROOT.lba(0).0);
                if let Held::Entry(entry) = self.get(bucket)? {
                    entries.push(entry);
                }
            }
            rest.start = run.end;
        }
        Ok(entries)
    }
}
