//! How a page comes to its place whole, whatever a crash does meanwhile (flush invariant 3).

use lacuna_device::{AtomicWrites, FileProps};
use lacuna_page::PAGE_BYTES_MAX;

use crate::types::Doublewrite;

/// The means by which pages of a table are never torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// The VFS applies a batch whole, holes in it included.
    Batch,
    /// It applies single writes whole: each image is one.
    Single(AtomicWrites),
    /// An image is synced in the doublewrite file before its place is written.
    Twice,
    /// None: a crash may tear pages.
    Bare,
}

impl Protection {
    /// For pages that take `slot_bytes` in a file with these properties, by the setting in force for their table.
    pub(super) fn choose(props: FileProps, slot_bytes: usize, setting: Doublewrite) -> Protection {
        let is_batch_whole = props.atomic_bytes_max >= PAGE_BYTES_MAX as u64 && props.atomic_align <= 512;
        let single = props.atomic_writes.filter(|writes| writes.can_write(0, slot_bytes as u64));
        match (setting, single) {
            (Doublewrite::On, _) => Protection::Twice,
            _ if is_batch_whole => Protection::Batch,
            (_, Some(writes)) => Protection::Single(writes),
            (Doublewrite::Auto, None) => Protection::Twice,
            (Doublewrite::Off, None) => Protection::Bare,
        }
    }

    /// Bytes that are written for an image of `image_bytes` (whole sectors). A single atomic write has the length of a
    /// power of two; the rest of it, zeros, lies within the page's slot.
    pub(super) fn write_bytes(self, image_bytes: usize) -> usize {
        match self {
            Protection::Single(writes) => image_bytes.next_power_of_two().max(writes.bytes_min as usize),
            Protection::Batch | Protection::Twice | Protection::Bare => image_bytes,
        }
    }

    /// Whether no page is ever found torn. Where pages may be, their checksums are what finds them.
    pub(super) fn is_never_torn(self) -> bool {
        match self {
            Protection::Batch | Protection::Single(_) => true,
            Protection::Twice | Protection::Bare => false,
        }
    }

    /// Images of one write-out have the same protection; sorting by this brings them together.
    pub(super) fn rank(self) -> u8 {
        match self {
            Protection::Batch => 0,
            Protection::Single(_) => 1,
            Protection::Twice => 2,
            Protection::Bare => 3,
        }
    }
}

/// The properties of a file whose atomic writes are not to be used.
pub(super) fn without_atomic_writes(props: FileProps) -> FileProps {
    FileProps { atomic_bytes_max: 0, atomic_align: 0, atomic_writes: None, ..props }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: FileProps = FileProps {
        atomic_bytes_max: 0,
        atomic_align: 0,
        atomic_writes: None,
        hole_unit: 4096,
        io_align: 512,
        ordered: false,
    };

    #[test]
    fn the_least_that_keeps_pages_whole_is_chosen() {
        let writes = AtomicWrites { bytes_min: 4096, bytes_max: 32 << 10 };
        let single = FileProps { atomic_writes: Some(writes), ..PLAIN };
        let batch = FileProps { atomic_bytes_max: 1 << 20, atomic_align: 512, ..PLAIN };
        let small_batch = FileProps { atomic_bytes_max: 32 << 10, ..batch };
        let (auto, on, off) = (Doublewrite::Auto, Doublewrite::On, Doublewrite::Off);
        for (props, slot_bytes, setting, expected) in [
            (PLAIN, 16 << 10, auto, Protection::Twice),
            (PLAIN, 16 << 10, off, Protection::Bare),
            (batch, 64 << 10, auto, Protection::Batch),
            (batch, 64 << 10, on, Protection::Twice),
            (small_batch, 16 << 10, auto, Protection::Twice),
            (single, 16 << 10, auto, Protection::Single(writes)),
            (single, 16 << 10, off, Protection::Single(writes)),
            (single, 16 << 10, on, Protection::Twice),
            // Longer than it takes, and shorter.
            (single, 64 << 10, auto, Protection::Twice),
            (single, 64 << 10, off, Protection::Bare),
            (single, 2048, auto, Protection::Twice),
        ] {
            let chosen = Protection::choose(props, slot_bytes, setting);
            assert_eq!(chosen, expected, "{props:?}, {slot_bytes} bytes, {setting:?}");
        }
    }

    #[test]
    fn an_atomic_write_is_a_power_of_two() {
        let single = Protection::Single(AtomicWrites { bytes_min: 4096, bytes_max: 64 << 10 });
        for (image, written) in [(512, 4096), (4096, 4096), (4608, 8192), (12 << 10, 16 << 10)] {
            assert_eq!(single.write_bytes(image), written);
            assert_eq!(Protection::Twice.write_bytes(image), image);
        }
    }
}
