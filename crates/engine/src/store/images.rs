//! The images of a table's pages on the device.

use std::collections::BTreeMap;

use lacuna_device::AlignedBuf;
use lacuna_page::{Algorithm, Decoder, Error as PageError, image_form, is_encrypted};

use super::Store;
use crate::{
    alloc::Allocator,
    page::node,
    space::{Space, corrupt},
    types::{Error, PageNo, Result},
};

/// Bytes of a file that are read at a time; holes cost nothing.
const STRETCH_BYTES: usize = 1 << 20;

/// The images of a table's pages, as their headers say ([`Store::images`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableImages {
    /// Pages by the algorithm of their images. Of a compressed table those under [`Algorithm::None`] are the ones
    /// that did not shrink, or have not been written since the table was altered.
    pub pages: BTreeMap<Algorithm, u64>,
    /// Pages whose images are encrypted.
    pub encrypted: u64,
    /// Bytes of all these images, before they are rounded to sectors or holes.
    pub image_bytes: u64,
    /// Pages that were not written yet since they were made, and free ones: holes in the file.
    pub unwritten: u64,
}

impl Store {
    /// Reads the images of the table's pages on the device; changes that are still in memory do not count. Takes about
    /// as long as reading the whole table. Row-compressed tables have blocks instead of images, none of which is
    /// counted.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::Corrupt`] for a page that begins with no image.
    pub fn images(&self, name: &str) -> Result<TableImages> {
        let engine = self.engine()?;
        let table = self.table(name)?.ok_or_else(|| Error::NoSuchTable { name: name.into() })?;
        // Like a transaction, so that the table is not dropped meanwhile.
        let space = table.pin_newest()?;
        let mut found = TableImages::default();
        if space.blocks().is_some() {
            return Ok(found);
        }
        let pages = Allocator::latch(engine.pager(), &space)?.used();
        let mut buffer = AlignedBuf::zeroed(STRETCH_BYTES);
        let step = (STRETCH_BYTES / space.page_bytes()) as u64;
        for first in (0..pages).step_by(step as usize) {
            let bytes = step.min(pages - first) as usize * space.page_bytes();
            space.file().read_at(space.offset(PageNo(first)), &mut buffer[..bytes])?;
            for (page, image) in (first..).zip(buffer[..bytes].chunks_exact(space.page_bytes())) {
                match image_form(image) {
                    Ok((algorithm, image_bytes)) => {
                        *found.pages.entry(algorithm).or_default() += 1;
                        found.encrypted += u64::from(is_encrypted(image));
                        found.image_bytes += image_bytes as u64;
                    }
                    Err(PageError::Blank) => found.unwritten += 1,
                    Err(e) => return Err(corrupt(&space, PageNo(page), e.to_string())),
                }
            }
        }
        Ok(found)
    }
}

/// Verifies, without a key, that all images in the file of a table are whole and lie in their places.
pub(super) fn verify(space: &Space) -> Result<()> {
    let mut image = AlignedBuf::zeroed(space.page_bytes());
    let mut decoder = Decoder::unpacking(node::unpack);
    let mut page = vec![0; space.page_bytes()];
    let pages = space.file().len()? / space.page_bytes() as u64;
    for number in 0..pages {
        space.file().read_at(space.offset(PageNo(number)), &mut image)?;
        match decoder.decode(&image, (space.id().0, number), &mut page) {
            Ok(_) | Err(PageError::Blank | PageError::Encrypted | PageError::NotBuiltIn(_)) => {}
            Err(e) => return Err(corrupt(space, PageNo(number), e.to_string())),
        }
    }
    Ok(())
}
