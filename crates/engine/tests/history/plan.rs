//! The plan of a case, chosen by its seed before it runs: so a seed replays the same plan, however its threads
//! interleave.

use std::{num::NonZeroU64, time::Duration};

use lacuna_engine::{Algorithm, Doublewrite, Durability, Isolation, StoreOptions, TableKind, TableOptions};
use lacuna_sim::SeededRng;

use super::value::Form;

/// Tables of a case that stay.
pub(crate) const TABLES: [&str; 2] = ["one", "two"];
/// One that comes and goes.
pub(crate) const CHURNED: &str = "churned";
/// That of the marks (see `boundary`).
pub(crate) const MARKS: &str = "marks";

/// Records of loads start here, out of the way of most others.
const LOADS: u32 = 1000;

/// Threads with bulky transactions, where there are any.
const BULKY_THREADS: usize = 3;

pub(crate) struct Plan {
    seed: u64,
    pub(crate) epochs: u64,
    pub(crate) threads: usize,
    /// Transactions of a thread from one opening to the next.
    txns: u64,
    keys: u32,
    pub(crate) tables: [TableOptions; 2],
    pub(crate) marks: TableOptions,
    pub(crate) options: StoreOptions,
    /// Most threads write hundreds of records of their own in a transaction, and mostly roll them back: undo slots of
    /// many pages change hands.
    is_bulky: bool,
    /// Percentage of transactions at read committed.
    read_committed: u64,
    /// Percentage of operations after which a thread waits.
    pauses: u64,
    /// Percentage of values that a leaf does not take.
    long: u64,
    /// Whether tables come, go, and change beside the transactions.
    pub(crate) has_ddl: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Into memory that is used again, or not.
    Get {
        is_into: bool,
    },
    Lock,
    /// A value made from the one that is there, which is locked when it is read, or read from the snapshot.
    Update {
        locks: bool,
        form: Form,
        bytes: usize,
    },
    Put {
        form: Form,
        bytes: usize,
    },
    Insert {
        form: Form,
        bytes: usize,
    },
    InsertIfAbsent {
        form: Form,
        bytes: usize,
    },
    /// Compared with the value read before, or with another one, and replaced or deleted.
    Swap {
        is_right: bool,
        deletes: bool,
        form: Form,
        bytes: usize,
    },
    Delete,
    /// So many records, none of which should be there.
    Load {
        records: u32,
        /// From one key to the next.
        stride: u32,
        /// The last two come the wrong way round.
        is_out_of_order: bool,
        form: Form,
        bytes: usize,
    },
    /// Up to `upper`, by an iterator: each record from the end that a bit of `turns` says.
    Range {
        upper: u32,
        turns: u64,
        records_max: usize,
    },
    /// Up to `upper`.
    Count {
        upper: u32,
    },
    /// The transaction's cursor, which outlasts its other steps.
    Seek(Seek),
    Move {
        is_backward: bool,
    },
    /// Of the record that the cursor met last.
    UpdateHere {
        form: Form,
        bytes: usize,
    },
    DeleteHere,
    /// Up to `upper`, and so many records at most.
    Scan {
        upper: u32,
        is_backward: bool,
        records_max: usize,
    },
    Savepoint,
    /// To one of the savepoints that count.
    RollbackTo {
        which: u64,
    },
    Pause {
        micros: u64,
    },
}

/// Where a cursor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seek {
    First,
    Last,
    /// To the step's record, or the next one.
    From,
    /// To the step's record, or the one before.
    Back,
}

/// Table and record that a step is about. The last table is the one that comes and goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) table: usize,
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Commit,
    Rollback,
    Drop,
}

#[derive(Debug)]
pub(crate) struct TxnPlan {
    pub(crate) isolation: Isolation,
    pub(crate) steps: Vec<(Target, Step)>,
    pub(crate) ending: Ending,
}

/// The chores beside the transactions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Chore {
    Nothing,
    Checkpoint,
    Step,
    Upkeep,
    Alter { table: usize, kind: TableKind },
    Optimize { table: usize },
    Create(TableOptions),
    Drop,
}

