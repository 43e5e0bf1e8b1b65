//! A leaf of the map's tree: some dozens of extents in as few bytes as their values need.
//!
//! Each field of a row is a column with a base, at most the least value in the leaf, and a width of
//! 0 to 8 bytes for what a value has beyond its base. Extents of one size share a width of 0 for
//! their shape, neighbours in the space need two bytes for their start, and so on. The starts lie
//! together in front, because a search touches nothing else:
//!
//! ```text
//! start start start ... | birth segment grain shape crc | birth segment ... | 8 bytes, so that
//!                                                                            any load is 8 wide
//! ```
//!
//! A row that does not fit the columns makes the whole leaf be encoded anew.

use std::ops::Range;

use crate::{
    Seq,
    addr::{CHUNK_SECTORS, GRAIN, PhysAddr, SegNo},
    format::Extent,
    map::Live,
};

/// An extent and its first sector.
pub(super) type Row = (u64, Extent);

/// A leaf with more rows is split.
pub(super) const ROWS_MAX: usize = 128;
/// A leaf with fewer rows is merged, if a neighbour has the room.
pub(super) const ROWS_MIN: usize = ROWS_MAX / 3;

const COLUMNS: usize = 6;
const START: usize = 0;
const PADDING: usize = 8;

/// The values of a row, one for each column.
fn values((start, extent): &Row) -> [u64; COLUMNS] {
    let Extent { phys, stored, crc, birth, sectors, skip } = *extent;
    assert!((1..=CHUNK_SECTORS as u8).contains(&sectors) && u64::from(skip) < CHUNK_SECTORS, "{extent:?}");
    assert!(usize::from(stored).is_multiple_of(GRAIN), "chunk of {stored} bytes");
    // Lowest what differs most, highest what is mostly 0: whole chunks need no byte for `skip`.
    let grains = u64::from(stored) / GRAIN as u64;
    let shape = grains | u64::from(sectors - 1) << 12 | u64::from(skip) << 17;
    [*start, birth.0, phys.segment.0.into(), phys.grain.into(), shape, crc.into()]
}

fn row(values: [u64; COLUMNS]) -> Row {
    let [start, birth, segment, grain, shape, crc] = values;
    let extent = Extent {
        phys: PhysAddr { segment: SegNo(segment as u32), grain: grain as u32 },
        stored: ((shape & 0xfff) * GRAIN as u64) as u16,
        crc: crc as u32,
        birth: Seq(birth),
        sectors: (shape >> 12 & 31) as u8 + 1,
        skip: (shape >> 17) as u8,
    };
    (start, extent)
}

/// Largest value of `width` bytes.
fn largest(width: u8) -> u64 {
    const LARGEST: [u64; 9] =
        [0, 0xff, 0xffff, 0xff_ffff, u32::MAX as u64, (1 << 40) - 1, (1 << 48) - 1, (1 << 56) - 1, u64::MAX];
    LARGEST[usize::from(width)]
}

