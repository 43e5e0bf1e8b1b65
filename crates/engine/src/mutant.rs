//! Rules that tests may break, to see that it would be noticed: tests/mutants.rs.

lacuna_device::breakable_rules! {
    /// A page is written only when the log up to its LSN is (flush invariant 1).
    LogBeforePages = "log-before-pages",
    /// A page leaves the list of dirty ones only when its image is synced (flush invariant 2).
    PagesSynced = "pages-synced",
    /// A commit returns when it is durable.
    CommitSyncs = "commit-syncs",
}