fn pick<T: Copy, const N: usize>(rng: &mut SeededRng, from: [T; N]) -> T {
    from[rng.below(N as u64) as usize]
}

/// All kinds, with all sizes of pages. The slow algorithms come seldom.
fn table(rng: &mut SeededRng) -> TableOptions {
    let page_bytes = 4096 << rng.below(5);
    match rng.below(3) {
        0 => TableOptions::default().page_bytes(page_bytes),
        1 => TableOptions { kind: compressed(page_bytes, rng), ..TableOptions::default() }
            .page_bytes(page_bytes),
        _ => {
            let page_bytes = page_bytes.min(16 << 10);
            TableOptions { kind: row_kind(page_bytes, rng), page_bytes, ..TableOptions::default() }
        }
    }
}

fn compressed(page_bytes: usize, rng: &mut SeededRng) -> TableKind {
    match algorithm(rng) {
        // LZ4 and zstd mixed, in large pages.
        Algorithm::Zstd if page_bytes >= 16 << 10 => TableKind::Adaptive { level: 1 },
        algorithm => TableKind::PageCompressed { algorithm, level: 0 },
    }
}

/// Blocks of any length that pages allow, and that take the keys.
fn row_kind(page_bytes: usize, rng: &mut SeededRng) -> TableKind {
    let page = (page_bytes >> 10) as u32;
    let key_block_size = page >> rng.below(u64::from(page.ilog2()));
    let algorithm = if rng.chance(50) { Algorithm::Zlib } else { Algorithm::Lz4 };
    TableKind::RowCompressed { key_block_size, algorithm, level: rng.below(10) as i32 }
}

fn algorithm(rng: &mut SeededRng) -> Algorithm {
    if rng.chance(90) {
        return pick(rng, [Algorithm::Lz4, Algorithm::Zstd, Algorithm::Snappy]);
    }
    pick(rng, [Algorithm::None, Algorithm::Zlib, Algorithm::Lzo, Algorithm::Bzip2, Algorithm::Lzma])
}

impl Plan {
    pub(crate) fn new(seed: u64, epochs: u64) -> Plan {
        let rng = &mut SeededRng::new(seed);
        let options = StoreOptions {
            pool_bytes: (1 << 20) << rng.below(2),
            log_bytes: (256 << 10) << rng.below(3),
            history_bytes: pick(rng, [2 << 10, 20 << 10, 200 << 10, 1 << 30]),
            flush_threads: 1 + rng.below(2) as usize,
            lock_timeout: Duration::from_millis(pick(rng, [2, 50, 2000])),
            doublewrite: if rng.chance(20) { Doublewrite::On } else { Doublewrite::Auto },
            background: rng.chance(75),
            durability: if rng.chance(80) { Durability::Sync } else { Durability::Relaxed },
            relaxed_interval: Duration::from_millis(20),
            log_salt: NonZeroU64::new(7),
            ..StoreOptions::default()
        };
        let is_bulky = rng.chance(4);
        Plan {
            seed,
            epochs,
            threads: if is_bulky { BULKY_THREADS + 2 } else { 2 + rng.below(4) as usize },
            txns: if is_bulky { 4 + rng.below(5) } else { 10 + rng.below(18) },
            is_bulky,
            keys: pick(rng, [3, 8, 30, 200]),
            tables: [table(rng), table(rng)],
            marks: table(rng),
            options,
            read_committed: pick(rng, [0, 30, 50, 100]),
            pauses: pick(rng, [2, 15, 40]),
            long: pick(rng, [0, 3, 15]),
            has_ddl: rng.chance(60),
        }
    }

    /// Transactions of the thread from one opening to the next. Beside bulky ones there are always others.
    pub(crate) fn txns(&self, thread: usize) -> u64 {
        if self.is_bulky && thread >= BULKY_THREADS { self.txns * 15 } else { self.txns }
    }

