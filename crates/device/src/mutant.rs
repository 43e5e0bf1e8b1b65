//! Rules that mutation tests break, to verify that each broken rule is caught: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// A sync of a file or device makes its data durable.
    FilesSynced = "files-synced",
    /// An atomic write asks the system for one.
    AtomicAsked = "atomic-asked",
    /// A name that was made, changed or removed is durable when the call returns.
    NamesSynced = "names-synced",
    /// So is the length of a store file.
    LengthsSynced = "lengths-synced",
    /// A file of a directory whose last handle was closed is synced with the others (dir invariant 1).
    ClosedFilesKept = "closed-files-kept",
}
