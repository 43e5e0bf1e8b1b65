//! Rules that mutation tests break, to verify that each broken rule is caught: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// A flush syncs the device.
    FlushSyncs = "flush-syncs",
    /// Recovery stops at the first batch that is missing.
    StopAtGap = "stop-at-gap",
    /// A batch of which a part is missing is void.
    AllParts = "all-parts",
    /// So is one whose payload does not match, unless it was flushed.
    ReplayVerifies = "replay-verifies",
    /// Recovery rewrites and syncs the replayed records that may never have been synced, even if earlier syncs
    /// succeeded.
    ResyncDone = "resync-done",
    /// A record of an older epoch is void.
    EpochCounts = "epoch-counts",
    /// Damage below the last flush mark is distinguished from a torn log tail.
    MarksCount = "marks-count",
    /// A trim is part of its batch's record.
    TrimsLogged = "trims-logged",
    /// A chunk is verified before any byte of it is returned.
    ReadVerifies = "read-verifies",
    /// A chunk that is kept in memory counts only in the version that the map names.
    CachedByBatch = "cached-by-batch",
    /// The memory of a read in place that failed is cleared.
    FailedReadCleared = "failed-read-cleared",
    /// A segment that a reader is in is not reused.
    PinsCount = "pins-count",
    /// Nor is one whose records may be replayed.
    ReuseCovered = "reuse-covered",
    /// Nor is one whose extents a power cut could bring back: what overwrote and what moved them is durable.
    DeathDurable = "death-durable",
    /// Nor is one whose retained summary is not durable.
    SummariesRetained = "summaries-retained",
    /// A segment of the map is not reused while the durable root refers to it.
    MapReuseWaits = "map-reuse-waits",
    /// A leaf of the map is verified when it is read.
    LeavesVerified = "leaves-verified",
    /// Of leaves of the map for the same sectors, salvage believes the one that was written last.
    LaterLeafCounts = "later-leaf-counts",
    /// A relocation applies only to bytes that the batch it names wrote.
    BirthCounts = "birth-counts",
    /// A relocation that is missing below the last mark is damage.
    MoveMarksCount = "move-marks-count",
    /// A summary is verified before anything in it is used.
    SummaryVerified = "summary-verified",
    /// A summary that an earlier life of its segment has left does not apply to this one.
    SummaryOfThisLife = "summary-of-this-life",
    /// A part of a piece is filled before it counts as filled.
    FilledThenCounted = "filled-then-counted",
    /// The segments that a store grows by are wiped.
    GrowthWipes = "growth-wipes",
    /// So is the copy of the superblock at the old end.
    OldEndWiped = "old-end-wiped",
    /// Data of an encrypted store is encrypted.
    DataEncrypted = "data-encrypted",
    /// Keys are durable in one place before they change in the others.
    KeysInTurn = "keys-in-turn",
    /// Opening restores collection's segments.
    OpeningRestores = "opening-restores",
    /// The marks in replayed records count.
    RecordsRaiseDurable = "records-raise-durable",
    /// So do those that each of several readers finds.
    ReadersRaiseDurable = "readers-raise-durable",
    /// A checkpoint is due after so many bytes of log, however much space is free.
    LogMakesCheckpoint = "log-makes-checkpoint",
    /// Of two victims the older one is worth more.
    AgeCounts = "age-counts",
    /// Batches of different lifetimes have append points of their own.
    LifetimesGroup = "lifetimes-group",
    /// A writer collects, or waits for collection, while segments are short.
    WritersPay = "writers-pay",
    /// A batch waits for a segment of its class rather than going to another one's.
    ClassesWait = "classes-wait",
    /// A batch that makes the checkpoints' part grow leaves collection's part free (reserve invariant 2).
    GrowthLeavesCollection = "growth-leaves-collection",
    /// When unflushed changes are why segments are short, a flush is planned.
    FlushPlanned = "flush-planned",
    /// Who was woken to lead a flush, and has to go to the other queue, wakes the next (flush invariant 3).
    WakeUpsPassedOn = "wake-ups-passed-on",
    /// What goes to the log device is written back from the cache.
    LogWrittenBack = "log-written-back",
    /// A fence waits for that.
    LogFenced = "log-fenced",
    /// The mark on the log device moves past frames before a segment is reused that they name.
    LogMarkDurable = "log-mark-durable",
    /// The newest header is durable before the other one is written over (ring invariant 4).
    LogHeaderRenewed = "log-header-renewed",
    /// An opening is on the log device before the superblock names its epoch (ring invariant 5).
    LogOpeningAnnounced = "log-opening-announced",
    /// Frames of an older epoch are void.
    LogEpochCounts = "log-epoch-counts",
    /// What the log device says was acknowledged must be there.
    LogAcknowledgedCounts = "log-acknowledged-counts",
    /// A flush settles if bytes were dropped from the list of those to be logged.
    LogListDropped = "log-list-dropped",
    /// No death is noted of a segment of which a flush beside may log a part.
    ListedNotDead = "listed-not-dead",
    /// Of what a batch changes twice nothing is encoded.
    EncodedOnce = "encoded-once",
    /// The superblock says that there may be encoded chunks before there is one.
    EncodingsNamed = "encodings-named",
    /// All payload of an encoded chunk counts until nothing of it is mapped.
    EncodedCounted = "encoded-counted",
    /// A write that failed stops the store.
    FailedWritesStop = "failed-writes-stop",
    /// A panic in the middle of a change stops the store.
    PanicsStop = "panics-stop",
}
