use zerocopy::IntoBytes;

use super::*;

/// Operations with a structure, a payload, and what they mean (in the notation of `Debug`).
type Row = (u32, Vec<u8>, &'static [u8], &'static str);

fn table() -> Vec<Row> {
    [of_names(), of_data()].concat()
}

fn of_names() -> Vec<Row> {
    let bytes = |value: &dyn AsBytes| value.to_vec();
    vec![
        (opcode::LOOKUP, vec![], b"a\0", "Lookup { name: [97] }"),
        (opcode::READLINK, vec![], b"", "ReadLink"),
        (opcode::SYMLINK, vec![], b"a\0b\0", "Symlink { name: [97], target: [98] }"),
        (
            opcode::MKNOD,
            bytes(&wire::MknodIn { mode: 1, rdev: 2, umask: 3, ..Default::default() }),
            b"a\0",
            "Mknod { name: [97], mode: 1, umask: 3, rdev: 2 }",
        ),
        (
            opcode::MKDIR,
            bytes(&wire::MkdirIn { mode: 1, umask: 2 }),
            b"a\0",
            "Mkdir { name: [97], mode: 1, umask: 2 }",
        ),
        (opcode::UNLINK, vec![], b"a\0", "Unlink { name: [97] }"),
        (opcode::RMDIR, vec![], b"a\0", "Rmdir { name: [97] }"),
        (
            opcode::RENAME,
            bytes(&wire::RenameIn { newdir: 3 }),
            b"a\0b\0",
            "Rename { name: [97], to: (3, [98]), mode: Replace, leaves_whiteout: false }",
        ),
        (
            opcode::RENAME2,
            bytes(&wire::Rename2In { newdir: 3, flags: 2, _padding: 0 }),
            b"a\0b\0",
            "Rename { name: [97], to: (3, [98]), mode: Exchange, leaves_whiteout: false }",
        ),
        (
            opcode::RENAME2,
            bytes(&wire::Rename2In { newdir: 3, flags: 5, _padding: 0 }),
            b"a\0b\0",
            "Rename { name: [97], to: (3, [98]), mode: NoReplace, leaves_whiteout: true }",
        ),
        (opcode::LINK, bytes(&wire::LinkIn { oldnodeid: 4 }), b"a\0", "Link { ino: 4, name: [97] }"),
        (opcode::OPEN, bytes(&wire::OpenIn { flags: 5, _open_flags: 0 }), b"", "Open { flags: 5 }"),
        (
            opcode::CREATE,
            bytes(&wire::CreateIn { flags: 5, mode: 6, umask: 7, ..Default::default() }),
            b"a\0",
            "Create { name: [97], mode: 6, umask: 7, flags: 5 }",
        ),
        (
            opcode::TMPFILE,
            bytes(&wire::CreateIn { flags: 5, mode: 6, umask: 7, ..Default::default() }),
            b"/\0",
            "CreateUnnamed { mode: 6, umask: 7, flags: 5 }",
        ),
        (opcode::STATX, bytes(&wire::StatxIn::default()), b"", "Statx"),
    ]
}

