//! A worker's operations on many records at a time: iterators, counts, loads, and a cursor that its transaction writes
//! under.
//!
//! A step of a cursor is recorded as a scan from its position to the record found. It may have copied that record at
//! any moment since it last had to read the tree: since it was moved elsewhere, turned round, or its transaction wrote.

use lacuna_engine::{Cursor, Error, Record, Result, Table};

use super::{
    plan::Seek,
    record::{Count, Key, Lock, Scan, Seen, Stamp, What},
    value::{self, Form},
    worker::{Next, Open, key_of, seen},
};

/// A cursor, and its known state.
pub(crate) struct Walker {
    cursor: Cursor,
    table: Table,
    at: At,
    /// The record that it met last.
    here: Option<u32>,
    /// The direction of its last step, the transaction's changes then, and the moment since which it may have copied.
    looked: Option<(bool, u64, Stamp)>,
}

/// Where a cursor stands.
#[derive(Clone, Copy)]
enum At {
    Start,
    End,
    On(u32),
    Before(u32),
    Behind(u32),
}

impl At {
    /// The records in that direction, from the least to the greatest; none where the first is above the last.
    fn ahead(self, is_backward: bool) -> (u32, u32) {
        match (self, is_backward) {
            (At::Start, false) | (At::End, true) => (0, u32::MAX),
            (At::Start | At::On(0) | At::Before(0), true) | (At::End, false) => (1, 0),
            (At::Before(at), false) => (at, u32::MAX),
            (At::On(at) | At::Behind(at), false) => (at + 1, u32::MAX),
            (At::Behind(at), true) => (0, at),
            (At::On(at) | At::Before(at), true) => (0, at - 1),
        }
    }
}

/// The numbers of records, and their values.
fn numbered(table: u32, records: Vec<Record>) -> Vec<(u32, Seen)> {
    let each = records.into_iter().map(|record| {
        let number = value::key_number(record.key()).expect("a key of ours");
        (number, seen(Key { table, number }, Some(record.value().to_vec())))
    });
    each.collect()
}

