//! A mount in this process: that the transport carries what the service says. What programs see in full is
//! for the scripts in tests/mount.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
    thread,
};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_fuse::{FuserTransport, MountOptions, Service, ServiceOptions, Transport, UringTransport};
use lacuna_nvmfs::{CheckDepth, FormatOptions, Nvmfs, Options};

/// Runs `test` on mounts of an empty store, over every transport there is; says so where there is none.
fn mounted(test: impl Fn(&Path, &Service)) {
    mounted_over(&FuserTransport, &test);
    mounted_over(&UringTransport, &test);
}

fn mounted_over(transport: &dyn Transport, test: &impl Fn(&Path, &Service)) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(128 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let fs = Arc::new(Nvmfs::open(device, Options::default()).expect("opens"));
    let service = Arc::new(Service::new(Arc::clone(&fs), ServiceOptions::default()));
    let dir = tempfile::tempdir().expect("temporary directory");
    let options = MountOptions { threads: 4, ..MountOptions::default() };
    let mut session = match transport.mount(Arc::clone(&service), dir.path(), &options) {
        Ok(session) => session,
        Err(error) => {
            return eprintln!("SKIPPED: nothing can be mounted over {}: {error}", transport.name());
        }
    };
    let mut unmount = session.unmounter();
    let serving = thread::spawn(move || session.serve());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(dir.path(), &service)));
    unmount().expect("unmounts");
    serving.join().expect("serves").expect("ends well");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    let report = fs.check(CheckDepth::Payload).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    fs.close().expect("closes");
}

#[test]
fn what_is_written_is_read() {
    mounted(|dir, service| {
        let path = dir.join("file");
        let mut file =
            fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        file.write_all(&data).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut found = Vec::new();
        file.read_to_end(&mut found).unwrap();
        assert!(found == data);
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.blksize()), (3_000_000, 65536));
        assert_eq!(metadata.ino(), fs::metadata(&path).unwrap().ino());
        let writes = service.counters().snapshot().writes;
        assert!((3..=6).contains(&writes), "{writes} writes for 3 MB: requests are not of 1 MiB");
        assert_eq!(fs::metadata(dir).unwrap().ino(), 1);
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    mounted(|dir, _| {
        let path = dir.join("file");
        let file =
            fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"alive", 0).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"another").unwrap();
        let mut found = [0; 5];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"alive");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert_eq!(fs::read(&path).unwrap(), b"another");
    });
}

#[test]
fn synchronous_writes_reach_the_device() {
    mounted(|dir, service| {
        let flushes = || service.fs().ftl().stats().flushes;
        for flag in [rustix::fs::OFlags::DSYNC, rustix::fs::OFlags::SYNC] {
            let file = fs::File::options()
                .create(true)
                .truncate(true)
                .write(true)
                .custom_flags(flag.bits() as i32)
                .open(dir.join("log"))
                .unwrap();
            let before = flushes();
            file.write_all_at(&[1; 512], 0).unwrap();
            assert!(flushes() > before, "{flag:?}");
        }
    });
}

#[test]
fn many_threads_share_files_and_directories() {
    mounted(|dir, _| {
        let shared = fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(dir.join("shared"))
            .unwrap();
        thread::scope(|scope| {
            for client in 0..8_u8 {
                let shared = &shared;
                scope.spawn(move || {
                    for turn in 0..50_u64 {
                        let at = (turn * 8 + u64::from(client)) * 4096;
                        shared.write_all_at(&[client + 1; 4096], at).unwrap();
                        let name = dir.join(format!("{client} {turn}"));
                        fs::write(&name, [client; 100]).unwrap();
                        fs::rename(&name, dir.join(format!("{client} {turn} moved"))).unwrap();
                    }
                });
            }
        });
        for page in 0..400_u64 {
            let mut found = [0; 4096];
            shared.read_exact_at(&mut found, page * 4096).unwrap();
            assert_eq!(found, [(page % 8) as u8 + 1; 4096], "page {page}");
        }
        assert_eq!(fs::read_dir(dir).unwrap().count(), 401);
    });
}
