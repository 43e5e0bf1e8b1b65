//! Rules that mutation tests break, to verify that each broken rule is caught: tests/mutants.rs.

lacuna_mutants::breakable_rules! {
    /// An image is data only when its checksum agrees (invariant 3).
    ChecksumAgrees = "checksum-agrees",
    /// And when it says that it is the image of that page.
    AddressAgrees = "address-agrees",
    /// A compressed image saves at least a sector.
    ImagesSaveSectors = "images-save-sectors",
    /// A packed body is never taken for a plain one (invariant 5).
    PackedIsNotPlain = "packed-is-not-plain",
}
