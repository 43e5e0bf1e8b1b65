use crate::sparse::SparseBytes;

/// The content of a file in memory. Offsets and lengths are whole sectors. Bytes past `len` are
/// always zero.
#[derive(Clone, Default)]
pub(crate) struct FileImage {
    pub(crate) bytes: SparseBytes,
    pub(crate) len: u64,
}

impl FileImage {
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        self.bytes.write(offset, data);
        self.len = self.len.max(offset + data.len() as u64);
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.bytes.zero(len, self.len - len);
        }
        self.len = len;
    }
}
