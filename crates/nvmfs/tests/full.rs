//! A file system that is as full as it may be, however its uses end: existing files can always be overwritten,
//! truncated and removed. Only operations that cut extents may be refused. `LACUNA_CASES=n`: n file systems.

use crate::power::{formatted, open, recover};
use lacuna_device::{Error, Result, StreamHint, Vfs};
use lacuna_ftl::Work;
use lacuna_nvmfs::{CheckDepth, Nvmfs};
use lacuna_sim::{SeededRng, for_each_seed};

const SECTOR: u64 = 512;
const USES: u64 = 40;
const FILE_SECTORS_MAX: u64 = 60;

fn bytes(rng: &mut SeededRng, sectors: u64) -> Vec<u8> {
    let mut data = vec![0; (sectors * SECTOR) as usize];
    rng.fill(&mut data);
    data.iter_mut().for_each(|byte| *byte |= 1);
    data
}

/// An operation that adds data may be refused; returns whether it succeeded.
fn unless_full(result: Result<()>) -> Result<bool> {
    match result {
        Err(Error::Full { .. }) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Makes files, and writes them, until one is refused.
fn fill(vfs: &Nvmfs, rng: &mut SeededRng) -> Result<()> {
    loop {
        let name = format!("file {}", rng.next_u64());
        if !unless_full(vfs.create(&name, StreamHint::Data).map(drop))? {
            return Ok(());
        }
        let sectors = 1 + rng.below(FILE_SECTORS_MAX);
        let data = bytes(rng, sectors);
        if !unless_full(vfs.open(&name, StreamHint::Data)?.write_at(0, &data))? {
            return Ok(());
        }
    }
}

/// One change that adds nothing.
fn change(vfs: &Nvmfs, rng: &mut SeededRng) -> Result<()> {
    let names = vfs.list()?;
    if names.is_empty() {
        return Ok(());
    }
    let name = &names[rng.below(names.len() as u64) as usize];
    let file = vfs.open(name, StreamHint::Data)?;
    let sectors = file.len()? / SECTOR;
    match rng.below(40) {
        0 => vfs.remove(name).inspect_err(|error| eprintln!("a removal: {error}")),
        1 => {
            let len = rng.below(sectors + 1) * SECTOR;
            file.set_len(len).inspect_err(|error| eprintln!("a truncation: {error}"))
        }
        2 => vfs.sync(),
        3 => vfs.ftl().step(Work::Gc).map(drop).map_err(|_| Error::PowerCut),
        _ if sectors == 0 => Ok(()),
        4..20 => {
            // It cuts extents, which may then be too many.
            let from = rng.below(sectors);
            let len = 1 + rng.below(sectors - from);
            unless_full(file.write_at(from * SECTOR, &bytes(rng, len))).map(drop)
        }
        _ if file.allocated(0, sectors * SECTOR)? == sectors * SECTOR => file
            .write_at(0, &bytes(rng, sectors))
            .inspect_err(|error| eprintln!("a file as a whole: {error}")),
        _ => Ok(()),
    }
}

#[test]
fn what_is_there_can_always_be_changed() {
    for_each_seed(8, |seed| {
        let rng = &mut SeededRng::new(seed);
        let device = formatted(seed);
        let mut vfs = open(&device).expect("a new store");
        for number in 0..USES {
            if rng.chance(50) {
                device.set_cut_after(1 + rng.below(200));
            }
            let refilled = if number % 4 == 0 { fill(&vfs, rng) } else { Ok(()) };
            let many = rng.below(120);
            let mut worked = refilled.and_then(|()| (0..many).try_for_each(|_| change(&vfs, rng)));
            if worked.is_ok() && rng.chance(30) {
                worked = vfs.close().map_err(|_| Error::PowerCut);
            }
            if let Err(error) = worked {
                let is_expected = matches!(error, Error::PowerCut | Error::Poisoned { .. });
                assert!(device.is_off() && is_expected, "use {number}: {error}; {:#?}", vfs.ftl().stats());
            }
            drop(vfs);
            vfs = recover(&device, rng);
        }
        let report = vfs.check(CheckDepth::Payload).expect("a check");
        assert!(report.is_clean(), "{report:?}");
        for name in vfs.list().expect("a listing") {
            vfs.remove(&name).unwrap_or_else(|error| panic!("removing {name}: {error}"));
        }
        vfs.sync().expect("a sync");
        assert_eq!(vfs.list().expect("a listing"), Vec::<String>::new());
    });
}
