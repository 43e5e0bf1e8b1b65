//! Images of devices without their runs of zeros, small enough to be kept beside the tests that read them.
//!
//! An image is, for each run of other bytes, how many zeros are left out before it and how many bytes follow (u32 each,
//! little-endian), then those bytes.

use std::sync::Arc;

use lacuna_device::{AlignedBuf, BlockDevice, MemDevice, SECTOR};

/// Zeros that are left out, at least: fewer are cheaper than another run.
const GAP: usize = 16;

/// The image of a device.
///
/// # Panics
/// When the device cannot be read.
pub fn pack_image(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = AlignedBuf::zeroed(device.geometry().capacity_bytes as usize);
    device.read_at(0, &mut bytes).expect("a device that can be read");
    let (mut packed, mut end) = (Vec::new(), 0);
    while let Some(zeros) = bytes[end..].iter().position(|byte| *byte != 0) {
        let start = end + zeros;
        let gap = bytes[start..].windows(GAP).position(|bytes| bytes == [0; GAP]);
        let len = gap.unwrap_or(bytes.len() - start);
        packed.extend_from_slice(&(zeros as u32).to_le_bytes());
        packed.extend_from_slice(&(len as u32).to_le_bytes());
        packed.extend_from_slice(&bytes[start..start + len]);
        end = start + len;
    }
    packed
}

/// A device in memory with the content of an image.
///
/// # Panics
/// When the bytes are no image of a device of that size.
pub fn unpack_image(packed: &[u8], capacity_bytes: u64) -> Arc<dyn BlockDevice> {
    let mut bytes = AlignedBuf::zeroed(capacity_bytes as usize);
    let (mut rest, mut at) = (packed, 0);
    let number = |rest: &mut &[u8]| {
        let (number, behind) = rest.split_first_chunk().expect("a whole image");
        *rest = behind;
        u32::from_le_bytes(*number) as usize
    };
    while !rest.is_empty() {
        at += number(&mut rest);
        let len = number(&mut rest);
        bytes[at..at + len].copy_from_slice(rest.split_off(..len).expect("a whole image"));
        at += len;
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(capacity_bytes));
    for (start, part) in (0..).step_by(SECTOR).zip(bytes.chunks_exact(SECTOR)) {
        if part.iter().any(|byte| *byte != 0) {
            let mut sector = AlignedBuf::zeroed(SECTOR);
            sector.copy_from_slice(part);
            device.write_at(start, &sector).expect("memory");
        }
    }
    device
}
