use lacuna_device::{BlockDevice, MemDevice};
use lacuna_nvmfs::{
    FormatOptions, Options,
    posix::{Rename, SetAttr},
};

use super::*;

fn service() -> Service {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(64 << 20));
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let fs = Nvmfs::open(device, Options::default()).expect("opens");
    Service::new(Arc::new(fs), ServiceOptions::default())
}

const MODE: u32 = 0o100_644;

#[test]
fn a_number_used_again_has_not_been_asked_about() {
    let service = service();
    // Numbers are reused after 2^28 others: the next ones stand for reused ones.
    let first = service.create(FUSE_ROOT, b"first", MODE, Caller::default()).expect("creates");
    let next = |at: u64| Ino::new(first.ino.number() + at).expect("a number");
    assert!([1, 2].into_iter().all(|at| service.open_files.ask(next(at))));
    let second = service.create(FUSE_ROOT, b"second", MODE, Caller::default()).expect("creates");
    let third = service.mknod(FUSE_ROOT, b"third", MODE, 0, Caller::default()).expect("creates");
    assert_eq!((second.ino, third.ino), (next(1), next(2)), "this test tests nothing");
    assert!(![1, 2].iter().any(|at| service.open_files.knows(next(*at))));
}

#[test]
fn a_file_was_asked_about_until_it_is_gone() {
    let service = service();
    let names: [&[u8]; 3] = [b"kept", b"removed while open", b"removed later"];
    let numbers = names.map(|name| {
        let made = service.create(FUSE_ROOT, name, MODE, Caller::default()).expect("creates");
        let handle = Opening::Direct.handle(OFlags::RDWR.bits() as i32);
        service
            .ioctl(made.ino.number(), handle, DFS_IOCTL_ATOMIC_WRITE_SET, &[], Caller::default())
            .expect("answers");
        made.ino.number()
    });
    let inos = numbers.map(|number| Ino::new(number).expect("a number"));
    let asked = || inos.iter().filter(|ino| service.open_files.is_asked_about(**ino)).count();
    service.unlink(FUSE_ROOT, names[1]).expect("removes");
    // The kernel does not say which of the two comes first.
    service.forget(numbers[1], 1);
    assert_eq!(asked(), 3, "it is open");
    numbers.iter().for_each(|number| service.release(*number).expect("closes"));
    assert_eq!(asked(), 2);
    service.unlink(FUSE_ROOT, names[2]).expect("removes");
    numbers.iter().for_each(|number| service.forget(*number, 1));
    // A program that opens a file again need not send the ioctl again.
    assert!(asked() == 1 && service.open_files.is_asked_about(inos[0]));
}

#[test]
fn what_was_removed_can_be_used_until_it_is_forgotten() {
    let service = service();
    let inodes = || service.statfs().map(|stat| stat.inodes - stat.free_inodes).expect("tells");
    let before = inodes();
    let made = service.mkdir(FUSE_ROOT, b"d", 0o750, Caller { uid: 5, gid: 6, umask: 0 }).expect("makes");
    let number = made.ino.number();
    service.rmdir(FUSE_ROOT, b"d").expect("removes");
    let Ok(Attr { nlink: 0, uid: 5, perm: 0o750, kind: FileKind::Directory, .. }) = service.getattr(number)
    else {
        panic!("{:?}", service.getattr(number));
    };
    service.open(number).expect("opens");
    service.fsync(number, false).expect("has nothing to sync");
    assert_eq!(service.mkdir(number, b"d", 0o755, Caller::default()), Err(Os::NOENT.into()));
    service.forget(number, 1);
    assert_eq!(service.getattr(number).map(|attr| attr.nlink), Ok(0), "it is open");
    service.release(number).expect("closes");
    assert_eq!(service.getattr(number), Err(Os::STALE.into()));
    assert_eq!(service.open(number), Err(Os::STALE.into()));
    // So can a file that a rename replaced, and a file that lost two names.
    let from = service.mkdir(FUSE_ROOT, b"from", 0o755, Caller::default()).expect("makes");
    let replaced = service.mkdir(FUSE_ROOT, b"to", 0o700, Caller::default()).expect("makes");
    service.rename((FUSE_ROOT, b"from"), (FUSE_ROOT, b"to"), Rename::Replace, None).expect("moves");
    let file = service.mknod(FUSE_ROOT, b"file", MODE, 0, Caller::default()).expect("makes");
    service.link(file.ino.number(), FUSE_ROOT, b"another", Caller::default()).expect("links");
    service.unlink(FUSE_ROOT, b"file").expect("removes");
    service.unlink(FUSE_ROOT, b"another").expect("removes");
    assert_eq!(
        service.link(file.ino.number(), FUSE_ROOT, b"third", Caller::default()),
        Err(Os::NOENT.into())
    );
    for (gone, lookups) in [(replaced, 1), (file, 2)] {
        let number = gone.ino.number();
        assert_eq!(service.getattr(number).map(|attr| (attr.nlink, attr.perm)), Ok((0, gone.perm)));
        let changes = SetAttr { mode: Some(0o123), uid: Some(7), ..SetAttr::default() };
        let changed = service.setattr(number, &changes).expect("changes");
        assert_eq!((changed.perm, changed.uid, changed.gid), (0o123, 7, 0));
        service
            .setxattr(number, b"user.x", b"value", XattrMode::Set, Caller::default(), SetGroupId::Stays)
            .expect("sets");
        assert_eq!(service.getxattr(number, b"user.x").as_deref(), Ok(&b"value"[..]));
        let cut = SetAttr { size: Some(9), ..SetAttr::default() };
        assert_eq!(service.setattr(number, &cut).is_ok(), gone.kind == FileKind::File);
        service.open(number).expect("opens");
        service.release(number).expect("closes");
        service.forget(number, lookups - 1);
        service.getattr(number).expect("is known still");
        service.forget(number, 1);
        assert_eq!(service.getattr(number), Err(Os::STALE.into()));
    }
    service.forget(from.ino.number(), 1);
    assert_eq!(inodes(), before + 1, "one directory has a name");
}

#[test]
fn a_listing_counts_what_it_gave_and_nothing_else() {
    let service = service();
    for name in [&b"a"[..], b"b", b"c"] {
        let made = service.mknod(FUSE_ROOT, name, MODE, 0, Caller::default()).expect("makes");
        service.forget(made.ino.number(), 1);
    }
    let (mut listed, mut refused) = (Vec::new(), Vec::new());
    let list = |found: NamedAttr| {
        let is_taken = listed.len() < 4; // `.`, `..` and two more
        if is_taken { &mut listed } else { &mut refused }.push((found.name, found.found.attr.ino.number()));
        is_taken
    };
    service.readdir_with_attributes(FUSE_ROOT, 0, list).expect("lists");
    for (name, number) in listed.iter().skip(2).chain(&refused) {
        service.unlink(FUSE_ROOT, name).expect("removes");
        let is_known = listed.iter().any(|(_, other)| other == number);
        assert_eq!(service.getattr(*number).is_ok(), is_known);
    }
    service.unmounted();
    assert!(listed.iter().skip(2).all(|(_, number)| service.getattr(*number) == Err(Os::STALE.into())));
}