    /// How a thread goes about its transaction number `number`.
    pub(crate) fn transaction(&self, epoch: u64, thread: usize, number: u64) -> TxnPlan {
        let name = [epoch + 1, thread as u64 + 1, number + 1];
        let seed = name.into_iter().fold(self.seed, |seed, n| SeededRng::new(seed ^ n).next_u64());
        let rng = &mut SeededRng::new(seed);
        let isolation =
            if rng.chance(self.read_committed) { Isolation::ReadCommitted } else { Isolation::Snapshot };
        if self.is_bulky && thread < BULKY_THREADS {
            return self.bulk(rng, isolation, thread);
        }
        let steps_max = if rng.chance(10) { 40 } else { 10 };
        // A slow one may have its snapshot revoked while it runs.
        let is_slow = rng.chance(4);
        let is_reader = rng.chance(8);
        let mut steps = Vec::new();
        for _ in 0..1 + rng.below(steps_max) {
            let hot = rng.chance(40);
            let number = rng.below(if hot { 3 } else { self.keys.into() }) as u32;
            let table = if self.has_ddl && rng.chance(15) { 2 } else { rng.below(2) as usize };
            let target = Target { table, number };
            match if is_reader { self.look(rng, number) } else { self.step(rng, number) } {
                step @ Step::Seek(_) => self.walk(rng, target, step, is_reader, &mut steps),
                // Into the table that comes and goes, mostly an empty one, or after the records of others.
                step @ Step::Load { .. } => {
                    let is_churned = self.has_ddl && rng.chance(50);
                    let table = if is_churned { 2 } else { table };
                    let number = if is_churned { number % 3 } else { LOADS + 40 * rng.below(5) as u32 };
                    steps.push((Target { table, number }, step));
                }
                step => steps.push((target, step)),
            }
            if rng.chance(self.pauses) || is_slow {
                let micros = rng.below(if is_slow { 4000 } else { 300 });
                steps.push((Target { table, number }, Step::Pause { micros }));
            }
        }
        let ending = match rng.below(20) {
            0..2 => Ending::Drop,
            2..5 => Ending::Rollback,
            _ => Ending::Commit,
        };
        TxnPlan { isolation, steps, ending }
    }

    /// A transaction with much undo, of records that no other thread writes in bulk.
    fn bulk(&self, rng: &mut SeededRng, isolation: Isolation, thread: usize) -> TxnPlan {
        let first = 300 * thread as u32;
        let steps = (first..first + 300).filter(|_| !rng.chance(10)).collect::<Vec<_>>().into_iter();
        let steps = steps.map(|number| {
            let form = if rng.chance(50) { Form::Alike } else { Form::Random };
            let bytes = 20 + rng.below(300) as usize;
            let target = Target { table: 0, number };
            (target, if rng.chance(5) { Step::Delete } else { Step::Put { form, bytes } })
        });
        let steps = steps.collect();
        TxnPlan { isolation, steps, ending: if rng.chance(60) { Ending::Rollback } else { Ending::Commit } }
    }

    /// A step that only reads.
    fn look(&self, rng: &mut SeededRng, number: u32) -> Step {
        let upper = number + rng.below(2 * u64::from(self.keys)) as u32;
        let records_max = if rng.chance(30) { 1 + rng.below(5) as usize } else { usize::MAX };
        match rng.below(10) {
            0..3 => Step::Get { is_into: rng.chance(50) },
            3..5 => Step::Scan { upper, is_backward: rng.chance(50), records_max },
            5..7 => {
                let mixed = rng.next_u64();
                Step::Range { upper, turns: pick(rng, [0, u64::MAX, mixed]), records_max }
            }
            7..9 => Step::Count { upper },
            _ => Step::Seek(pick(
                rng,
                [Seek::First, Seek::Last, Seek::From, Seek::From, Seek::Back, Seek::Back],
            )),
        }
    }

