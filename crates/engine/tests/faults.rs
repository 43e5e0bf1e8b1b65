//! Failing devices and damaged bytes. After a failed write or sync the store stops, without a panic or
//! a hang, and opens again with every acknowledged commit; a flipped bit is reported as an error or has no effect.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use lacuna_device::{BlockDevice, SECTOR, StreamHint, Vfs};
use lacuna_engine::{Algorithm, Direction, Durability, Error, Store, StoreOptions, Table, TableOptions};
use lacuna_nvmfs::{FormatOptions, Nvmfs, Options};
use lacuna_sim::{SeededRng, SimDevice, SimVfs, for_each_seed};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Transactions of the fixed workload.
const TXNS: u64 = 60;

fn options(background: bool) -> StoreOptions {
    StoreOptions {
        pool_bytes: 1 << 20,
        log_bytes: 256 << 10,
        durability: Durability::Sync,
        lock_timeout: Duration::from_secs(10),
        flush_threads: 2,
        background,
        ..StoreOptions::default()
    }
}

/// Where a store lives, with a medium that can fail.
trait Rig: Send + Sync + 'static {
    fn vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>>;
    fn fail_writes_after(&self, writes: u64);
    fn fail_sync(&self);
    fn enospc(&self);
    fn heal(&self, power_cycle: bool);
}

impl Rig for Arc<SimVfs> {
    fn vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        Ok(self.clone())
    }
    fn fail_writes_after(&self, writes: u64) {
        SimVfs::fail_writes_after(self, writes);
    }
    fn fail_sync(&self) {
        SimVfs::fail_sync(self);
    }
    fn enospc(&self) {
        SimVfs::enospc(self);
    }
    fn heal(&self, power_cycle: bool) {
        SimVfs::heal(self);
        if power_cycle {
            self.power_cycle();
        }
    }
}

/// The file system of Lacuna's own on a simulated device.
struct Flash(Arc<SimDevice>);

fn open_flash(device: &Arc<SimDevice>) -> lacuna_device::Result<Arc<dyn Vfs>> {
    let raw: Arc<dyn BlockDevice> = device.clone();
    let mut options = Options::default();
    options.ftl.background = false;
    Ok(Arc::new(Nvmfs::open(raw, options).map_err(lacuna_device::Error::from)?))
}

fn flash(seed: u64) -> Arc<SimDevice> {
    let device = SimDevice::new(32 << 20, seed);
    let mut format = FormatOptions::default();
    format.ftl.segment_bytes = Some(256 << 10);
    format.uuid = Some([3; 16]);
    let raw: Arc<dyn BlockDevice> = device.clone();
    Nvmfs::format(raw, &format).expect("format");
    device
}

impl Rig for Flash {
    fn vfs(&self) -> lacuna_device::Result<Arc<dyn Vfs>> {
        open_flash(&self.0)
    }
    fn fail_writes_after(&self, writes: u64) {
        self.0.fail_writes_after(writes);
    }
    fn fail_sync(&self) {
        self.0.fail_sync();
    }
    fn enospc(&self) {
        self.0.enospc();
    }
    fn heal(&self, power_cycle: bool) {
        self.0.heal();
        if power_cycle {
            self.0.power_cycle();
        }
    }
}

