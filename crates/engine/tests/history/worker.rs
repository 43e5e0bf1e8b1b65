//! A thread that executes its transactions and records them.

use std::{
    collections::HashMap,
    ops::{Bound, ControlFlow},
    sync::Arc,
    thread,
    time::Duration,
};

use lacuna_engine::{
    Direction, Error, Insertion, Isolation, Savepoint, Swap, Table, TransactionOptions, Txn,
};

use super::{
    checker::is_list,
    plan::{Ending, Step, Target},
    ranges::Walker,
    record::{Key, Lock, Op, Outcome, Scan, Seen, Stamp, TxnRecord, What, WriteId},
    session::Session,
    value::{self, Form},
    watch::Slot,
};

pub(crate) struct Worker {
    pub(crate) session: Arc<Session>,
    pub(crate) thread: usize,
    pub(crate) slot: Arc<Slot>,
}

/// How a transaction goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Step,
    RollBack,
    /// The VFS failed.
    Stop,
}

/// A transaction under way.
pub(crate) struct Open<'a> {
    pub(crate) session: &'a Session,
    pub(crate) txn: Txn,
    record: TxnRecord,
    writes: u16,
    savepoints: Vec<(Savepoint, usize)>,
    /// A table is the same to a transaction from its first use on.
    churned: HashMap<usize, Table>,
    /// Memory for values.
    value: Vec<u8>,
    pub(crate) walker: Option<Walker>,
    /// Times that it wrote: its cursor then reads again.
    pub(crate) changes: u64,
}

impl Worker {
    /// All transactions of the thread, or as many as the VFS allows.
    pub(crate) fn run(self) -> Vec<TxnRecord> {
        let mut records = Vec::new();
        for number in 0..self.session.plan.txns(self.thread) {
            let (record, goes_on) = self.transaction(number);
            records.push(record);
            if !goes_on {
                break;
            }
        }
        self.slot.set("done".into());
        records
    }

    fn transaction(&self, number: u64) -> (TxnRecord, bool) {
        let session = &*self.session;
        let plan = session.plan.transaction(session.epoch, self.thread, number);
        let id = 1 + number + 1000 * (self.thread as u64 + 10 * session.epoch);
        let isolation = plan.isolation;
        let record = TxnRecord {
            id,
            isolation,
            ops: Vec::new(),
            outcome: Outcome::Aborted,
            end_began: 0,
            end_ended: 0,
        };
        let txn = session.store.begin_with(TransactionOptions { isolation });
        let (savepoints, churned) = Default::default();
        let (value, walker) = Default::default();
        let mut open =
            Open { session, txn, record, writes: 0, savepoints, churned, value, walker, changes: 0 };
        let mut next = Next::Step;
        for (target, step) in plan.steps {
            self.slot.set(format!("transaction {id}, {isolation:?}: {step:?} on {target:?}"));
            next = open.step(target, step);
            if next != Next::Step {
                break;
            }
        }
        let ending = match next {
            Next::Step => plan.ending,
            Next::RollBack if id.is_multiple_of(2) => Ending::Rollback,
            Next::RollBack | Next::Stop => Ending::Drop,
        };
        if ending == Ending::Commit && open.writes > 0 {
            self.slot.set(format!("transaction {id}, {isolation:?}: its mark"));
            next = open.mark();
        }
        let ending = if next == Next::Step { ending } else { Ending::Drop };
        self.slot.set(format!("transaction {id}, {isolation:?}: {ending:?}"));
        let (record, goes_on) = open.end(ending);
        (record, goes_on && next != Next::Stop)
    }
}

pub(crate) fn key_of(table: &Table, number: u32) -> Key {
    Key { table: super::session::number(table), number }
}

pub(crate) fn seen(key: Key, value: Option<Vec<u8>>) -> Seen {
    value.map_or(Seen::Absent, |value| value::decode(key, &value))
}

