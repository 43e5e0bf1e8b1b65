//! For fuzz/: bytes as they are, and with valid checksums. Promises nothing.

use zerocopy::FromBytes;

use super::format::{TraceEntryRaw, TraceFrameRaw, TraceHeaderRaw};

/// A header, a frame and its entries.
pub fn trace(bytes: &[u8]) {
    let Ok((header, rest)) = TraceHeaderRaw::read_from_prefix(bytes) else { return };
    let _ = header.verify();
    let _ = header.sealed().verify();
    let Ok((frame, rest)) = TraceFrameRaw::read_from_prefix(rest) else { return };
    let _ = frame.entries();
    let entries: Vec<_> = rest
        .chunks_exact(size_of::<TraceEntryRaw>())
        .map(|bytes| TraceEntryRaw::read_from_bytes(bytes).expect("chunk of that size"))
        .collect();
    let _ = frame.verify(0, 0, &entries);
    for op in entries.iter().filter_map(|entry| entry.verify().ok()) {
        let again: Vec<_> = TraceEntryRaw::of(op).map(|entry| entry.verify()).collect();
        assert_eq!(again, [Ok(op)], "an entry comes back as it was");
    }
}
