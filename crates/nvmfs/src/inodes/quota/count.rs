//! Counting what users have, and the limits of what they may have.

use std::collections::{BTreeSet, HashMap};

use lacuna_ftl::{Lba, Op, Remains, Stream};

use super::{Books, SeqCst, Tally, Usage, UserQuota};
use crate::{
    error::{Error, Refusal, Result},
    format::{self, Ino, Limits, LimitsSector, Privilege, can_have_limits},
    inodes::Inodes,
};

/// Inodes that are read together.
const SECTORS_AT_ONCE: usize = 1 << 16;
/// Bytes of limits that are read together.
const LIMITS_BYTES: usize = 4 << 20;

impl Inodes {
    /// Reads the limits and, where there are any that `enforce` asks for, counts what users have.
    pub(crate) fn open_quotas(&self, enforce: bool) -> Result<()> {
        let _asking = self.quotas.asking.lock();
        let (mut limits, mut findings) = self.read_limits()?;
        if !findings.is_empty() {
            // What could not be read may be read now.
            (limits, findings) = self.read_limits()?;
        }
        if let [first, ..] = &findings[..] {
            let (store, count) = (self.volume.name(), findings.len());
            log::warn!(
                "{store}: {count} limits of users, or parts of them, cannot be read and bind nobody: {first}"
            );
        }
        let is_needed = enforce && !limits.is_empty();
        self.quotas.books.lock().limits = limits;
        if is_needed { self.count_once() } else { Ok(()) }
    }

    /// See [`crate::Nvmfs::quotas`].
    pub(crate) fn user_quotas(&self) -> Result<Vec<UserQuota>> {
        let _asking = self.quotas.asking.lock();
        self.count_once()?;
        Ok(self.known_quotas())
    }

    /// See [`crate::Nvmfs::known_quotas`].
    pub(crate) fn known_quotas(&self) -> Vec<UserQuota> {
        let books = self.quotas.books.lock();
        let Some(Tally { of: usage, .. }) = &books.usage else { return Vec::new() };
        let users: BTreeSet<u32> = usage.keys().chain(books.limits.keys()).copied().collect();
        let quota = |uid| UserQuota {
            uid,
            used: usage.get(&uid).copied().unwrap_or_default(),
            limits: books.limits.get(&uid).copied().unwrap_or_default(),
        };
        users.into_iter().map(quota).collect()
    }

    /// See [`crate::Nvmfs::set_limits`].
    pub(crate) fn set_limits(&self, uid: u32, limits: Limits) -> Result<()> {
        if !can_have_limits(uid) {
            return Err(Refusal::Invalid.into());
        }
        let _asking = self.quotas.asking.lock();
        let is_any = limits != Limits::default();
        if is_any {
            self.count_once()?;
        }
        let lba = Ino::LIMITS.lba(uid.into());
        let sealed = is_any.then(|| format::seal(&LimitsSector::new(uid, limits), lba));
        let op = match &sealed {
            Some(data) => Op::Write { lba, data },
            None => Op::Trim { lba, sectors: 1 },
        };
        self.retry(|| self.submit(&[op], Stream::Data, Privilege::Root, true, |_| (None, None)))?;
        let stored = &mut self.quotas.books.lock().limits;
        match is_any {
            true => drop(stored.insert(uid, limits)),
            false => drop(stored.remove(&uid)),
        }
        Ok(self.volume.ftl().flush()?)
    }

    /// What is wrong with limits, and with what was counted.
    pub(crate) fn check_quotas(&self) -> Result<Vec<String>> {
        let _asking = self.quotas.asking.lock();
        let (limits, mut findings) = self.read_limits()?;
        let books = self.quotas.books.lock();
        if books.limits != limits {
            findings.push("quota invariant 5: the limits in memory are not those stored".to_owned());
        }
        let is_counted = books.usage.is_some();
        drop(books);
        // A stopped store may show a batch that was not posted.
        if is_counted && self.volume.ftl().failure().is_none() {
            findings.extend(self.count(|books, recount| {
                let usage = books.usage.as_ref().expect("it was counted");
                let users: BTreeSet<_> = usage.of.keys().chain(recount.of.keys()).collect();
                let of = |tally: &Tally, uid| tally.of.get(uid).copied().unwrap_or_default();
                let differs = users.into_iter().filter(|uid| of(usage, uid) != of(&recount, uid));
                let finding = |uid| {
                    let (Usage { bytes, inodes }, known) = (of(&recount, uid), of(usage, uid));
                    let known = format!("not {} bytes in {} inodes", known.bytes, known.inodes);
                    format!("quota invariant 1: user {uid} has {bytes} bytes in {inodes} inodes, {known}")
                };
                differs.map(finding).collect::<Vec<_>>()
            })?);
        }
        Ok(findings)
    }