impl Open<'_> {
    pub(crate) fn note(&mut self, began: Stamp, what: What) {
        self.changes += u64::from(matches!(what, What::Write { .. } | What::Delete { .. }));
        let ended = self.session.now();
        self.record.ops.push(Op { began, ended, what });
    }

    fn table(&mut self, number: usize) -> Option<Table> {
        let table = self.churned.get(&number).cloned().or_else(|| self.session.table(number))?;
        self.churned.insert(number, table.clone());
        Some(table)
    }

    fn step(&mut self, target: Target, step: Step) -> Next {
        match step {
            Step::Pause { micros } => {
                match micros {
                    0..100 => thread::yield_now(),
                    _ => thread::sleep(Duration::from_micros(micros)),
                }
                return Next::Step;
            }
            Step::Savepoint => return self.savepoint(),
            Step::RollbackTo { which } => return self.roll_back_to(which),
            Step::Move { is_backward } => return self.walk_on(is_backward),
            Step::UpdateHere { form, bytes } => return self.update_here(form, bytes),
            Step::DeleteHere => return self.delete_here(),
            _ => {}
        }
        let Some(table) = self.table(target.table) else { return Next::Step };
        let key = key_of(&table, target.number);
        match step {
            Step::Get { is_into } => self.get(&table, key, is_into),
            Step::Lock => self.read(&table, key, Lock::Explicit).1,
            Step::Update { locks, form, bytes } => self.update(&table, key, locks, form, bytes),
            // A plain put makes no value from the one it replaces.
            Step::Put { form, bytes } if is_list(key) => self.update(&table, key, true, form, bytes),
            Step::Put { form, bytes } => self.put(&table, key, &[], form, bytes),
            Step::Insert { form, bytes } => self.insert(&table, key, form, bytes),
            Step::InsertIfAbsent { form, bytes } => self.insert_if_absent(&table, key, form, bytes),
            Step::Swap { is_right, deletes, form, bytes } => {
                self.swap(&table, key, is_right, (!deletes).then_some((form, bytes)))
            }
            Step::Delete => self.delete(&table, key),
            Step::Load { records, stride, is_out_of_order, form, bytes } => {
                let last = key.number + records * stride;
                let numbers = (key.number..last).step_by(stride as usize).collect();
                self.load(&table, numbers, is_out_of_order, (form, bytes))
            }
            Step::Range { upper, turns, records_max } => {
                self.range(&table, (key.number, upper), turns, records_max)
            }
            Step::Count { upper } => self.count(&table, (key.number, upper)),
            Step::Seek(to) => self.seek(&table, key.number, to),
            Step::Scan { upper, is_backward, records_max } => {
                self.scan(&table, (key.number, upper), is_backward, records_max)
            }
            Step::Savepoint | Step::RollbackTo { .. } | Step::Pause { .. } => unreachable!("done above"),
            Step::Move { .. } | Step::UpdateHere { .. } | Step::DeleteHere => unreachable!("done above"),
        }
    }

    /// Interprets an error. One that the engine's interface does not document for the call fails the test.
    pub(crate) fn fail(&mut self, began: Stamp, error: Error) -> Next {
        let is_snapshot = self.record.isolation == Isolation::Snapshot;
        let next = match &error {
            Error::LockTimeout => Next::Step,
            Error::Deadlock | Error::Full { .. } => Next::RollBack,
            Error::Conflict | Error::SnapshotTooOld if is_snapshot => Next::RollBack,
            Error::TableDropped { .. } => Next::Step,
            _ => {
                self.session.fail(&format!("transaction {}", self.record.id), &error);
                Next::Stop
            }
        };
        if matches!(error, Error::TableDropped { .. }) {
            self.churned.clear();
            self.walker = None;
        }
        self.note(began, What::Failed(error.to_string()));
        next
    }

    fn read(&mut self, table: &Table, key: Key, lock: Lock) -> (Seen, Next) {
        let bytes = value::key_bytes(key.number);
        let began = self.session.now();
        let found = match lock {
            Lock::No => self.txn.get(table, &bytes),
            _ => self.txn.get_for_update(table, &bytes),
        };
        match found {
            Ok(value) => {
                let seen = seen(key, value);
                self.note(began, What::Read { key, seen: seen.clone(), lock });
                (seen, Next::Step)
            }
            Err(e) => {
                let next = self.fail(began, e);
                // The value that it would be made from is not known.
                (
                    Seen::Absent,
                    if next == Next::Step && lock == Lock::Explicit { Next::RollBack } else { next },
                )
            }
        }
    }

    fn get(&mut self, table: &Table, key: Key, is_into: bool) -> Next {
        if !is_into {
            return self.read(table, key, Lock::No).1;
        }
        let began = self.session.now();
        match self.txn.get_into(table, &value::key_bytes(key.number), &mut self.value) {
            Ok(is_there) => {
                let seen = seen(key, is_there.then(|| self.value.clone()));
                self.note(began, What::Read { key, seen, lock: Lock::No });
                Next::Step
            }
            Err(e) => self.fail(began, e),
        }
    }

    pub(crate) fn update(&mut self, table: &Table, key: Key, locks: bool, form: Form, bytes: usize) -> Next {
        // At read committed only a lock keeps the value until it is replaced; lists must not lose any.
        let locks = locks || (is_list(key) && self.record.isolation == Isolation::ReadCommitted);
        let ops = self.record.ops.len();
        let (seen, next) = self.read(table, key, if locks { Lock::Explicit } else { Lock::No });
        if next != Next::Step || matches!(self.record.ops.get(ops), Some(Op { what: What::Failed(_), .. })) {
            return next;
        }
        let base = match &seen {
            Seen::Version(_, list) if is_list(key) => list.clone(),
            Seen::Version(write, _) => vec![*write],
            _ => Vec::new(),
        };
        self.put(table, key, &base, form, bytes)
    }

    pub(crate) fn new_write(&mut self) -> WriteId {
        self.writes += 1;
        WriteId::new(self.record.id, self.writes)
    }

    fn put(&mut self, table: &Table, key: Key, base: &[WriteId], form: Form, bytes: usize) -> Next {
        let write = self.new_write();
        let list = [base, &[write]].concat();
        let value = value::encode(key, write, &list, form, bytes);
        let began = self.session.now();
        match self.txn.put(table, &value::key_bytes(key.number), &value) {
            Ok(()) => {
                self.note(began, What::Write { key, write, list });
                Next::Step
            }
            Err(e) => self.fail(began, e),
        }
    }

    fn insert(&mut self, table: &Table, key: Key, form: Form, bytes: usize) -> Next {
        let write = self.new_write();
        let value = value::encode(key, write, &[write], form, bytes);
        let began = self.session.now();
        match self.txn.insert(table, &value::key_bytes(key.number), &value) {
            Ok(()) => {
                self.note(began, What::Read { key, seen: Seen::Absent, lock: Lock::Write });
                self.note(began, What::Write { key, write, list: vec![write] });
            }
            Err(Error::KeyExists) => {
                self.note(began, What::Read { key, seen: Seen::Present, lock: Lock::No });
            }
            Err(e) => return self.fail(began, e),
        }
        Next::Step
    }

    fn insert_if_absent(&mut self, table: &Table, key: Key, form: Form, bytes: usize) -> Next {
        let write = self.new_write();
        let value = value::encode(key, write, &[write], form, bytes);
        let began = self.session.now();
        let lock = Lock::Explicit;
        match self.txn.insert_if_absent(table, &value::key_bytes(key.number), &value) {
            Ok(Insertion::Done) => {
                self.note(began, What::Read { key, seen: Seen::Absent, lock });
                self.note(began, What::Write { key, write, list: vec![write] });
            }
            Ok(Insertion::Present(value)) => {
                self.note(began, What::Read { key, seen: seen(key, Some(value)), lock });
            }
            Err(e) => return self.fail(began, e),
        }
        Next::Step
    }

    /// Reads a record, then compares and swaps it, with the value read or with a wrong one.
    fn swap(&mut self, table: &Table, key: Key, is_right: bool, new: Option<(Form, usize)>) -> Next {
        let key_bytes = value::key_bytes(key.number);
        let began = self.session.now();
        let found = match self.txn.get(table, &key_bytes) {
            Ok(found) => found,
            Err(e) => return self.fail(began, e),
        };
        self.note(began, What::Read { key, seen: seen(key, found.clone()), lock: Lock::No });
        let expected = match found {
            found if is_right => found,
            Some(_) => None,
            None => Some(b"nobody writes this".to_vec()),
        };
        let before = seen(key, expected.clone());
        let base = match &before {
            Seen::Version(_, list) if is_list(key) => list.clone(),
            Seen::Version(write, _) => vec![*write],
            _ => Vec::new(),
        };
        let write = self.new_write();
        let list = [&base[..], &[write]].concat();
        let value = new.map(|(form, bytes)| value::encode(key, write, &list, form, bytes));
        let began = self.session.now();
        let lock = Lock::Explicit;
        match self.txn.compare_and_swap(table, &key_bytes, expected.as_deref(), value.as_deref()) {
            Ok(Swap::Done) => {
                // For a key that no worker writes this is garbage, which is an anomaly.
                self.note(began, What::Read { key, seen: before, lock });
                match value {
                    Some(_) => self.note(began, What::Write { key, write, list }),
                    None if expected.is_some() => self.note(began, What::Delete { key, write }),
                    None => {}
                }
            }
            Ok(Swap::Other(found)) => {
                let is_other = found != expected;
                self.note(began, What::Read { key, seen: seen(key, found), lock });
                if !is_other {
                    self.session.failures.lock().push(format!("{key:?} was as expected, and not swapped"));
                }
            }
            Err(e) => return self.fail(began, e),
        }
        Next::Step
    }

    pub(crate) fn delete(&mut self, table: &Table, key: Key) -> Next {
        let write = self.new_write();
        let began = self.session.now();
        match self.txn.delete(table, &value::key_bytes(key.number)) {
            Ok(true) => {
                self.note(began, What::Read { key, seen: Seen::Present, lock: Lock::Write });
                self.note(began, What::Delete { key, write });
            }
            Ok(false) => self.note(began, What::Read { key, seen: Seen::Absent, lock: Lock::No }),
            Err(e) => return self.fail(began, e),
        }
        Next::Step
    }

    fn scan(
        &mut self,
        table: &Table,
        (lower, upper): (u32, u32),
        is_backward: bool,
        records_max: usize,
    ) -> Next {
        let id = super::session::number(table);
        let mut scan = Scan { table: id, lower, upper, is_backward, found: Vec::new(), is_broken_off: false };
        let mut values = Vec::new();
        let bounds = [lower, upper].map(value::key_bytes);
        let [from, to] = [0, 1].map(|i: usize| Bound::Included(&bounds[i][..]));
        let direction = if is_backward { Direction::Backward } else { Direction::Forward };
        let began = self.session.now();
        let outcome = self.txn.scan(table, from, to, direction, |key, value| {
            values.push((key.to_vec(), value.to_vec()));
            if values.len() >= records_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Err(e) = outcome {
            return self.fail(began, e);
        }
        scan.is_broken_off = values.len() >= records_max;
        for (bytes, value) in values {
            let number = value::key_number(&bytes).expect("a key of ours");
            scan.found.push((number, seen(Key { table: id, number }, Some(value))));
        }
        self.note(began, What::Scan(scan));
        Next::Step
    }

    fn savepoint(&mut self) -> Next {
        let began = self.session.now();
        match self.txn.savepoint() {
            Ok(savepoint) => {
                self.savepoints.push((savepoint, self.record.ops.len()));
                self.note(began, What::Savepoint);
                Next::Step
            }
            Err(e) => self.fail(began, e),
        }
    }

    fn roll_back_to(&mut self, which: u64) -> Next {
        if self.savepoints.is_empty() {
            return Next::Step;
        }
        let which = (which % self.savepoints.len() as u64) as usize;
        let (savepoint, op) = self.savepoints[which];
        // Later savepoints may be of changes that are rolled back.
        self.savepoints.truncate(which + 1);
        let began = self.session.now();
        match self.txn.rollback_to(savepoint) {
            Ok(()) => {
                self.note(began, What::RollbackTo { savepoint: op });
                Next::Step
            }
            Err(e) => self.fail(began, e),
        }
    }

    /// See `boundary`. No other worker uses the record.
    fn mark(&mut self) -> Next {
        let marks = self.session.marks.clone();
        let key = key_of(&marks, self.record.id as u32);
        let next = self.insert(&marks, key, Form::Alike, 30);
        let is_there = !matches!(self.record.ops.last(), Some(Op { what: What::Failed(_), .. }));
        if is_there {
            next
        } else if next == Next::Step {
            Next::RollBack
        } else {
            next
        }
    }

    /// The record, and whether the VFS still works.
    fn end(mut self, ending: Ending) -> (TxnRecord, bool) {
        self.record.end_began = self.session.now();
        let outcome = match ending {
            Ending::Commit => self.txn.commit(),
            Ending::Rollback => self.txn.rollback(),
            Ending::Drop => {
                drop(self.txn);
                Ok(())
            }
        };
        self.record.end_ended = self.session.now();
        self.record.outcome = match (&outcome, ending) {
            (Ok(()), Ending::Commit) => Outcome::Committed,
            (Err(_), Ending::Commit) => Outcome::Unknown,
            _ => Outcome::Aborted,
        };
        if let Err(error) = &outcome {
            self.session.fail(&format!("the end of transaction {}", self.record.id), error);
        }
        (self.record, outcome.is_ok())
    }
}
