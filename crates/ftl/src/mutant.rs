//! Rules that tests may break, to see that it would be noticed: tests/mutants.rs.

lacuna_device::breakable_rules! {
    /// A flush syncs the device.
    FlushSyncs = "flush-syncs",
    /// Recovery stops at the first batch that is missing.
    StopAtGap = "stop-at-gap",
    /// A batch of which a part is missing is void.
    AllParts = "all-parts",
    /// So is one whose payload does not match, unless it was flushed.
    ReplayVerifies = "replay-verifies",
    /// A record of an older epoch is void.
    EpochCounts = "epoch-counts",
    /// Damage below the last flush mark is not taken for a cut.
    MarksCount = "marks-count",
    /// A trim is part of its batch's record.
    TrimsLogged = "trims-logged",
    /// A chunk is verified before any byte of it is returned.
    ReadVerifies = "read-verifies",
    /// A segment that a reader is in is not reused.
    PinsCount = "pins-count",
    /// A segment that the durable root may lead into is not reused.
    ReuseWaits = "reuse-waits",
}
