//! Access control lists, modes and attributes of one inode from several threads: none of them takes back what another
//! has done.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use crate::stores::{assert_clean, formatted};
use crate::world::acl::{ACL, Acl};
use lacuna_device::{BlockDevice, MemDevice};
use lacuna_nvmfs::{
    FormatOptions, Ino, Nvmfs, Options, Refusal,
    posix::{Caller, Posix, SetAttr, WriteOptions, XattrMode},
};
use lacuna_sim::{BeforeReads, SeededRng, for_each_seed};
use parking_lot::{Condvar, Mutex};

const THREADS: usize = 3;
const ROUNDS: u64 = 2000;
/// For what must happen, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Another attribute, in the same list of attributes.
const OTHER: &[u8] = b"user.other";

/// What the threads change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    perm: u32,
    list: Option<Vec<u8>>,
    other: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Change {
    Chmod(u32),
    SetList(Vec<u8>),
    RemoveList,
    SetOther(Vec<u8>),
}

impl Change {
    fn random(rng: &mut SeededRng) -> Change {
        match rng.below(10) {
            0..=3 => Change::Chmod(rng.below(0o1000) as u32),
            4..=6 => Change::SetList(Acl::random(rng).value()),
            7 => Change::RemoveList,
            // Long ones do not fit into an inode.
            _ => Change::SetOther(vec![rng.below(256) as u8; [10, 10_000][rng.below(2) as usize]]),
        }
    }

    fn apply(&self, fs: &Posix, ino: Ino) {
        match self {
            Change::Chmod(mode) => {
                fs.setattr(ino, &SetAttr { mode: Some(*mode), ..SetAttr::default() }).expect("changes");
            }
            Change::SetList(value) => fs.setxattr(ino, ACL, value, XattrMode::Set).expect("sets"),
            Change::SetOther(value) => fs.setxattr(ino, OTHER, value, XattrMode::Set).expect("sets"),
            Change::RemoveList => match fs.removexattr(ino, ACL) {
                Err(lacuna_nvmfs::Error::Refused(Refusal::NoAttribute)) => {}
                removed => removed.expect("removes"),
            },
        }
    }

    /// By the rules of the model.
    fn model(&self, state: &mut State) {
        match self {
            Change::Chmod(mode) => {
                state.perm = *mode;
                if let Some(value) = &mut state.list {
                    let mut list = Acl::of(value);
                    list.chmod(*mode);
                    *value = list.value();
                }
            }
            Change::SetList(value) => {
                let list = Acl::of(value);
                state.perm = list.perm();
                state.list = list.has_names().then(|| value.clone());
            }
            Change::RemoveList => state.list = None,
            Change::SetOther(value) => state.other = Some(value.clone()),
        }
    }
}

/// Where threads wait for each other awake, so that they go on at the same moment.
#[derive(Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    /// Returns once all threads have come for the `time`-th time, counted from 1.
    fn wait(&self, time: usize) {
        self.0.fetch_add(1, SeqCst);
        while self.0.load(SeqCst) < time * THREADS {
            thread::yield_now();
        }
    }
}

fn state_of(fs: &Posix, ino: Ino) -> State {
    let perm = fs.getattr(ino).expect("is there").perm.into();
    State { perm, list: fs.getxattr(ino, ACL).ok(), other: fs.getxattr(ino, OTHER).ok() }
}

/// Whether `found` is what the changes make of `before` in some order.
fn has_an_order(before: &State, changes: &[Change], found: &State) -> bool {
    if changes.is_empty() {
        return before == found;
    }
    (0..changes.len()).any(|first| {
        let (mut state, mut rest) = (before.clone(), changes.to_vec());
        rest.remove(first).model(&mut state);
        has_an_order(&state, &rest, found)
    })
}

#[test]
fn changes_of_many_threads_have_an_order() {
    for_each_seed(4, |seed| {
        let vfs = Nvmfs::open(formatted(64 << 20), Options::default()).expect("opens");
        let fs = vfs.posix();
        let ino = fs.mknod(Ino::ROOT, b"file", 0o100_644, 0, Caller::default()).expect("makes").ino;
        let changes = |round: u64| {
            let mut rng = SeededRng::new(seed << 32 | round);
            std::array::from_fn::<_, THREADS, _>(|_| Change::random(&mut rng))
        };
        let meeting = Meeting::default();
        let failed = thread::scope(|scope| {
            for me in 1..THREADS {
                let (fs, meeting, changes) = (&fs, &meeting, &changes);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let change = &changes(round)[me];
                        meeting.wait(2 * round as usize + 1);
                        change.apply(fs, ino);
                        meeting.wait(2 * round as usize + 2);
                    }
                });
            }
            let mut failed = None;
            for round in 0..ROUNDS {
                let (before, all) = (state_of(&fs, ino), changes(round));
                meeting.wait(2 * round as usize + 1);
                all[0].apply(&fs, ino);
                meeting.wait(2 * round as usize + 2);
                let found = state_of(&fs, ino);
                if failed.is_none() && !has_an_order(&before, &all, &found) {
                    failed = Some((round, all));
                }
            }
            failed
        });
        assert!(failed.is_none(), "they have no order: {failed:.200?}");
        assert_clean(&vfs);
    });
}