fn of_data() -> Vec<Row> {
    let bytes = |value: &dyn AsBytes| value.to_vec();
    let read = wire::ReadIn { offset: 7, size: 512, ..Default::default() };
    vec![
        (opcode::READ, bytes(&read), b"", "Read { offset: 7, len: 512 }"),
        (opcode::READDIR, bytes(&read), b"", "ReadDir { cursor: 7, len: 512 }"),
        (opcode::READDIRPLUS, bytes(&read), b"", "ReadDirPlus { cursor: 7, len: 512 }"),
        (
            opcode::WRITE,
            bytes(&wire::WriteIn {
                fh: 1,
                offset: 7,
                size: 2,
                write_flags: 5,
                flags: 8,
                ..Default::default()
            }),
            b"ab",
            "Write(WriteRequest { offset: 7, data: [97, 98], open_flags: 8, kill_privileges: \
             Some(Caller { uid: 11, gid: 12, umask: 0 }), is_direct: true, from_cache: true, \
             caller: Caller { uid: 11, gid: 12, umask: 0 } })",
        ),
        (
            opcode::RELEASE,
            bytes(&wire::ReleaseIn { fh: 1, ..Default::default() }),
            b"",
            "Release { handle: 1 }",
        ),
        (opcode::RELEASEDIR, bytes(&wire::ReleaseIn::default()), b"", "ReleaseDir"),
        (
            opcode::FSYNC,
            bytes(&wire::FsyncIn { fsync_flags: 1, ..Default::default() }),
            b"",
            "Fsync { data_only: true }",
        ),
        (opcode::FSYNCDIR, bytes(&wire::FsyncIn::default()), b"", "Fsync { data_only: false }"),
        (
            opcode::SETXATTR,
            bytes(&wire::SetXattrIn { size: 2, flags: 1, setxattr_flags: 1, _padding: 0 }),
            b"a\0\0b",
            "SetXattr { name: [97], value: [0, 98], mode: Create, set_group_id: Goes }",
        ),
        (
            opcode::GETXATTR,
            bytes(&wire::GetXattrIn { size: 9, _padding: 0 }),
            b"a\0",
            "GetXattr { name: [97], len: 9 }",
        ),
        (opcode::LISTXATTR, bytes(&wire::GetXattrIn { size: 9, _padding: 0 }), b"", "ListXattr { len: 9 }"),
        (opcode::REMOVEXATTR, vec![], b"a\0", "RemoveXattr { name: [97] }"),
        (
            opcode::IOCTL,
            bytes(&wire::IoctlIn { fh: 1, cmd: 10, ..Default::default() }),
            b"\x01",
            "Ioctl { handle: 1, command: 10, data: [1] }",
        ),
        (
            opcode::FALLOCATE,
            bytes(&wire::FallocateIn { offset: 1, length: 2, mode: 3, ..Default::default() }),
            b"",
            "Fallocate { offset: 1, len: 2, mode: 3 }",
        ),
        (
            opcode::LSEEK,
            bytes(&wire::LseekIn { fh: 3, offset: -1, whence: 4, ..Default::default() }),
            b"",
            "Seek { handle: 3, offset: -1, whence: 4 }",
        ),
        (
            opcode::COPY_FILE_RANGE,
            bytes(&wire::CopyFileRangeIn {
                off_in: 1,
                nodeid_out: 2,
                off_out: 3,
                len: 4,
                ..Default::default()
            }),
            b"",
            "CopyRange { from_offset: 1, to: (2, 3), len: 4 }",
        ),
    ]
}

trait AsBytes {
    fn to_vec(&self) -> Vec<u8>;
}

impl<T: IntoBytes + zerocopy::Immutable> AsBytes for T {
    fn to_vec(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

fn header(number: u32) -> InHeader {
    InHeader { opcode: number, uid: 11, gid: 12, ..Default::default() }
}

/// A request as it is read from the device.
fn request(number: u32, argument: &[u8], payload: &[u8]) -> Vec<u8> {
    let len = size_of::<InHeader>() + argument.len() + payload.len();
    let header = InHeader { len: len as u32, unique: 2, nodeid: 1, ..header(number) };
    [header.as_bytes(), argument, payload].concat()
}

fn parse(bytes: &[u8]) -> Option<Result<String, Errno>> {
    let (header, argument, payload) = split(bytes)?;
    Some(Operation::parse(&header, argument, payload).map(|operation| format!("{operation:?}")))
}

#[test]
fn each_operation_is_understood() {
    for (number, argument, payload, expected) in table() {
        let bytes = request(number, &argument, payload);
        assert_eq!(parse(&bytes), Some(Ok(expected.to_owned())), "operation {number}");
        // Through a ring the structure has spare space.
        let mut roomy = argument.clone();
        roomy.resize(128, 0xff);
        let found =
            Operation::parse(&header(number), &roomy, payload).map(|operation| format!("{operation:?}"));
        assert_eq!(found, Ok(expected.to_owned()), "operation {number}");
    }
}

#[test]
fn a_request_cut_short_is_never_taken_for_another() {
    for (number, argument, payload, _) in table() {
        let whole = request(number, &argument, payload);
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), None, "operation {number}, {len} bytes: the header says more");
            // The same with a header that agrees. Only an ioctl's data has no length of its own.
            let mut cut = whole[..len].to_vec();
            if let Some(field) = cut.first_chunk_mut() {
                *field = (len as u32).to_ne_bytes();
            }
            let is_refused = !matches!(parse(&cut), Some(Ok(_)));
            assert!(is_refused || number == opcode::IOCTL, "operation {number}, {len} bytes");
        }
    }
}

