//! A checker of histories: several threads run random transactions, every result is recorded, and the record is
//! searched for Adya's anomalies.
//!
//! The seed chooses the plan (`plan`): kinds of tables and sizes of pages, options, isolation, every operation of every
//! transaction, and the chores that run beside them. Threads take their own turns, so a seed that failed may need
//! several runs to fail again.
//!
//! - `record` holds the recorded data, written by `worker` and `ranges`; each value names its write (`value`).
//! - `effects` derives what a transaction did from its own record, `versions` the order of each record's versions,
//!   `checker` finds anomalies, with `graph`; `anomalies` names them.
//! - `boundary` compares a store that was opened again with the history before.
//! - `session` opens stores, `watch` runs the threads.
//!
//! The checker's own tests are in `checker_tests`; tests/mutants.rs breaks the engine's rules and expects each kind
//! of anomaly to be found.

mod anomalies;
mod boundary;
mod checker;
mod checker_tests;
mod effects;
mod graph;
mod plan;
mod ranges;
mod record;
mod session;
mod value;
mod versions;
mod watch;
mod worker;

use std::sync::Arc;

use crate::rigs::{Flash, Rig, log_device::FlashAndMemory};
use anomalies::{Anomaly, Shown};
use lacuna_device::{MemVfs, Vfs};
use lacuna_sim::{SeededRng, SimVfs, for_each_seed};
use plan::Plan;
use record::{History, Outcome, State};
use session::{Session, SharedRig};

/// Memory, which keeps everything and has no power plug.
struct Memory(Arc<MemVfs>);

impl Rig for Memory {
    fn open_vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        Ok(self.0.clone())
    }
    fn set_cut_after(&self, _: u64) {}
    fn is_off(&self) -> bool {
        false
    }
    fn power_cycle(&self) {}
    fn kill(&self) {}
    fn fail(&self, _: &mut SeededRng) {}
    fn heal(&self) {}
    fn may_fail(&self) -> bool {
        false
    }
    fn upkeep(&self, _: &mut SeededRng) {}
    fn check(&self) {}
}

/// Counts over many cases, to verify that they exercised something.
#[derive(Debug, Default)]
struct Tally {
    committed: usize,
    aborted: usize,
    unknown: usize,
    operations: usize,
    failed: usize,
    too_old: usize,
    write_skews: usize,
}

impl Tally {
    fn add(&mut self, history: &History, write_skews: usize) {
        for txn in &history.txns {
            match txn.outcome {
                Outcome::Committed => self.committed += 1,
                Outcome::Aborted => self.aborted += 1,
                Outcome::Unknown => self.unknown += 1,
            }
            self.operations += txn.ops.len();
            let failed = txn.ops.iter().filter_map(|op| match &op.what {
                record::What::Failed(error) => Some(error),
                _ => None,
            });
            for error in failed {
                self.failed += 1;
                self.too_old += usize::from(error.starts_with("snapshot too old"));
            }
        }
        self.write_skews += write_skews;
    }
}

fn demand_none(found: &[Anomaly], history: &History) {
    assert!(found.is_empty(), "{}", Shown(found, history));
}

/// A few openings of one store, and transactions in each; with `cuts`, each ends at a random moment.
fn case(rig: SharedRig, seed: u64, cuts: bool, tally: &mut Tally) {
    let rng = &mut SeededRng::new(seed ^ 0x5eed);
    let plan = Arc::new(Plan::new(seed, if cuts { 3 } else { 2 }));
    let mut before: Option<History> = None;
    for epoch in 0..=plan.epochs {
        let store = session::open(&*rig, &plan, rng);
        store.check().unwrap_or_else(|e| panic!("epoch {epoch}: {e}"));
        rig.check();
        let session = Arc::new(Session::new(rig.clone(), plan.clone(), store, epoch));
        session.number_tables();
        let found = session.look();
        if let Some(mut history) = before.take() {
            demand_none(&boundary::check(&mut history, &found, plan.options.durability), &history);
            let report = checker::check(&history);
            demand_none(&report.anomalies, &history);
            tally.add(&history, report.write_skews);
        }
        if epoch == plan.epochs {
            break;
        }
        if cuts {
            let ops_max = [30, 300, 1500][rng.below(3) as usize];
            rig.set_cut_after(1 + rng.below(ops_max));
        }
        let txns = watch::run(&session);
        before = Some(finish(session, rng, found.state, txns));
    }
}

/// Ends an epoch: closes the store, or drops it.
fn finish(
    session: Arc<Session>,
    rng: &mut SeededRng,
    initial: State,
    txns: Vec<record::TxnRecord>,
) -> History {
    let mut history = watch::history(&session, initial, txns);
    let failures = std::mem::take(&mut *session.failures.lock());
    if !failures.is_empty() {
        let anomalies = checker::check(&history).anomalies;
        panic!("{}\n{}", failures.join("\n"), Shown(&anomalies, &history));
    }
    let Ok(session) = Arc::try_unwrap(session) else { panic!("a thread still has the session") };
    let (rig, store) = (session.rig.clone(), session.store.clone());
    drop(session);
    if rng.chance(50) {
        match store.close() {
            Ok(()) if !rig.may_fail() => history.durable_until = u64::MAX,
            Ok(()) => {}
            Err(e) => assert!(rig.may_fail(), "close: {e}"),
        }
    }
    history
}

fn cases(name: &str, default_cases: u64, cuts: bool, rig: impl Fn(u64) -> SharedRig) {
    let mut tally = Tally::default();
    for_each_seed(default_cases, |seed| case(rig(seed), seed, cuts, &mut tally));
    println!("{name}: {tally:?}");
}

#[test]
fn histories_in_memory_are_sound() {
    cases("memory", 200, false, |_| Arc::new(Memory(MemVfs::new())));
}

#[test]
fn histories_on_a_directory_are_sound() {
    cases("directory", 60, false, |seed| Arc::new(SimVfs::new(seed)));
}

#[test]
fn histories_on_flash_are_sound() {
    cases("flash", 40, false, |seed| Arc::new(Flash::new(seed, true)));
}

#[test]
fn histories_across_cuts_on_a_directory_are_sound() {
    cases("cuts on a directory", 50, true, |seed| Arc::new(SimVfs::new(seed)));
}

#[test]
fn histories_across_cuts_on_flash_are_sound() {
    cases("cuts on flash", 50, true, |seed| Arc::new(Flash::new(seed, seed % 2 == 0)));
}

#[test]
fn histories_across_cuts_with_the_log_in_memory_are_sound() {
    cases("cuts on flash and memory", 50, true, |seed| Arc::new(FlashAndMemory::new(seed)));
}
