//! Rules that mutation tests break, to verify that each broken rule is caught: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// A write through `O_SYNC` or `O_DSYNC` is durable when it is answered.
    WritesSynced = "writes-synced",
    /// Through `O_SYNC`, so are the times of the file.
    SyncTimes = "sync-times",
    /// Where the mount has the option `sync`, every change is durable when it is answered.
    ChangesSynced = "changes-synced",
    /// A trim is inferred only in files for which the DirectFS ioctl was answered (service invariant 1).
    TrimsAskedFor = "trims-asked-for",
    /// And only where the kernel has no pages of the file (service invariant 1).
    TrimsDirect = "trims-direct",
    /// Only who may write a file asks for trims in it.
    WritersAsk = "writers-ask",
    /// An inode that the kernel knows stays (service invariant 2).
    LookUpsCount = "look-ups-count",
    /// Who finds no space waits for removed inodes that the kernel is about to forget (service invariant 3).
    ForgottenAwaited = "forgotten-awaited",
    /// A file that is open with `O_DIRECT` is cached for nobody who opens it later (open files invariant 1).
    DirectStaysDirect = "direct-stays-direct",
    /// A direct write has the kernel drop the pages that it wrote (open files invariant 2).
    DirectWriteDropsPages = "direct-write-drops-pages",
    /// Pages that may be older than their file are dropped by whoever opens it next (open files invariant 3).
    OldPagesDropped = "old-pages-dropped",
    /// A read that is going to move the time of access, as `relatime` says, is not left to the kernel's cache.
    AccessSeen = "access-seen",
    /// With `strictatime` nothing is cached.
    StrictIsDirect = "strict-is-direct",
    /// Where the kernel writes back, it sets the times of files (service invariant 4).
    KernelKeepsTimes = "kernel-keeps-times",
    /// And data that only it has is no hole (service invariant 4).
    UnwrittenIsNoHole = "unwritten-is-no-hole",
    /// What others may have mapped, and changed there, is no hole.
    MappedIsNoHole = "mapped-is-no-hole",
    /// And writes are called atomic only where a file is open directly (service invariant 4).
    AtomicIsDirect = "atomic-is-direct",
    /// And it asks again soon how much space a file takes.
    SpaceAskedAgain = "space-asked-again",
    /// A file is read and written past the kernel only while nobody else has it open (claims invariant 1).
    ClaimsAreSole = "claims-are-sole",
    /// Nor while it may be mapped (claims invariant 1).
    MappedIsNotClaimed = "mapped-is-not-claimed",
    /// Whoever opens it waits for what is under way past the kernel (claims invariant 1).
    ClaimsAreAwaited = "claims-are-awaited",
    /// What is written past the kernel leaves the file as long as it is (claims invariant 2).
    ClaimsKeepLength = "claims-keep-length",
    /// Where files may be claimed, the kernel asks for attributes each time (claims invariant 2).
    ClaimedAskedAgain = "claimed-asked-again",
    /// Direct writes to one file do not wait for each other.
    ParallelDirectWrites = "parallel-direct-writes",
    /// An access control list that is set by somebody outside of the group takes set-group-id away.
    ListsTakeSetGroupId = "lists-take-set-group-id",
    /// So do `fallocate` and copies by anybody but root, with set-user-id.
    ChangesTakePrivileges = "changes-take-privileges",
    /// The kernel does not cache a mode that a write may change without its knowledge.
    SetIdsUncached = "set-ids-uncached",
    /// Only root sees that there are attributes of root's.
    TrustedHidden = "trusted-hidden",
    /// Only the owner of a file, or root, changes its compression.
    OwnersCompress = "owners-compress",
    /// A request in a ring's payload is answered in a buffer beside it, which is copied there afterwards.
    RingCopiesPayload = "ring-copies-payload",
}
