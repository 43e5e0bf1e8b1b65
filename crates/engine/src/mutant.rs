//! Rules that tests may break, to verify that the break is caught: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// A page is written only when the log up to its LSN is (flush invariant 1).
    LogBeforePages = "log-before-pages",
    /// A page leaves the list of dirty ones only when its image is synced (flush invariant 2).
    PagesSynced = "pages-synced",
    /// Where single writes are atomic, a page is written by one (flush invariant 3).
    PagesWhole = "pages-whole",
    /// The end of an old image is punched only once the shorter new one is synced (flush invariant 3).
    OldEndsKept = "old-ends-kept",
    /// A page-write record is appended after its image, once that is as durable as it has to be (page_writes invariant
    /// 1).
    NotesFollowImages = "notes-follow-images",
    /// The log that recovery read, and wiped after its end, is synced before anything is built on it (wal invariant 3).
    SurveySynced = "survey-synced",
    /// A page without a checksum of all its bytes may be torn although it looks whole: a newer image takes its place
    /// (doublewrite invariant 3).
    UncheckedSuspected = "unchecked-suspected",
    /// What is encrypted is ciphertext.
    DataEncrypted = "data-encrypted",
    /// Images of encrypted tables and of undo are encrypted.
    PagesEncrypted = "pages-encrypted",
    /// No page is written whose table may lack its key (recovery).
    KeysKnown = "keys-known",
    /// What lies behind an encrypted image is not left there (flush::write).
    TailsCovered = "tails-covered",
    /// A key is durable before anything is encrypted with it (keys invariant 2), in one copy before the other is changed
    /// (keys invariant 1).
    KeysSynced = "keys-synced",
    /// A page of an adaptive table is encoded as one that rests only once it does.
    RestsWait = "rests-wait",
    /// One that is read often is not (space::rest).
    ReadsNoted = "reads-noted",
    /// But is once it no longer is (space::rest).
    ReadsAge = "reads-age",
    /// Pages in flight hold the checkpoint back (dirty list invariant 1).
    FlightsCount = "flights-count",
    /// The control file is on the medium before log is freed (flush invariant 4).
    CheckpointsSynced = "checkpoints-synced",
    /// What a log device gives back is zero before it is used again (ring invariant 1).
    FreedLogIsZero = "freed-log-is-zero",
    /// What is found on a log device is durable before anything is built on it (ring invariant 5).
    FoundLogSettled = "found-log-settled",
    /// What is written to a log device is written back (ring invariant 4).
    LogWrittenBack = "log-written-back",
    /// And waited for.
    LogFenced = "log-fenced",
    /// A commit returns when it is durable.
    CommitSyncs = "commit-syncs",
    /// With relaxed durability the log is synced once the interval has passed.
    RelaxedSyncs = "relaxed-syncs",
    /// And not before.
    RelaxedWaits = "relaxed-waits",
    /// The history that a view needs is kept (undo invariant 4).
    HistoryKept = "history-kept",
    /// While purge frees pages of an undo slot, no other thread does (slots invariant 3).
    OneGivesPagesBack = "one-gives-pages-back",
    /// A panic with a page latched stops the store (poison).
    PanicsStop = "panics-stop",
    /// Purge asks for the oldest view under the lock of what is kept, not before (undo::slots).
    HorizonUnderLock = "horizon-under-lock",
    /// A transaction that releases locks before its end wakes the waiters.
    ReleasesWake = "releases-wake",
    /// Of the logs in a slot only those that no view needs are purged, not those after them.
    LaterLogsKept = "later-logs-kept",
    /// A table's file is removed only once its row is gone, durably (store::tables invariant 2).
    RowBeforeFile = "row-before-file",
    /// A deleted record that a view needs is restored when a change of it is rolled back (txn invariant 5).
    DeletionsRestored = "deletions-restored",
    /// A snapshot fails once its history may be gone.
    SnapshotsFail = "snapshots-fail",
    /// History that takes too much costs the oldest snapshot (txn::history).
    HistoryBounded = "history-bounded",
    /// It takes no more than a share of the storage (flush::capacity).
    HistoryFits = "history-fits",
    /// Where no holes are made the undo file is cut before a record is refused (txn::history).
    UndoFileCut = "undo-file-cut",
    /// Recovery purges the logs kept in a slot before its last log.
    HistoryPurged = "history-purged",
    /// The undo record of an edit leads back to the value before it.
    EditsLeadBack = "edits-lead-back",
    /// A transaction is below the horizon only when its end is in the log (flush::horizon).
    EndsLogged = "ends-logged",
    /// Splits and merges are noted (btree::finger invariant 2).
    BoundsNoted = "bounds-noted",
    /// A new record is refused only after deleted records were purged (flush::capacity).
    RefusedAfterPurge = "refused-after-purge",
    /// While there is no space for all that is dirty, what there is space for is flushed (flush::capacity).
    PartsFlushed = "parts-flushed",
    /// Pages on their way take space that others then do not find (flush::checkpoint).
    FlightsTakeSpace = "flights-take-space",
    /// Space that rollbacks need again stays reserved (flush::owed).
    RollbacksHaveSpace = "rollbacks-have-space",
    /// And no longer than until the transaction's end (flush::owed invariant 3).
    DebtsSettled = "debts-settled",
    /// What only rollback and purge may take is left to them (flush::capacity).
    ReserveKept = "reserve-kept",
    /// Copies in the doublewrite file take no space that nobody counted (doublewrite invariant 5).
    CopiesHaveSpace = "copies-have-space",
    /// Images do not take another, longer form while space is short (flush::write).
    ImagesStayShort = "images-stay-short",
    /// A file is truncated only when the log of that is durable (alloc invariant 4).
    CutsFollowLog = "cuts-follow-log",
    /// Replay skips the changes of a page before it was made anew (replay invariant 5).
    HolesReplayed = "holes-replayed",
    /// A leaf that takes keys of another one has its separator before them (btree::merge).
    SeparatorsMove = "separators-move",
    /// An empty leaf is removed (btree::merge invariant 1).
    EmptyLeavesGo = "empty-leaves-go",
    /// A leaf that a split made for a record that is then refused is removed (btree::merge invariant 1).
    RefusedLeavesGo = "refused-leaves-go",
    /// A descent latches a child before it releases the parent (btree).
    DescentsCouple = "descents-couple",
    /// A file is truncated with its header latched, so that no page is allocated meanwhile (alloc invariant 4).
    CutsLatchHeader = "cuts-latch-header",
    /// A cursor reads again once its transaction has written.
    CursorsLookAgain = "cursors-look-again",
    /// A walk along leaves checks after each that its view is still valid: records may have been purged from the leaf.
    WalksAskTheView = "walks-ask-the-view",
    /// A load stops before keys that others have locked.
    LoadsAskForLocks = "loads-ask-for-locks",
    /// A load puts into a leaf only records that belong there.
    LoadsStayInLeaf = "loads-stay-in-leaf",
    /// A load that fails removes all its records.
    LoadsWhole = "loads-whole",
    /// The record is locked before it is compared.
    SwapsLock = "swaps-lock",
    /// A leaf that was latched before counts as the leaf of a key only if it has the key.
    LeafHasKey = "leaf-has-key",
    /// A snapshot reads by its view.
    ViewsHold = "views-hold",
    /// Each read at read committed sees all commits before it.
    ReadsFresh = "reads-fresh",
    /// A reader that does not see a record's writer goes on to the version before.
    VersionsFollowed = "versions-followed",
    /// A transaction sees its own changes.
    OwnChangesSeen = "own-changes-seen",
    /// Under a snapshot the first one to update a record wins.
    FirstUpdaterWins = "first-updater-wins",
    /// A record whose writer runs is changed by no other transaction (txn invariant 1).
    WritersLock = "writers-lock",
    /// A key that is locked by `get_for_update` is locked.
    LocksHold = "locks-hold",
    /// A rollback undoes all changes.
    RollbacksWhole = "rollbacks-whole",
    /// The undo of what was rolled back is freed, although a slot's history stays (undo invariant 6).
    UndoneUndoFreed = "undone-undo-freed",
    /// A table's file is replaced by its copy only while no transaction that has written it is unfinished (pins
    /// invariant 4).
    WritersDrain = "writers-drain",
    /// A snapshot that is older than a copy reads the file that this replaced (lineage invariant 2).
    OldViewsReadOldFile = "old-views-read-old-file",
    /// And does not write to the copy.
    OldViewsWriteNothing = "old-views-write-nothing",
    /// Changes of keys that were copied are repeated in the copy (rebuild invariant 1).
    ChangesRepeated = "changes-repeated",
    /// So are those that a rollback makes.
    RollbacksRepeated = "rollbacks-repeated",
    /// Changes of a leaf are repeated from before it is read on (rebuild invariant 2).
    FrontierFirst = "frontier-first",
    /// A long value is copied only if it is still that of its record (rebuild invariant 3).
    CopiesCurrent = "copies-current",
    /// The file that was replaced is kept for views that are older (rebuild invariant 5).
    OldFilesKept = "old-files-kept",
    /// It is removed only once the catalog names the copy, durably (rebuild invariant 4).
    OldFileLast = "old-file-last",
}