/// Bytes that `value` needs.
fn width(value: u64) -> u8 {
    (8 - value.leading_zeros() / 8) as u8
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Leaf {
    base: [u64; COLUMNS],
    width: [u8; COLUMNS],
    /// Widths of all columns but the first.
    row_bytes: u8,
    len: u16,
    /// What the last start has beyond the base.
    span: u64,
    data: Box<[u8]>,
}

impl Leaf {
    pub(super) fn new(rows: &[Row]) -> Leaf {
        let (mut least, mut most) = ([u64::MAX; COLUMNS], [0; COLUMNS]);
        for values in rows.iter().map(values) {
            for column in 0..COLUMNS {
                least[column] = least[column].min(values[column]);
                most[column] = most[column].max(values[column]);
            }
        }
        let mut leaf = Leaf::default();
        for column in 0..COLUMNS {
            leaf.base[column] = least[column].min(most[column]);
            leaf.width[column] = width(most[column] - leaf.base[column]);
        }
        leaf.row_bytes = leaf.width[START + 1..].iter().sum();
        leaf.put_data(0..0, rows);
        leaf
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Memory outside of the struct in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    fn load(&self, at: usize, width: u8) -> u64 {
        let word = self.data[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(word) & largest(width)
    }

    /// Start of the row.
    pub(super) fn start(&self, index: usize) -> u64 {
        let width = self.width[START];
        self.base[START] + self.load(index * usize::from(width), width)
    }

    pub(super) fn get(&self, index: usize) -> Row {
        assert!(index < self.len(), "row {index} of {}", self.len());
        let mut values = self.base;
        values[START] = self.start(index);
        let mut at = self.len() * usize::from(self.width[START]) + index * usize::from(self.row_bytes);
        for (value, width) in values.iter_mut().zip(self.width).skip(START + 1) {
            *value += self.load(at, width);
            at += usize::from(width);
        }
        row(values)
    }

    pub(super) fn rows(&self) -> impl DoubleEndedIterator<Item = Row> + ExactSizeIterator + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    fn note_span(&mut self) {
        self.span = self.len().checked_sub(1).map_or(0, |last| self.start(last) - self.base[START]);
    }

    /// Index of the first row that starts at `lba` or later. Starts are spread evenly as a rule, so
    /// it looks first where the row would be then: what is not there is mostly in the same cache
    /// line, where halving would meet a new one with each step.
    pub(super) fn search(&self, lba: u64) -> usize {
        let Some(target) = lba.checked_sub(self.base[START]) else { return 0 };
        if target > self.span || self.len == 0 {
            return self.len();
        }
        let width = self.width[START];
        let is_below = |index: usize| self.load(index * usize::from(width), width) < target;
        let (mut low, mut high, mut step) = (0, self.len(), 4);
        let mut probe = (target as f64 / self.span.max(1) as f64 * (high - 1) as f64) as usize;
        while low < high {
            let is_low = is_below(probe);
            if is_low {
                low = probe + 1;
            } else {
                high = probe;
            }
            probe = match is_low {
                true if high == self.len() => (probe + step).min((low + high) / 2),
                false if low == 0 => probe.saturating_sub(step).max(high / 2),
                _ => (low + high) / 2,
            };
            step *= 4;
        }
        low
    }

    /// Index of the first row that ends after `lba`.
    pub(super) fn reach(&self, lba: u64) -> usize {
        let index = self.search(lba);
        // No extent crosses a chunk: mostly the start tells that the row before does not reach.
        if index == 0 || self.start(index - 1) / CHUNK_SECTORS != lba / CHUNK_SECTORS {
            return index;
        }
        let (start, extent) = self.get(index - 1);
        index - usize::from(start + u64::from(extent.sectors) > lba)
    }

    fn fits(&self, row: &Row) -> bool {
        let values = values(row);
        (0..COLUMNS).all(|column| {
            values[column]
                .checked_sub(self.base[column])
                .is_some_and(|rest| rest <= largest(self.width[column]))
        })
    }

    /// Puts `rows` in the place of those in `range`.
    pub(super) fn splice(&mut self, range: Range<usize>, rows: &[Row]) {
        if !rows.iter().all(|row| self.fits(row)) {
            let mut all: Vec<Row> = self.rows().collect();
            all.splice(range, rows.iter().copied());
            *self = Leaf::new(&all);
        } else if rows.len() == range.len() {
            for (index, row) in range.zip(rows) {
                self.overwrite(index, row);
            }
        } else {
            self.put_data(range, rows);
        }
    }

    /// What a row, which fits, has beyond the bases, by column.
    fn rests(&self, row: &Row) -> [[u8; 8]; COLUMNS] {
        let values = values(row);
        std::array::from_fn(|column| (values[column] - self.base[column]).to_le_bytes())
    }

    fn overwrite(&mut self, index: usize, row: &Row) {
        let rests = self.rests(row);
        let mut at = index * usize::from(self.width[START]);
        for (column, rest) in rests.iter().enumerate() {
            let width = usize::from(self.width[column]);
            self.data[at..at + width].copy_from_slice(&rest[..width]);
            at += width;
            if column == START {
                at = self.len() * width + index * usize::from(self.row_bytes);
            }
        }
        self.note_span();
    }

    /// Makes the data anew, with `rows`, which fit, in the place of those in `range`.
    fn put_data(&mut self, range: Range<usize>, rows: &[Row]) {
        let len = self.len() - range.len() + rows.len();
        let start_bytes = usize::from(self.width[START]);
        let row_bytes = usize::from(self.row_bytes);
        let (starts, rest) = self.data.split_at(self.len() * start_bytes);
        let rests: Vec<_> = rows.iter().map(|row| self.rests(row)).collect();

        let mut data = Vec::with_capacity(len * (start_bytes + row_bytes) + PADDING);
        data.extend_from_slice(&starts[..range.start * start_bytes]);
        for rests in &rests {
            data.extend_from_slice(&rests[START][..start_bytes]);
        }
        data.extend_from_slice(&starts[range.end * start_bytes..]);
        data.extend_from_slice(&rest[..range.start * row_bytes]);
        for rests in &rests {
            for (rest, width) in rests.iter().zip(self.width).skip(START + 1) {
                data.extend_from_slice(&rest[..usize::from(width)]);
            }
        }
        data.extend_from_slice(&rest[range.end * row_bytes..self.len() * row_bytes]);
        data.resize(data.len() + PADDING, 0);
        self.data = data.into_boxed_slice();
        self.len = len as u16;
        self.note_span();
    }

    /// Splits the leaf between two chunks: in the middle, or before the last chunk if `at_end`, so
    /// that leaves filled in ascending order stay full. `self` keeps the lower rows.
    pub(super) fn split(&mut self, at_end: bool) -> Leaf {
        let rows: Vec<Row> = self.rows().collect();
        let chunk = |index: usize| rows[index].0 / CHUNK_SECTORS;
        let is_cut = |index: &usize| chunk(*index - 1) != chunk(*index);
        let middle = if at_end { rows.len() - 1 } else { rows.len() / 2 };
        let at = (1..=middle).rev().find(is_cut).or_else(|| (middle + 1..rows.len()).find(is_cut));
        let at = at.expect("a chunk has at most 32 extents, less than a leaf that is split");
        *self = Leaf::new(&rows[..at]);
        Leaf::new(&rows[at..])
    }

    /// Appends the rows of the leaf that follows.
    pub(super) fn append(&mut self, right: &Leaf) {
        let rows: Vec<Row> = self.rows().chain(right.rows()).collect();
        *self = Leaf::new(&rows);
    }

    /// Sums over all rows.
    pub(super) fn sum(&self) -> Live {
        let mut sum = Live::default();
        self.rows().for_each(|(_, extent)| sum.add(&extent));
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    prop_compose! {
        /// Values of any size, so that all widths occur.
        fn extents()(
            birth in 0..=64u32, segment in 0..=32u32, grain in 0..=24u32, bits in any::<u64>(),
            stored in 1..=1024u16, sectors in 1..=32u8, skip in 0..32u8, crc in any::<u32>(),
        ) -> Extent {
            let cut = |width: u32, of: u32| (bits.rotate_left(of) >> 1 >> (63 - width.min(63))) as u32;
            Extent {
                phys: PhysAddr { segment: SegNo(cut(segment, 7)), grain: cut(grain, 29) },
                stored: stored * GRAIN as u16,
                crc,
                birth: Seq(bits.checked_shr(birth).unwrap_or(0)),
                sectors,
                skip,
            }
        }
    }

    proptest! {
        #[test]
        fn splice_is_that_of_a_vector(
            steps in vec((any::<u64>(), 0..4usize, vec(extents(), 0..4)), 1..40),
            gap in 1..1_000_000u64,
        ) {
            let (mut leaf, mut model) = (Leaf::default(), Vec::<Row>::new());
            for (at, removed, extents) in steps {
                let at = at as usize % (model.len() + 1);
                let range = at..(at + removed).min(model.len());
                // Starts between those of the neighbours.
                let low = if at == 0 { gap } else { model[at - 1].0 + 1 };
                let high = model.get(range.end).map_or(u64::MAX, |row| row.0);
                let step = ((high - low) / 5).min(gap);
                let rows: Vec<Row> = extents.iter().zip(0..).filter(|_| step > 0)
                    .map(|(extent, index)| (low + index * step, *extent)).collect();
                leaf.splice(range.clone(), &rows);
                model.splice(range, rows);
                prop_assert_eq!(leaf.rows().collect::<Vec<_>>(), model.clone());
                for (index, (start, _)) in model.iter().enumerate() {
                    prop_assert_eq!(leaf.search(*start), index);
                    prop_assert_eq!(leaf.search(*start + 1), index + 1);
                }
            }
        }
    }

    #[test]
    fn chunks_of_one_size_take_sixteen_bytes() {
        let rows: Vec<Row> = (0..128u32)
            .map(|number| {
                let scattered = number.wrapping_mul(2_654_435_769);
                let extent = Extent {
                    phys: PhysAddr { segment: SegNo(scattered >> 20), grain: scattered >> 8 },
                    stored: 16384,
                    crc: scattered,
                    birth: Seq(u64::from(scattered >> 1)),
                    sectors: 32,
                    skip: 0,
                };
                (u64::from(number) * 32, extent)
            })
            .collect();
        assert_eq!(Leaf::new(&rows).bytes(), 128 * (2 + 4 + 2 + 3 + 4) + PADDING);
    }
}