    /// A cursor that goes somewhere, and moves among writes, most of them where it stands.
    fn walk(
        &self,
        rng: &mut SeededRng,
        target: Target,
        seek: Step,
        is_reader: bool,
        steps: &mut Vec<(Target, Step)>,
    ) {
        // Records left by loads are deleted in a row.
        let clears = !is_reader && rng.chance(20);
        let target = if clears { Target { number: LOADS, ..target } } else { target };
        let is_backward = rng.chance(40);
        steps.push((target, if clears { Step::Seek(Seek::From) } else { seek }));
        for _ in 0..if clears { 30 } else { rng.below(10) } {
            let step = match rng.below(100) {
                _ if clears => Step::DeleteHere,
                0..25 if !is_reader => Step::DeleteHere,
                25..40 if !is_reader => {
                    Step::UpdateHere { form: Form::Alike, bytes: rng.below(600) as usize }
                }
                40..60 => {
                    let number = target.number.saturating_add_signed(rng.below(5) as i32 - 2);
                    let step = if is_reader { self.look(rng, number) } else { self.step(rng, number) };
                    if !matches!(step, Step::Seek(_) | Step::Load { .. }) {
                        steps.push((Target { number, ..target }, step));
                    }
                    continue;
                }
                _ => Step::Move { is_backward: is_backward ^ rng.chance(20) },
            };
            steps.push((target, step));
            if clears {
                steps.push((target, Step::Move { is_backward: false }));
            }
        }
    }

    fn step(&self, rng: &mut SeededRng, number: u32) -> Step {
        let form = if rng.chance(70) { Form::Alike } else { Form::Random };
        let bytes = match rng.below(100) {
            dice if dice < self.long => {
                let bytes_max = pick(rng, [9 << 10, 40 << 10, 100 << 10]);
                rng.below(bytes_max)
            }
            dice if dice < 30 => rng.below(900),
            _ => rng.below(80),
        } as usize;
        match rng.below(100) {
            0..16 => Step::Get { is_into: rng.chance(50) },
            16..21 => Step::Lock,
            21..43 => Step::Update { locks: rng.chance(50), form, bytes },
            43..51 => Step::Put { form, bytes },
            51..54 => Step::Insert { form, bytes },
            54..57 => Step::InsertIfAbsent { form, bytes },
            57..63 => Step::Swap { is_right: rng.chance(80), deletes: rng.chance(20), form, bytes },
            63..70 => Step::Delete,
            70..71 => Step::Load {
                records: 1 + rng.below(40) as u32,
                stride: 1 + rng.below(3) as u32,
                is_out_of_order: rng.chance(15),
                form,
                bytes,
            },
            71..90 => self.look(rng, number),
            90..95 => Step::Savepoint,
            _ => Step::RollbackTo { which: rng.next_u64() },
        }
    }

    /// The chores of an epoch, one after the other.
    pub(crate) fn chores(&self, epoch: u64) -> impl Iterator<Item = Chore> + use<> {
        let mut rng = SeededRng::new(!self.seed ^ epoch << 56);
        let (has_ddl, tables) = (self.has_ddl, self.tables);
        std::iter::repeat_with(move || chore(&mut rng, has_ddl, &tables))
    }
}

fn chore(rng: &mut SeededRng, has_ddl: bool, tables: &[TableOptions; 2]) -> Chore {
    let which = rng.below(2) as usize;
    match rng.below(100) {
        0..5 => Chore::Checkpoint,
        5..30 => Chore::Step,
        30..35 => Chore::Upkeep,
        35..45 if has_ddl => Chore::Create(table(rng)),
        45..55 if has_ddl => Chore::Drop,
        55..59 if has_ddl => Chore::Optimize { table: which },
        59..66 if has_ddl => {
            let page_bytes = tables[which].page_bytes;
            let kind = match rng.below(3) {
                0 if page_bytes <= 16 << 10 => row_kind(page_bytes, rng),
                1 => TableKind::Plain,
                _ => compressed(page_bytes, rng),
            };
            Chore::Alter { table: which, kind }
        }
        _ => Chore::Nothing,
    }
}