#[test]
fn unknown_operations_and_flags_are_refused_by_number() {
    let refused = |number, argument: &[u8], payload: &'static [u8]| {
        Operation::parse(&header(number), argument, payload).map(|operation| format!("{operation:?}"))
    };
    // FLUSH, POLL, BMAP and future operations.
    for number in [0, 25, 37, 40, 53, 4096, u32::MAX] {
        assert_eq!(refused(number, &[0; 128], b"a\0"), Err(Os::NOSYS.into()), "{number}");
    }
    // An unknown flag, and two that contradict each other.
    for flags in [8, 2 | 4] {
        let rename = wire::Rename2In { newdir: 1, flags, _padding: 0 };
        assert_eq!(refused(opcode::RENAME2, rename.as_bytes(), b"a\0b\0"), Err(Os::INVAL.into()));
    }
    let set = wire::SetXattrIn { flags: 3, ..Default::default() };
    assert_eq!(refused(opcode::SETXATTR, set.as_bytes(), b"a\0"), Err(Os::INVAL.into()));
    for payload in [&b""[..], b"a", b"a\0b"] {
        assert_eq!(refused(opcode::LOOKUP, &[], payload), Err(Os::IO.into()), "{payload:?}");
    }
}

const CALLER: Caller = Caller { uid: 11, gid: 12, umask: 0 };

#[test]
fn set_attributes_are_those_that_are_marked() {
    let mut sent = wire::SetAttrIn {
        size: 1,
        atime: -2,
        mtime: 3,
        ctime: 4,
        atimensec: 5,
        mtimensec: 2_000_000_000,
        ctimensec: 7,
        mode: 8,
        uid: 9,
        gid: 10,
        ..Default::default()
    };
    assert_eq!(changes(&sent, CALLER), SetAttr::default());
    sent.valid = !(set_attr::ATIME_NOW | set_attr::MTIME_NOW);
    let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let all = SetAttr {
        mode: Some(8),
        uid: Some(9),
        gid: Some(10),
        size: Some(1),
        accessed: Some(SetTime::At(at(-2, 5))),
        modified: Some(SetTime::At(at(3, 999_999_999))),
        changed: Some(at(4, 7)),
        kill_privileges: Some(CALLER),
    };
    assert_eq!(changes(&sent, CALLER), all);
    sent.valid = set_attr::ATIME | set_attr::ATIME_NOW | set_attr::MTIME_NOW | set_attr::KILL_SUIDGID;
    assert_eq!(changes(&sent, CALLER), SetAttr { accessed: Some(SetTime::Now), ..SetAttr::default() });
}

#[test]
fn what_is_forgotten_is_named_one_by_one_or_together() {
    let named = |number, payload: &[u8]| {
        let bytes = request(number, &[], payload);
        let (header, _, payload) = split(&bytes).expect("a request");
        forgotten(&header, payload).collect::<Vec<_>>()
    };
    let count = wire::BatchForgetIn { _count: 2, _dummy: 0 };
    let each = [20, 30].map(|nodeid| wire::ForgetOne { nodeid, nlookup: 3 });
    let two = [count.as_bytes(), each.as_bytes()].concat();
    assert_eq!(named(opcode::FORGET, &[3, 0, 0, 0, 0, 0, 0, 0]), [(1, 3)]);
    assert_eq!(named(opcode::FORGET, &[3]), []);
    assert_eq!(named(opcode::BATCH_FORGET, &two), [(20, 3), (30, 3)]);
    assert_eq!(named(opcode::BATCH_FORGET, &two[..two.len() - 1]), [(20, 3)]);
    assert_eq!(named(opcode::BATCH_FORGET, &[]), []);
    assert_eq!(named(opcode::INTERRUPT, &two), []);
}

/// Requests with bytes changed, cut and grown at random: parsing never panics.
#[test]
fn bytes_that_no_kernel_sends_do_no_harm() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let mut understood = 0;
    let requests: Vec<Vec<u8>> = table()
        .into_iter()
        .map(|(number, argument, payload, _)| request(number, &argument, payload))
        .collect();
    for turn in 0..200_000 {
        let mut bytes = requests[turn % requests.len()].clone();
        for _ in 0..random() % 4 {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        if random() % 4 == 0 {
            bytes.resize(random() % (2 * bytes.len()), random() as u8);
        }
        understood += usize::from(matches!(parse(&bytes), Some(Ok(_))));
    }
    assert!(understood > 20_000, "{understood}: hardly anything is near a request");
}
