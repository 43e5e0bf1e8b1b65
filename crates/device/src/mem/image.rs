use super::SparseBytes;

/// The content of a file in memory. Offsets and lengths are whole sectors. Bytes past `len` are
/// always zero.
#[derive(Clone, Default)]
pub struct FileImage {
    /// The bytes.
    pub bytes: SparseBytes,
    /// Length of the file in bytes.
    pub len: u64,
}

impl FileImage {
    /// Stores `data` at `offset`, extending the file where needed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.bytes.write(offset, data);
        self.len = self.len.max(offset + data.len() as u64);
    }

    /// Cuts or extends the file.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.bytes.zero(len, self.len - len);
        }
        self.len = len;
    }
}
