//! The kernel looks a name up, and then uses the inode, while another request replaces or removes it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use lacuna_device::{BlockDevice, MemDevice};
use lacuna_fuse::{Service, ServiceOptions, SetGroupId, WriteRequest};
use lacuna_nvmfs::{
    FormatOptions, Nvmfs, Options,
    posix::{Caller, Rename, SetAttr, XattrMode},
};

const ROOT: u64 = 1;
const FILE: u32 = 0o100_644;

fn service() -> Service {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let fs = Nvmfs::open(device, Options::default()).expect("opens");
    Service::new(Arc::new(fs), ServiceOptions::default())
}

/// The requests that may follow a look-up.
fn use_file(service: &Service, number: u64) {
    service.getattr(number).expect("is told of");
    service.open(number).expect("opens");
    let data = WriteRequest {
        offset: 0,
        data: &[1; 700],
        open_flags: 0,
        kill_privileges: None,
        is_direct: true,
        from_cache: false,
        caller: Caller::default(),
    };
    assert_eq!(service.write(number, data), Ok(700));
    assert_eq!(service.read(number, 0, &mut [0; 700]), Ok(700));
    service.release(number).expect("closes");
    let changes = SetAttr { mode: Some(0o600), size: Some(600), ..SetAttr::default() };
    assert_eq!(service.setattr(number, &changes).expect("changes").size, 600);
    service
        .setxattr(number, b"user.x", &[2; 900], XattrMode::Set, Caller::default(), SetGroupId::Stays)
        .expect("sets");
    assert_eq!(service.getxattr(number, b"user.x").expect("is there"), [2; 900]);
    assert_eq!(service.listxattr(number, Caller::default()).expect("lists"), b"user.x\0");
    service.removexattr(number, b"user.x").expect("removes");
}

#[test]
fn what_was_looked_up_can_be_used_though_it_is_replaced() {
    let service = service();
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let is_over = AtomicBool::new(false);
    let replace = || {
        let made = service.mknod(ROOT, b"new", FILE, 0, Caller::default()).expect("makes");
        service.rename((ROOT, b"new"), (ROOT, b"a"), Rename::Replace, None).expect("moves");
        service.forget(Service::number(made.ino), 1);
    };
    replace();
    thread::scope(|scope| {
        let _stop = Stop(&is_over);
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                replace();
            }
        });
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            let found = service.lookup(ROOT, b"a").expect("is always there");
            assert!(!found.is_damaged);
            let number = Service::number(found.attr.ino);
            use_file(&service, number);
            service.forget(number, 1);
        }
    });
}