/// Threads that set different things of one inode, without a pause: each finds what it set, since nobody else sets that.
#[test]
fn what_a_thread_sets_no_other_takes_back() {
    const TURNS: u64 = 10_000;
    let vfs = Nvmfs::open(formatted(256 << 20), Options::default()).expect("opens");
    let fs = vfs.posix();
    let ino = fs.mknod(Ino::ROOT, b"file", 0o100_644, 0, Caller::default()).expect("makes").ino;
    let own = |name: &'static [u8], bytes: usize| {
        move |fs: &Posix, turn: u64| {
            let value = turn.to_le_bytes().repeat(bytes / 8);
            fs.setxattr(ino, name, &value, XattrMode::Set).expect("sets");
            fs.getxattr(ino, name).expect("is there") == value
        }
    };
    // The mode changes permissions of the list, and not its names.
    let list = |fs: &Posix, turn: u64| {
        let named = Acl::with_user(turn as u32);
        fs.setxattr(ino, ACL, &named.value(), XattrMode::Set).expect("sets");
        Acl::of(&fs.getxattr(ino, ACL).expect("is there")).users() == named.users()
    };
    // The list changes permissions, and not the other bits.
    let mode = |fs: &Posix, turn: u64| {
        let special = (turn as u32 % 8) << 9;
        let set = SetAttr { mode: Some(special | 0o640), ..SetAttr::default() };
        fs.setattr(ino, &set).expect("changes");
        u32::from(fs.getattr(ino).expect("is there").perm) & 0o7000 == special
    };
    type Owner<'a> = &'a (dyn Fn(&Posix, u64) -> bool + Sync);
    let (short, long) = (own(b"user.short", 16), own(b"user.long", 4000));
    let owners: [(&str, Owner<'_>); 4] =
        [("short", &short), ("long", &long), ("list", &list), ("mode", &mode)];
    thread::scope(|scope| {
        for (what, set) in owners {
            let fs = &fs;
            scope.spawn(move || {
                for turn in 0..TURNS {
                    assert!(set(fs, turn), "{what}: turn {turn} was taken back");
                }
            });
        }
    });
    assert_clean(&vfs);
}

/// Holds the next read up, when it is told to.
#[derive(Default)]
struct Gate {
    state: Mutex<Hold>,
    changed: Condvar,
}

#[derive(Default, PartialEq, Eq)]
enum Hold {
    #[default]
    Open,
    HoldsNext,
    Holds,
}

impl Gate {
    fn set(&self, state: Hold) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    fn wait_until_it_holds(&self) {
        let mut state = self.state.lock();
        let waited = self.changed.wait_while_for(&mut state, |state| *state != Hold::Holds, PATIENCE);
        assert!(!waited.timed_out(), "nothing is read");
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        if *state == Hold::HoldsNext {
            *state = Hold::Holds;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| *state == Hold::Holds);
        }
    }
}

/// Holds a change of mode up after it has planned what becomes of the list, and lets another thread change attributes
/// `meanwhile`. Returns the list and the other attribute as they are then.
fn chmod_beside(old: &Acl, meanwhile: impl Fn(&Posix, Ino)) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let gate = Arc::new(Gate::default());
    let passed = Arc::clone(&gate);
    let device: Arc<dyn BlockDevice> = BeforeReads::new(Arc::new(MemDevice::new(64 << 20)), move |_| {
        passed.pass();
        Ok(())
    });
    Nvmfs::format(Arc::clone(&device), &FormatOptions::default()).expect("formats");
    let vfs = Nvmfs::open(device, Options::default()).expect("opens");
    let fs = vfs.posix();
    let ino = fs.mknod(Ino::ROOT, b"file", 0o100_644, 0, Caller::default()).expect("makes").ino;
    fs.write(ino, 0, &[1; 4096], WriteOptions::default()).expect("writes");
    fs.setxattr(ino, OTHER, b"old", XattrMode::Set).expect("sets");
    fs.setxattr(ino, ACL, &old.value(), XattrMode::Set).expect("sets");
    fs.sync().expect("syncs");
    gate.set(Hold::HoldsNext);
    thread::scope(|scope| {
        // To the middle of a sector, whose rest is kept: so it reads after it has planned the change of the list.
        let cut = SetAttr { mode: Some(0o751), size: Some(100), ..SetAttr::default() };
        let fs = &fs;
        let changer = scope.spawn(move || fs.setattr(ino, &cut).expect("changes"));
        gate.wait_until_it_holds();
        meanwhile(fs, ino);
        gate.set(Hold::Open);
        assert_eq!(changer.join().expect("ends").perm, 0o751);
    });
    assert_clean(&vfs);
    (fs.getxattr(ino, ACL).ok(), fs.getxattr(ino, OTHER).ok())
}

#[test]
fn a_change_of_mode_takes_back_no_change_of_attributes() {
    let (old, mut new) = (Acl::with_user(5), Acl::with_user(6));
    let set = |name: &'static [u8], value: Vec<u8>| {
        move |fs: &Posix, ino| fs.setxattr(ino, name, &value, XattrMode::Set).expect("sets")
    };
    let found = chmod_beside(&old, set(ACL, new.value()));
    new.chmod(0o751);
    assert_eq!(found, (Some(new.value()), Some(b"old".to_vec())), "a list that was set");
    let found = chmod_beside(&old, |fs, ino| fs.removexattr(ino, ACL).expect("removes"));
    assert_eq!(found, (None, Some(b"old".to_vec())), "a list that was removed");
    let found = chmod_beside(&old, |fs, ino| {
        fs.removexattr(ino, ACL).expect("removes");
        set(OTHER, b"new".to_vec())(fs, ino);
    });
    assert_eq!(found, (None, Some(b"new".to_vec())), "and another attribute");
}