fn read_all(store: &Store) -> Result<Model, Error> {
    let mut found = Model::new();
    let Some(table) = store.table("t")? else { return Ok(found) };
    let all = (Bound::Unbounded, Bound::Unbounded);
    store.begin().scan(&table, all.0, all.1, Direction::Forward, |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// One transaction of the workload; `model` becomes what it leaves.
fn change(store: &Store, table: &Table, rng: &mut SeededRng, model: &mut Model) -> Result<(), Error> {
    let before = model.clone();
    let mut txn = store.begin();
    for _ in 0..20 {
        let key = rng.below(600).to_be_bytes().to_vec();
        if rng.chance(30) {
            txn.delete(table, &key)?;
            model.remove(&key);
        } else {
            let mut value = vec![0; rng.below(400) as usize];
            rng.fill(&mut value);
            txn.put(table, &key, &value)?;
            model.insert(key, value);
        }
    }
    if rng.chance(20) {
        *model = before;
        return txn.rollback();
    }
    txn.commit()
}

fn make(vfs: Arc<dyn Vfs>, background: bool) -> (Store, Table) {
    let store = Store::open(vfs, options(background)).expect("open");
    let kind = TableOptions::compressed(Algorithm::Lz4).page_bytes(4096);
    let table = store.create_table("t", kind).expect("create");
    (store, table)
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    WriteAfter(u64),
    SyncAt(u64),
    FullAt(u64),
}

/// The workload with one fault. The store must hold the acknowledged commits, with or without the one under way; every
/// other outcome is a failure.
fn fault_case(rig: &dyn Rig, fault: Fault, background: bool, power_cycle: bool) {
    let (store, table) = make(rig.vfs().expect("place"), background);
    let mut rng = SeededRng::new(7);
    let (mut acked, mut under_way) = (Model::new(), Model::new());
    if let Fault::WriteAfter(n) = fault {
        rig.fail_writes_after(n);
    }
    let mut failed = false;
    for i in 0..TXNS {
        match fault {
            Fault::SyncAt(at) if at == i => rig.fail_sync(),
            Fault::FullAt(at) if at == i => rig.enospc(),
            _ => {}
        }
        let mut after = acked.clone();
        match change(&store, &table, &mut rng, &mut after) {
            Ok(()) => {
                assert!(!failed, "{fault:?}: a stopped store goes on");
                acked = after.clone();
                under_way = after;
            }
            Err(Error::Device(_) | Error::Poisoned { .. } | Error::Full { .. }) => {
                if !failed {
                    under_way = after;
                }
                failed = true;
            }
            Err(e) => panic!("{fault:?}: {e}"),
        }
        if failed {
            let seen = read_all(&store);
            assert!(matches!(seen, Ok(_) | Err(Error::Poisoned { .. } | Error::Device(_))), "{seen:?}");
        }
        if i % 10 == 9 {
            let _ = if i % 20 == 9 { store.checkpoint() } else { store.step().map(|_| ()) };
        }
    }
    drop(table);
    if power_cycle {
        drop(store);
    } else {
        let _ = store.close();
    }
    rig.heal(power_cycle);
    let store = Store::open(rig.vfs().expect("place"), options(background))
        .unwrap_or_else(|e| panic!("{fault:?}, power cycle {power_cycle}: {e}"));
    let found = read_all(&store).expect("scan");
    assert!(
        found == acked || found == under_way,
        "{fault:?}, power cycle {power_cycle}: {} records, {} acknowledged",
        found.len(),
        acked.len()
    );
    store.check().expect("check");
    store.close().expect("close");
}

/// Runs `case`, which takes a moment, in a thread that has ten minutes to end, however busy the machine is.
fn in_time(what: String, case: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        case();
        let _ = done.send(());
    });
    if ended.recv_timeout(Duration::from_secs(600)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("{what}: hangs");
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A fault at every write, at some syncs, and a full medium at some moments, with every way to continue.
fn fault_matrix<R: Rig>(new: impl Fn(u64) -> R, writes_step: usize) {
    let writes = (1..240).step_by(writes_step).map(Fault::WriteAfter);
    let others = (0..TXNS).step_by(7).flat_map(|at| [Fault::SyncAt(at), Fault::FullAt(at)]);
    for (i, fault) in writes.chain(others).enumerate() {
        let rig = new(i as u64 + 1);
        let (background, power_cycle) = (i % 4 == 3, i % 2 == 1);
        in_time(format!("{fault:?}"), move || fault_case(&rig, fault, background, power_cycle));
    }
}

#[test]
fn a_failing_directory_stops_the_store_and_loses_no_commit() {
    fault_matrix(SimVfs::new, 3);
}

#[test]
fn a_failing_flash_stops_the_store_and_loses_no_commit() {
    fault_matrix(|seed| Flash(flash(seed)), 3);
}

/// A store after the workload, and the states before and after its last transaction.
fn filled(vfs: Arc<dyn Vfs>, close: bool) -> [Model; 2] {
    let (store, table) = make(vfs, false);
    let mut rng = SeededRng::new(7);
    let mut states = [Model::new(), Model::new()];
    for _ in 0..TXNS {
        states[0] = states[1].clone();
        change(&store, &table, &mut rng, &mut states[1]).expect("change");
    }
    drop(table);
    if close {
        store.close().expect("close");
        states[0] = states[1].clone();
    }
    states
}

/// Opens and reads everything: yields the right data or an error that names the damage.
fn survives(vfs: lacuna_device::Result<Arc<dyn Vfs>>, states: &[Model; 2], what: &str) {
    let read = vfs.map_err(Error::from).and_then(|vfs| {
        let store = Store::open(vfs, options(false))?;
        let found = read_all(&store)?;
        store.check()?;
        Ok(found)
    });
    match read {
        Ok(found) => assert!(states.contains(&found), "{what}: wrong data, {} records", found.len()),
        Err(Error::Corrupt { .. } | Error::BadStore { .. } | Error::Device(_)) => {}
        Err(e) => panic!("{what}: {e}"),
    }
}

/// Allocated sectors of the VFS's files, as file and offset.
fn sectors(vfs: &SimVfs) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for name in vfs.list().expect("list") {
        let file = vfs.open(&name, StreamHint::Data).expect("open");
        let len = file.len().expect("len");
        for at in (0..len).step_by(SECTOR) {
            if file.allocated(at, SECTOR as u64).expect("allocated") > 0 {
                found.push((name.clone(), at));
            }
        }
    }
    found
}

fn flip_files(close: bool, cases: u64) {
    let vfs = SimVfs::new(1);
    let states = filled(vfs.clone(), close);
    let sectors = sectors(&vfs);
    for_each_seed(cases, |seed| {
        let mut rng = SeededRng::new(seed);
        // Each file is as likely as any other, whatever its length.
        let names: Vec<_> = vfs.list().expect("list");
        let name = &names[rng.below(names.len() as u64) as usize];
        let of_file: Vec<_> = sectors.iter().filter(|(file, _)| file == name).collect();
        let Some((_, sector)) = of_file.get(rng.below(of_file.len().max(1) as u64) as usize) else { return };
        // Headers are at the start of sectors.
        let within = if rng.chance(50) { rng.below(64) } else { rng.below(SECTOR as u64) };
        let bit = rng.below(8) as u8;
        let damaged = vfs.fork(seed);
        damaged.flip_bit(name, sector + within, bit);
        let what = format!("{name} byte {} bit {bit}", sector + within);
        survives(Ok(damaged), &states, &what);
    });
}

#[test]
fn flipped_bits_of_a_closed_store_never_give_wrong_data() {
    flip_files(true, 400);
}

/// A damaged last group of the log looks like one that a crash tore: its commit may be missing.
#[test]
fn flipped_bits_of_a_killed_store_never_give_wrong_data() {
    flip_files(false, 400);
}

#[test]
fn flipped_bits_under_the_file_system_never_give_wrong_data() {
    let device = flash(1);
    let states = filled(open_flash(&device).expect("place"), true);
    let mut used = Vec::new();
    for at in (0..device.geometry().capacity_bytes).step_by(SECTOR) {
        let mut sector = [0; SECTOR];
        device.read_at(at, &mut sector).expect("read");
        if sector.iter().any(|byte| *byte != 0) {
            used.push(at);
        }
    }
    for_each_seed(150, |seed| {
        let mut rng = SeededRng::new(seed);
        let at = used[rng.below(used.len() as u64) as usize] + rng.below(SECTOR as u64);
        let damaged = device.fork(seed);
        damaged.flip_bit(at, rng.below(8) as u8);
        survives(open_flash(&damaged), &states, &format!("device byte {at}"));
    });
}