impl Open<'_> {
    pub(crate) fn count(&mut self, table: &Table, (lower, upper): (u32, u32)) -> Next {
        let began = self.session.now();
        match self.txn.count(table, value::key_bytes(lower)..=value::key_bytes(upper)) {
            Ok(records) => {
                self.note(
                    began,
                    What::Count(Count { table: super::session::number(table), lower, upper, records }),
                );
                Next::Step
            }
            Err(e) => self.fail(began, e),
        }
    }

    /// Takes `records_max` records of a range from both its ends, as the bits of `turns` say.
    pub(crate) fn range(
        &mut self,
        table: &Table,
        (lower, upper): (u32, u32),
        turns: u64,
        records_max: usize,
    ) -> Next {
        let began = self.session.now();
        let take = || -> Result<(Vec<Record>, Vec<Record>, bool)> {
            let mut records = self.txn.range(table, value::key_bytes(lower)..=value::key_bytes(upper))?;
            let (mut front, mut back) = (Vec::new(), Vec::new());
            for turn in 0..records_max {
                let is_backward = turns >> (turn % 64) & 1 == 1;
                let next = if is_backward { records.next_back() } else { records.next() };
                match (next, is_backward) {
                    (Some(record), false) => front.push(record?),
                    (Some(record), true) => back.push(record?),
                    (None, _) => return Ok((front, back, true)),
                }
            }
            Ok((front, back, false))
        };
        let (front, mut back, is_over) = match take() {
            Ok(taken) => taken,
            Err(e) => return self.fail(began, e),
        };
        let id = super::session::number(table);
        let scan = |records: Vec<Record>, is_backward, is_broken_off| {
            let found = numbered(id, records);
            What::Scan(Scan { table: id, lower, upper, is_backward, found, is_broken_off })
        };
        if is_over {
            back.reverse();
            let all = front.into_iter().chain(back).collect();
            self.note(began, scan(all, false, false));
            return Next::Step;
        }
        if let (Some(front), Some(back)) = (front.last(), back.last())
            && front.key() >= back.key()
        {
            self.session.failures.lock().push(format!("both ends of a range from {lower} passed each other"));
        }
        for (records, is_backward) in [(front, false), (back, true)] {
            if !records.is_empty() {
                self.note(began, scan(records, is_backward, true));
            }
        }
        Next::Step
    }

    pub(crate) fn load(
        &mut self,
        table: &Table,
        mut numbers: Vec<u32>,
        is_out_of_order: bool,
        (form, bytes): (Form, usize),
    ) -> Next {
        let count = numbers.len();
        let is_out_of_order = is_out_of_order && count > 1;
        if is_out_of_order {
            numbers.swap(count - 2, count - 1);
        }
        let writes: Vec<_> =
            numbers.iter().map(|number| (key_of(table, *number), self.new_write())).collect();
        let records = writes.iter().map(|(key, write)| {
            (value::key_bytes(key.number), value::encode(*key, *write, &[*write], form, bytes))
        });
        let began = self.session.now();
        match self.txn.bulk_load(table, records) {
            Ok(loaded) => {
                if is_out_of_order || loaded != count as u64 {
                    self.session.failures.lock().push(format!("{loaded} of {numbers:?} were loaded"));
                }
                for (key, write) in writes {
                    self.note(began, What::Read { key, seen: Seen::Absent, lock: Lock::Write });
                    self.note(began, What::Write { key, write, list: vec![write] });
                }
                Next::Step
            }
            Err(e @ (Error::KeyExists | Error::OutOfOrder { .. })) => {
                self.note(began, What::Failed(e.to_string()));
                Next::Step
            }
            Err(e) => self.fail(began, e),
        }
    }

    pub(crate) fn seek(&mut self, table: &Table, number: u32, to: Seek) -> Next {
        let at = match to {
            Seek::First => At::Start,
            Seek::Last => At::End,
            Seek::From => At::Before(number),
            Seek::Back => At::Behind(number),
        };
        let walker = self.walker.take().filter(|walker| walker.table.id() == table.id());
        let cursor = walker.map_or_else(|| table.cursor(), |walker| walker.cursor);
        let walker = Walker { cursor, table: table.clone(), at, here: None, looked: None };
        self.walk(walker, matches!(to, Seek::Last | Seek::Back), Some((to, number)))
    }

    pub(crate) fn walk_on(&mut self, is_backward: bool) -> Next {
        match self.walker.take() {
            Some(walker) => self.walk(walker, is_backward, None),
            None => Next::Step,
        }
    }

    /// Takes a step, to where it is asked to go or on from where it stands.
    fn walk(&mut self, mut walker: Walker, is_backward: bool, seek: Option<(Seek, u32)>) -> Next {
        let now = self.session.now();
        let since = match walker.looked {
            Some((direction, changes, since)) if (direction, changes) == (is_backward, self.changes) => since,
            _ => now,
        };
        let key = value::key_bytes(seek.map_or(0, |(_, number)| number));
        let (cursor, txn) = (&mut walker.cursor, &self.txn);
        let outcome = match (seek, is_backward) {
            (Some((Seek::First, _)), _) => cursor.first(txn),
            (Some((Seek::Last, _)), _) => cursor.last(txn),
            (Some((Seek::From, _)), _) => cursor.seek(txn, &key),
            (Some((Seek::Back, _)), _) => cursor.seek_back(txn, &key),
            (None, false) => cursor.next(txn),
            (None, true) => cursor.prev(txn),
        };
        let found = match outcome {
            Ok(found) => found,
            Err(e) => return self.fail(now, e),
        };
        let (lower, upper) = walker.at.ahead(is_backward);
        let table = super::session::number(&walker.table);
        let found = numbered(table, found.into_iter().collect());
        walker.at = match (found.first(), walker.at) {
            (Some((number, _)), _) => At::On(*number),
            (None, At::On(at)) if is_backward => At::Before(at),
            (None, At::On(at)) => At::Behind(at),
            (None, at) => at,
        };
        walker.here = found.first().map(|(number, _)| *number).or(walker.here);
        walker.looked = Some((is_backward, self.changes, since));
        let is_broken_off = !found.is_empty();
        self.walker = Some(walker);
        self.note(since, What::Scan(Scan { table, lower, upper, is_backward, found, is_broken_off }));
        Next::Step
    }

    fn here(&self) -> Option<(Table, Key)> {
        let walker = self.walker.as_ref()?;
        Some((walker.table.clone(), key_of(&walker.table, walker.here?)))
    }

    pub(crate) fn update_here(&mut self, form: Form, bytes: usize) -> Next {
        let Some((table, key)) = self.here() else { return Next::Step };
        self.update(&table, key, false, form, bytes)
    }

    pub(crate) fn delete_here(&mut self) -> Next {
        let Some((table, key)) = self.here() else { return Next::Step };
        self.delete(&table, key)
    }
}
