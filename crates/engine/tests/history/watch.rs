//! Runs the threads of an epoch, and gives up on one that makes no progress.

use std::{
    ops::ControlFlow,
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use lacuna_engine::Error;
use parking_lot::Mutex;

use super::{
    plan::{CHURNED, Chore, TABLES},
    record::{State, TxnRecord},
    session::Session,
    worker::Worker,
};

/// A thread without progress for so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The activity of a thread.
#[derive(Default)]
pub(crate) struct Slot {
    steps: AtomicU64,
    doing: Mutex<String>,
}

impl Slot {
    pub(crate) fn set(&self, doing: String) {
        *self.doing.lock() = doing;
        self.steps.fetch_add(1, SeqCst);
    }
}

/// Runs all transactions of the epoch, and the chores beside them.
pub(crate) fn run(session: &Arc<Session>) -> Vec<TxnRecord> {
    let threads = session.plan.threads;
    session.working.store(threads, SeqCst);
    let slots: Vec<Arc<Slot>> = (0..=threads).map(|_| Arc::default()).collect();
    // Not in a scope, which would wait for a thread that hangs.
    let workers = (0..threads).map(|thread| {
        let worker = Worker { session: session.clone(), thread, slot: slots[thread].clone() };
        thread::spawn(move || {
            let _leaves = Leaves(worker.session.clone());
            worker.session.number_tables();
            worker.run()
        })
    });
    let workers: Vec<_> = workers.collect();
    let (beside, slot) = (session.clone(), slots[threads].clone());
    let chores = thread::spawn(move || do_chores(&beside, &slot));
    let mut seen: Vec<(u64, Instant)> = vec![(0, Instant::now()); slots.len()];
    while !(workers.iter().all(|worker| worker.is_finished()) && chores.is_finished()) {
        thread::sleep(Duration::from_micros(300));
        for (slot, (steps, since)) in slots.iter().zip(&mut seen) {
            let now = slot.steps.load(SeqCst);
            if *steps != now {
                (*steps, *since) = (now, Instant::now());
            }
        }
        let hangs = |thread: usize, is_finished: bool| !is_finished && seen[thread].1.elapsed() > PATIENCE;
        let is_stuck = workers.iter().enumerate().any(|(i, worker)| hangs(i, worker.is_finished()));
        if is_stuck || hangs(threads, chores.is_finished()) {
            let doing: Vec<_> = slots.iter().map(|slot| slot.doing.lock().clone()).collect();
            panic!("no progress for {PATIENCE:?}; the threads are at: {doing:#?}");
        }
    }
    let mut records = Vec::new();
    let mut panicked = None;
    for worker in workers {
        match worker.join() {
            Ok(mut of_worker) => records.append(&mut of_worker),
            Err(payload) => panicked = Some(payload),
        }
    }
    if let Some(payload) = panicked.or(chores.join().err()) {
        panic::resume_unwind(payload);
    }
    records
}

/// Signals the chores when the last worker is done.
struct Leaves(Arc<Session>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, SeqCst);
    }
}

fn do_chores(session: &Session, slot: &Slot) {
    for chore in session.plan.chores(session.epoch) {
        if session.working.load(SeqCst) == 0 {
            break;
        }
        slot.set(format!("{chore:?}"));
        match do_chore(session, chore) {
            Ok(()) => {}
            Err(Error::TableInUse { .. } | Error::NoSuchTable { .. } | Error::Full { .. }) => {}
            // Writers did not end.
            Err(Error::LockTimeout) if matches!(chore, Chore::Alter { .. }) => {}
            Err(error) => {
                session.fail(&format!("{chore:?}"), &error);
                break;
            }
        }
        thread::sleep(Duration::from_micros(100));
    }
}

fn do_chore(session: &Session, chore: Chore) -> Result<(), Error> {
    let store = &session.store;
    match chore {
        Chore::Nothing => Ok(()),
        Chore::Checkpoint => {
            let began = session.now();
            store.checkpoint()?;
            session.durable_until.fetch_max(began, SeqCst);
            Ok(())
        }
        Chore::Step => store.step().map(drop),
        Chore::Upkeep => {
            session.rig.upkeep(&mut lacuna_sim::SeededRng::new(session.now()));
            Ok(())
        }
        Chore::Alter { table, kind } => store.alter_table(TABLES[table], kind),
        Chore::Optimize { table } => {
            let each = |_| {
                if session.working.load(SeqCst) == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            store.optimize(TABLES[table], each).map(drop)
        }
        Chore::Create(options) => {
            if session.churned.read().is_none() {
                let table = store.create_table(CHURNED, options)?;
                *session.churned.write() = Some(table);
            }
            Ok(())
        }
        Chore::Drop => {
            let Some(id) = session.churned.read().as_ref().map(|table| table.id().0) else { return Ok(()) };
            session.dropped.lock().insert(id);
            let outcome = store.drop_table(CHURNED);
            match &outcome {
                Ok(()) => *session.churned.write() = None,
                Err(Error::TableInUse { .. }) => drop(session.dropped.lock().remove(&id)),
                Err(_) => {}
            }
            outcome
        }
    }
}

/// The initial state of a history.
pub(crate) fn history(session: &Session, initial: State, txns: Vec<TxnRecord>) -> super::record::History {
    super::record::History {
        initial,
        txns,
        survived: Default::default(),
        dropped: session.dropped.lock().clone(),
        durable_until: session.durable_until.load(SeqCst),
    }
}
