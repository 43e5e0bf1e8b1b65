//! Encoded chunks, decoded.

use crate::{
    Lba, SECTOR,
    encoding::{Undecodable, decode},
    format::Extent,
    media::cipher::Cipher,
};

/// The chunk that was decoded last: its parts are read one after the other.
#[derive(Default)]
pub(super) struct Decoded {
    /// Where the chunk begins, and all of it. Its place alone does not name it: in a forged map, chunks of several
    /// lengths lie there.
    of: Option<(u64, Extent)>,
    payload: Vec<u8>,
    data: Vec<u8>,
}

impl Decoded {
    /// The data of `extent`, at `lba`, which is a part of an encoded chunk; its payload was verified.
    pub(super) fn part(
        &mut self,
        (lba, extent): &(Lba, Extent),
        payload: &[u8],
        cipher: &Cipher,
    ) -> Result<&[u8], Undecodable> {
        let whole = extent.whole_encoded(lba.0);
        if self.of != Some(whole) {
            self.of = None;
            self.payload.clear();
            self.payload.extend_from_slice(payload);
            cipher.decrypt(Lba(whole.0), &mut self.payload);
            self.data.resize(usize::from(extent.chunk_sectors) * SECTOR, 0);
            decode(extent.encoding, &self.payload, &mut self.data)?;
            self.of = Some(whole);
        }
        Ok(&self.data[usize::from(extent.skip) * SECTOR..][..extent.bytes()])
    }
}

#[cfg(test)]
mod tests {
    use lacuna_codec::{Algorithm, Codec};

    use super::*;
    use crate::{
        Encoded, Seq,
        addr::{PhysAddr, SegNo},
    };

    /// The part behind the shorter one was sliced out of the shorter one's data.
    #[test]
    fn chunks_of_several_lengths_in_one_place_are_decoded_each() {
        let data = [7; 8 * SECTOR];
        let encoded = Encoded::new(Lba(0), &data[..], Codec::fast(Algorithm::Lz4));
        let payload = encoded.chunks().next().and_then(|(.., encoded)| encoded).expect("it shrinks").payload;
        let short = Extent {
            phys: PhysAddr { segment: SegNo(1), grain: 100 },
            stored: payload.len() as u16,
            crc: 1,
            birth: Seq(1),
            sectors: 8,
            skip: 0,
            encoding: Algorithm::Lz4,
            chunk_sectors: 8,
        };
        let long = Extent { skip: 8, chunk_sectors: 16, ..short };
        let mut decoded = Decoded::default();
        let mut part =
            |lba, extent| decoded.part(&(Lba(lba), extent), payload, &Cipher::None).map(<[u8]>::to_vec);
        assert_eq!(part(0, short), Ok(data.to_vec()));
        assert!(matches!(part(32 + 8, long), Err(Undecodable::Flaw(_))));
        assert_eq!(part(0, Extent { sectors: 2, ..short }), Ok(data[..2 * SECTOR].to_vec()));
    }
}