    /// The limits that are stored, and what is wrong with others.
    fn read_limits(&self) -> Result<(HashMap<u32, Limits>, Vec<String>)> {
        let (mut limits, mut findings, mut rest) = (HashMap::new(), Vec::new(), Ino::LIMITS.region());
        let mut note = |result: Result<LimitsSector>| match result {
            Ok(sector) => {
                limits.insert(sector.uid(), sector.limits());
                Ok(())
            }
            Err(error) if error.is_damage() => {
                findings.push(error.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        };
        while rest.start < rest.end {
            let Remains { mapped, lost } = self.volume.ftl().read_past_damage(rest.clone(), LIMITS_BYTES)?;
            rest.start = mapped.end;
            lost.into_iter().try_for_each(|lost| note(Err(lost.error.into())))?;
            for (start, data) in &mapped.runs {
                let (sectors, _) = data.as_chunks();
                let mut sectors = (start.0..).map(Lba).zip(sectors);
                sectors.try_for_each(|(lba, bytes)| note(self.volume.verify_limits(lba, bytes)))?;
            }
        }
        findings.sort_unstable();
        Ok((limits, findings))
    }

    /// Counts what users have, unless that is known. Called with `asking` held.
    fn count_once(&self) -> Result<()> {
        if self.quotas.books.lock().usage.is_some() {
            return Ok(());
        }
        self.count(|books, count| books.usage = Some(count))
    }

    /// Counts what users have (invariant 2), and calls `end` before another batch is posted. Called with `asking` held.
    fn count<T>(&self, end: impl FnOnce(&mut Books, Tally) -> T) -> Result<T> {
        let quiesced = self.quiesce();
        self.quotas.books.lock().count = Some(Tally::default());
        self.quotas.is_on.store(true, SeqCst);
        let counted = self.count_table();
        let mut books = self.quotas.books.lock();
        drop(quiesced); // what is made from here on is posted behind the end of the count
        let count = books.count.take().expect("this thread counts");
        if books.usage.is_none() && counted.is_err() {
            self.quotas.is_on.store(false, SeqCst);
        }
        counted?;
        Ok(end(&mut books, Tally { counted_to: u64::MAX, ..count }))
    }

    fn count_table(&self) -> Result<()> {
        let mut rest = Ino::TABLE.region();
        loop {
            let lbas = self.volume.ftl().mapped_sectors(rest.clone(), SECTORS_AT_ONCE)?;
            let Some(last) = lbas.last() else { break };
            rest.start = Lba(last.0 + 1);
            let (mut inodes, mut outcome) = (Vec::with_capacity(lbas.len()), Ok(()));
            self.volume.ftl().visit_sectors(&lbas, |lba, bytes| {
                let Some(ino) = Ino::new(Ino::of(lba).1) else { return };
                match bytes.map_err(Error::from).and_then(|bytes| self.volume.verify_inode(ino, bytes)) {
                    Ok(inode) => inodes.push((ino, Some(inode.owner().0))),
                    Err(error) if error.is_damage() => inodes.push((ino, None)),
                    Err(error) => outcome = Err(error),
                }
            })?;
            outcome?;
            inodes.sort_unstable();
            inodes.into_iter().try_for_each(|(ino, uid)| self.count_inode(ino, uid))?;
        }
        Ok(())
    }

    /// Counts an inode of `uid`, or leaves it out.
    fn count_inode(&self, ino: Ino, uid: Option<u32>) -> Result<()> {
        let node = self.node_of_number(ino);
        let mut leaves = Vec::new(); // they stay in memory until it is counted
        loop {
            let record = node.record.write();
            let absent = match self.counted_bytes(ino) {
                Ok(bytes) => {
                    let mut books = self.quotas.books.lock();
                    let tally = books.count.as_mut().expect("this thread counts");
                    match uid {
                        Some(uid) => tally.change(uid, |usage| usage.plus(Usage { bytes, inodes: 1 })),
                        None => drop(tally.left_out.insert(ino)),
                    }
                    tally.counted_to = ino.number() + 1;
                    return Ok(());
                }
                Err(absent) => absent,
            };
            drop(record);
            match self.volume.ftl().load_leaves(&absent).map_err(Error::from) {
                Ok(loaded) => leaves.push(loaded),
                Err(error) if error.is_damage() => {
                    let _record = node.record.write();
                    let mut books = self.quotas.books.lock();
                    let tally = books.count.as_mut().expect("this thread counts");
                    tally.left_out.insert(ino);
                    tally.counted_to = ino.number() + 1;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}
