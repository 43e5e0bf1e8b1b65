//! Rules that mutation tests break, to verify that each broken rule is caught: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// A sync of everything flushes the store.
    SyncFlushes = "sync-flushes",
    /// A sync of an inode flushes the store up to its last change.
    FsyncFlushes = "fsync-flushes",
    /// A sync of an inode that is not of its data alone stores its times.
    FsyncStoresTimes = "fsync-stores-times",
    /// Generations do not repeat after reopening, so that number and generation of an inode never name another one.
    GenerationsGoOn = "generations-go-on",
    /// What users add leaves root its reserve.
    ReserveIsRoots = "reserve-is-roots",
    /// An allocation of more than there is space for fails.
    AllocationAsks = "allocation-asks",
    /// The usage of a user goes down by what a freed inode took.
    FreedIsGivenBack = "freed-is-given-back",
    /// What an inode takes counts for its owner alone, also after `chown`.
    UsageMovesWithOwner = "usage-moves-with-owner",
    /// A change of mode changes the access control list.
    ListFollowsMode = "list-follows-mode",
    /// Setting the list changes the mode.
    ModeFollowsList = "mode-follows-list",
    /// A directory's default list becomes that of what is made in it.
    DefaultHandedDown = "default-handed-down",
    /// A change of mode that was planned with a list that another thread replaced meanwhile is planned again.
    ChmodPlannedAgain = "chmod-planned-again",
    /// So is a change of attributes.
    XattrsPlannedAgain = "xattrs-planned-again",
    /// Where the map of a file cannot be read, its name can be removed.
    RemovedPastDamage = "removed-past-damage",
    /// An inode without a name is in the region of orphans, so that the next open frees it.
    UnnamedIsOrphan = "unnamed-is-orphan",
    /// And no other is: one that gets its first name leaves the region in the same batch.
    NamedIsNoOrphan = "named-is-no-orphan",
    /// A whiteout is made by the batch that moves the name away.
    WhiteoutInBatch = "whiteout-in-batch",
    /// What is known of a directory's entries follows their changes.
    KnownEntriesNoted = "known-entries-noted",
    /// A new file or directory has the compression of its directory.
    CompressionInherited = "compression-inherited",
    /// The superblock says that inodes may have a compression before one has.
    CompressionNamed = "compression-named",
    /// Of data that does not shrink few chunks are tried.
    IncompressibleSkipped = "incompressible-skipped",
    /// A rewrite holds the sectors from before it reads them until they are written.
    RewriteHolds = "rewrite-holds",
    /// What was compressed while it could be written is written only if it is as it was.
    ColdLookedAtAgain = "cold-looked-at-again",
    /// A chunk is compressed harder only if it then takes less.
    ColdTakesLess = "cold-takes-less",
    /// A rewrite leaves the times of the file as they are.
    RewriteKeepsTimes = "rewrite-keeps-times",
    /// A read moves the time of access as `relatime` says.
    AccessRelative = "access-relative",
}
