//! Rules that tests may break, to see that it would be noticed: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// A flush syncs the device.
    FlushSyncs = "flush-syncs",
    /// Recovery stops at the first batch that is missing.
    StopAtGap = "stop-at-gap",
    /// A batch of which a part is missing is void.
    AllParts = "all-parts",
    /// So is one whose payload does not match, unless it was flushed.
    ReplayVerifies = "replay-verifies",
    /// What recovery leans on is made durable, whatever earlier syncs have said.
    DoubtSettled = "doubt-settled",
    /// A record of an older epoch is void.
    EpochCounts = "epoch-counts",
    /// Damage below the last flush mark is not taken for a cut.
    MarksCount = "marks-count",
    /// A trim is part of its batch's record.
    TrimsLogged = "trims-logged",
    /// A chunk is verified before any byte of it is returned.
    ReadVerifies = "read-verifies",
    /// The memory of a read in place that failed is cleared.
    FailedReadCleared = "failed-read-cleared",
    /// A segment that a reader is in is not reused.
    PinsCount = "pins-count",
    /// Nor is one whose records may be replayed.
    ReuseCovered = "reuse-covered",
    /// Nor is one whose extents a cut could bring back: what overwrote and what moved them is durable.
    DeathDurable = "death-durable",
    /// Nor is one on the word of an epitaph that is not durable.
    EpitaphsSynced = "epitaphs-synced",
    /// A segment of the map is not reused while the durable root refers to it.
    MapReuseWaits = "map-reuse-waits",
    /// A leaf of the map is verified when it is read.
    LeavesVerified = "leaves-verified",
    /// A relocation applies only to what the batch that it names wrote.
    BirthCounts = "birth-counts",
    /// A relocation that is missing below the last mark is damage.
    MoveMarksCount = "move-marks-count",
    /// A footer is verified before anything in it is believed.
    FooterVerified = "footer-verified",
    /// One that an earlier life of its segment has left says nothing of this one.
    FooterOfThisLife = "footer-of-this-life",
    /// A part of a piece is filled before it counts as filled.
    FilledThenCounted = "filled-then-counted",
    /// What lies in segments that a store grows by is wiped.
    GrowthWipes = "growth-wipes",
    /// Opening restores collection's segments.
    OpeningRegains = "opening-regains",
    /// A batch that makes the checkpoints' part grow leaves collection's (reserve invariant 2).
    GrowthLeavesCollection = "growth-leaves-collection",
    /// Whoever misses segments because of what is unflushed plans a flush.
    FlushPlanned = "flush-planned",
    /// Whoever panics in the middle of a change stops the store.
    PanicsStop = "panics-stop",
}
