//! A leaf of the map's tree: some dozens of extents in as few bytes as their values need.
//!
//! Each field of a row is a column with a base, at most the least value in the leaf, and a width of
//! 0 to 8 bytes for what a value has beyond its base. Extents of one size share a width of 0 for
//! their shape, neighbours in the space need two bytes for their start, and so on. The starts lie
//! together in front, because a search touches nothing else:
//!
//! ```text
//! header | start start start ... | birth segment grain shape crc | birth segment ... | 8 bytes, so
//!                                                                   that any load is 8 wide
//! ```
//!
//! A row that does not fit the columns makes the whole leaf be encoded anew. The bytes are the same
//! in memory and on the device, and they are shared: a copy of a leaf is a reference to them, and a
//! change of a leaf that has copies goes into bytes of its own. Most of the map's memory is leaves, and
//! look-ups meet them at random, so they lie in huge pages ([`DenseBytes`]).

use std::{array, hint::select_unpredictable, ops::Range};

use lacuna_memory::{DenseBytes, prefetch};
use zerocopy::{FromBytes, IntoBytes};

use super::row::{Row, clip};
use crate::{
    Seq,
    addr::{CHUNK_SECTORS, PhysAddr, SegNo},
    format::{
        COLUMNS, Extent, Flaw, LEAF_BYTES_MAX, LEAF_HEADER_BYTES, LEAF_PADDING, LEAF_ROWS_MAX, Live,
        MapLeafRaw, ROW_BYTES_MAX,
    },
    mutant::{Rule, is_broken},
};

/// A leaf with more rows is split.
pub(super) const ROWS_MAX: usize = LEAF_ROWS_MAX;
/// An edit leaves that many, before the leaf is split.
const _: () =
    assert!(LEAF_HEADER_BYTES + (ROWS_MAX + 2) * ROW_BYTES_MAX + LEAF_PADDING <= DenseBytes::LEN_MAX);
/// A leaf with fewer rows is merged, if a neighbour has the space.
pub(super) const ROWS_MIN: usize = ROWS_MAX / 3;

/// Bytes that come into the processor's cache at once.
const LINE_BYTES: usize = 64;
/// Lines on which header and starts lie, if those have two bytes each.
const TOUCHED_LINES: usize = 6;
/// About the bytes that a row takes beside its start.
const ROW_BYTES: usize = 15;

/// Columns.
const START: usize = 0;
const SEGMENT: usize = 2;
const PLACE: usize = 3;
const SHAPE: usize = 4;

/// The values of a row, one for each column.
type Values = [u64; COLUMNS];

fn values((start, extent): &Row) -> Values {
    let Extent { phys, crc, birth, .. } = *extent;
    [*start, birth.0, phys.segment.0.into(), phys.grain.into(), extent.shape().into(), crc.into()]
}

fn try_row(values: Values) -> Option<Row> {
    let [start, birth, segment, grain, shape, crc] = values;
    let phys = PhysAddr { segment: SegNo(segment as u32), grain: grain as u32 };
    let extent = Extent { phys, crc: crc as u32, birth: Seq(birth), ..Extent::default() };
    Some((start, extent.with_shape(shape as u32)?))
}

fn row(values: Values) -> Row {
    try_row(values).expect("shapes are checked when a leaf is read")
}

/// An extent of this shape.
fn shaped(shape: u64) -> Extent {
    Extent::default().with_shape(shape as u32).expect("shapes are checked when a leaf is read")
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

/// Bases and widths of the columns.
#[derive(Clone, Copy)]
struct Columns {
    base: Values,
    width: [u8; COLUMNS],
}

impl Columns {
    /// The narrowest that fit `rows`.
    fn of(rows: &[Values]) -> Columns {
        let (mut least, mut most) = ([u64::MAX; COLUMNS], [0; COLUMNS]);
        for values in rows {
            for column in 0..COLUMNS {
                least[column] = least[column].min(values[column]);
                most[column] = most[column].max(values[column]);
            }
        }
        let base = std::array::from_fn(|column| least[column].min(most[column]));
        Columns { base, width: std::array::from_fn(|column| width(most[column] - base[column])) }
    }

    /// Widths of all columns but the starts'.
    fn row_bytes(&self) -> usize {
        self.width[START + 1..].iter().map(|width| usize::from(*width)).sum()
    }

    fn fits(&self, values: &Values) -> bool {
        (0..COLUMNS).all(|column| {
            values[column]
                .checked_sub(self.base[column])
                .is_some_and(|rest| rest <= largest(self.width[column]))
        })
    }

    /// What a row, which fits, has beyond the bases, by column.
    fn rests(&self, values: &Values) -> [[u8; 8]; COLUMNS] {
        array::from_fn(|column| (values[column] - self.base[column]).to_le_bytes())
    }
}

fn load(columns: &[u8], at: usize, width: u8) -> u64 {
    let word = columns[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(word) & largest(width)
}

/// The rows of a leaf, and where their values lie.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    raw: &'a MapLeafRaw,
    data: &'a [u8],
    /// Where the first row's value lies, by column.
    first: [usize; COLUMNS],
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    /// Of a leaf in `bytes`, of which its header at least is there.
    fn of(bytes: &'a [u8]) -> Rows<'a> {
        let (raw, data) = MapLeafRaw::ref_from_prefix(bytes).expect("a leaf starts with its header");
        let (starts_end, mut row_bytes) = (usize::from(raw.len.get()) * usize::from(raw.width[START]), 0);
        let mut first = [0; COLUMNS];
        for (first, width) in first.iter_mut().zip(raw.width).skip(START + 1) {
            *first = starts_end + row_bytes;
            row_bytes += usize::from(width);
        }
        Rows { raw, data, first, row_bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.raw.len.get().into()
    }

    fn columns(&self) -> Columns {
        Columns { base: array::from_fn(|column| self.base(column)), width: self.raw.width }
    }

    fn base(&self, column: usize) -> u64 {
        self.raw.base[column].get()
    }

    /// What a row has beyond the base in a column.
    fn rest(&self, column: usize, index: usize) -> u64 {
        let width = self.raw.width[column];
        let stride = if column == START { width.into() } else { self.row_bytes };
        load(self.data, self.first[column] + index * stride, width)
    }

    /// What a row has in a column.
    fn value(&self, column: usize, index: usize) -> u64 {
        self.base(column) + self.rest(column, index)
    }

    fn values(&self, index: usize) -> Values {
        array::from_fn(|column| self.value(column, index))
    }

    /// The same of a leaf from a device, if all are in the range of their types.
    fn values_in_range(&self, index: usize) -> Option<Values> {
        const LARGEST: Values =
            [u64::MAX, u64::MAX, u32::MAX as u64, u32::MAX as u64, u32::MAX as u64, u32::MAX as u64];
        let values: Values =
            array::from_fn(|column| self.base(column).wrapping_add(self.rest(column, index)));
        let is_sound = |column| self.base(column) <= values[column] && values[column] <= LARGEST[column];
        (0..COLUMNS).fold(true, |all, column| all & is_sound(column)).then_some(values)
    }

    /// Bytes that the row counts: those of its own sectors; and of an encoded chunk all of the payload with its first
    /// row, nothing with the others. All of them are in this leaf, which holds whole chunks of the space.
    pub(super) fn counted(&self, index: usize) -> u64 {
        let extent = shaped(self.value(SHAPE, index));
        match extent.is_encoded() {
            false => extent.bytes() as u64,
            true if extent.skip > 0 && is_broken(Rule::EncodedCounted) => 0,
            true if extent.skip == 0 || self.parts_before(index).next().is_none() => extent.stored.into(),
            true => 0,
        }
    }

    /// The rows before `index` that are parts of the same encoded chunk, the last one first.
    fn parts_before(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        let window = self.start(index) / CHUNK_SECTORS;
        let is_near = move |other: &usize| self.start(*other) / CHUNK_SECTORS == window;
        (0..index).rev().take_while(is_near).filter(move |other| self.is_same_encoded(*other, index))
    }

    fn is_same_encoded(&self, one: usize, other: usize) -> bool {
        [SEGMENT, PLACE].into_iter().all(|column| self.rest(column, one) == self.rest(column, other))
            && shaped(self.value(SHAPE, one)).is_encoded()
    }

    /// What unmapping all of `ranges`, which are sorted and do not overlap, frees of the encoded chunk of which the row
    /// is a part: all of it if no part is left. It counts with the last sector of the last part.
    pub(super) fn freed_of_encoded(&self, index: usize, ranges: &[Range<u64>], at: usize) -> u64 {
        let (start, extent) = self.get(index);
        let (end, window) = (start + u64::from(extent.sectors), start / CHUNK_SECTORS);
        let is_near = |other: &usize| self.start(*other) / CHUNK_SECTORS == window;
        let is_last =
            !(index + 1..self.len()).take_while(is_near).any(|other| self.is_same_encoded(other, index));
        if !is_last || ranges[at].end < end {
            return 0;
        }
        let is_covered = |row: usize| {
            let (start, extent) = self.get(row);
            let end = start + u64::from(extent.sectors);
            let first = ranges.partition_point(|range| range.end <= start);
            let reach = |reach: u64, range: &Range<u64>| if range.start <= reach { range.end } else { reach };
            ranges[first..].iter().take_while(|range| range.start < end).fold(start, reach) >= end
        };
        match is_covered(index) && self.parts_before(index).all(is_covered) {
            true => extent.stored.into(),
            false => 0,
        }
    }

    /// Values of the rows in `range`.
    fn all(&self, range: Range<usize>) -> impl Iterator<Item = Values> + '_ {
        range.map(|index| self.values(index))
    }

    /// Start of the row.
    pub(super) fn start(&self, index: usize) -> u64 {
        self.value(START, index)
    }

    pub(super) fn get(&self, index: usize) -> Row {
        assert!(index < self.len(), "row {index} of {}", self.len());
        row(self.values(index))
    }

    /// Index of the first row that starts at `lba` or later. No step branches on the result of the one before, so the
    /// processor has nothing to predict.
    pub(super) fn search(&self, lba: u64) -> usize {
        let len = self.len();
        let Some(target) = lba.checked_sub(self.base(START)) else { return 0 };
        if target > self.raw.span.get() || len == 0 {
            return len;
        }
        let is_below = |index: usize| self.rest(START, index) < target;
        // It is one of the `left` rows from `first` on, or the one behind them.
        let (mut first, mut left) = (0, len);
        while left > 1 {
            let half = left / 2;
            first = select_unpredictable(is_below(first + half), first + half, first);
            left -= half;
        }
        first + usize::from(is_below(first))
    }

    /// Index of the first row that ends after `lba`.
    pub(super) fn reach(&self, lba: u64) -> usize {
        let index = self.search(lba);
        // No extent crosses a chunk: usually the start alone shows that the row before does not reach `lba`.
        if index == 0 || self.start(index - 1) / CHUNK_SECTORS != lba / CHUNK_SECTORS {
            return index;
        }
        let (start, extent) = self.get(index - 1);
        index - usize::from(start + u64::from(extent.sectors) > lba)
    }

    /// Rows with a sector in `range`, by index.
    pub(super) fn reached(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.reach(range.start);
        first..self.search(range.end).max(first)
    }
}

/// See the module documentation.
#[derive(Clone)]
pub(crate) struct Leaf(DenseBytes);

impl Default for Leaf {
    fn default() -> Leaf {
        Leaf::new(&[])
    }
}

impl Leaf {
    fn new(rows: &[Values]) -> Leaf {
        Leaf(DenseBytes::new(&encode_anew(rows)))
    }

    #[cfg(test)]
    fn of(rows: &[Row]) -> Leaf {
        Leaf::new(&rows.iter().map(values).collect::<Vec<_>>())
    }

    /// Its rows, for callers that look at more than one value.
    pub(super) fn view(&self) -> Rows<'_> {
        Rows::of(&self.0)
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.view().len()
    }

    /// The leaf as it lies on the device.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes() as u64
    }

    /// Whether both are the same bytes in memory.
    pub(crate) fn is_same(&self, other: &Leaf) -> bool {
        self.0.is_same(&other.0)
    }

    /// Whether another reference to it exists.
    pub(super) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// As [`Rows::start`].
    pub(super) fn start(&self, index: usize) -> u64 {
        self.view().start(index)
    }

    /// The rows, each with the bytes that it counts.
    pub(super) fn counted_rows(&self) -> impl DoubleEndedIterator<Item = (Row, u64)> + '_ {
        let rows = self.view();
        (0..rows.len()).map(move |index| (rows.get(index), rows.counted(index)))
    }

    /// Adds its rows to the sums of `segments`, by segment.
    pub(crate) fn count(&self, segments: &mut [Live]) {
        for ((_, extent), bytes) in self.counted_rows() {
            segments[extent.phys.segment.0 as usize].add(bytes);
        }
    }

    pub(crate) fn rows(&self) -> impl DoubleEndedIterator<Item = Row> + ExactSizeIterator + '_ {
        let rows = self.view();
        (0..rows.len()).map(move |index| row(rows.values(index)))
    }

    /// Prefetches concurrently the lines for which a look at `lba` would otherwise wait in turn: header and starts, and
    /// the row's likely place if the leaf's `rows` rows are spread evenly over `span`. Only a hint: where they are not,
    /// the look waits for the row as it would without.
    pub(super) fn touch(&self, lba: u64, span: &Range<u64>, rows: u64) {
        let sectors = span.end - span.start;
        let starts_end = LEAF_HEADER_BYTES + rows as usize * usize::from(width(sectors));
        let rest = self.0.len().saturating_sub(starts_end + LEAF_PADDING);
        // In 1/65536. Longer spans lose bits here, but only those of leaves with little in them.
        let part = ((lba - span.start) << 16) / sectors;
        let row = starts_end + ((rest * part as usize) >> 16);
        let ask_for = |at: usize| prefetch(&self.0[at.min(self.0.len() - 1)]);
        (0..TOUCHED_LINES).for_each(|line| ask_for((line * LINE_BYTES).min(starts_end)));
        ask_for(row);
        ask_for(row + ROW_BYTES);
    }

    /// As [`Rows::reached`].
    pub(super) fn reached(&self, range: &Range<u64>) -> Range<usize> {
        self.view().reached(range)
    }

    /// Sum of what rows have in `range`; that of all rows is `sum`. Rows are counted on the side of the
    /// range's ends on which there are fewer.
    pub(super) fn live_in(&self, range: &Range<u64>, sum: Live) -> Live {
        let rows = self.view();
        let reached = rows.reached(range);
        let bytes_of = |range: Range<usize>| range.map(|index| rows.counted(index)).sum::<u64>();
        let mut live = Live { bytes: 0, extents: reached.len() as u64 };
        if reached.is_empty() {
            return live;
        }
        live.bytes = match reached.len() <= rows.len() / 2 {
            true => bytes_of(reached.clone()),
            false => sum.bytes - bytes_of(0..reached.start) - bytes_of(reached.end..rows.len()),
        };
        // Only the outermost rows may reach beyond the range.
        let (first, last) = (reached.start, reached.end - 1);
        for index in [Some(first), (last > first).then_some(last)].into_iter().flatten() {
            let (start, extent) = rows.get(index);
            live.bytes -= match extent.is_encoded() {
                true if start >= range.start => 0,
                true => rows.counted(index),
                false => {
                    let inside = clip(start, &extent, range).map_or(0, |(_, inside)| inside.bytes());
                    (extent.bytes() - inside) as u64
                }
            };
        }
        live
    }

    /// Puts `new` in the place of the rows in `range`.
    pub(super) fn splice(&mut self, range: Range<usize>, new: &[Row]) {
        let rows = self.view();
        let columns = rows.columns();
        let new: Vec<Values> = new.iter().map(values).collect();
        let fits = new.iter().all(|row| columns.fits(row));
        if fits && new.len() == range.len() {
            for (index, row) in range.zip(&new) {
                self.overwrite(&columns, index, row);
            }
            return;
        }
        let bytes = if fits {
            let start_bytes = usize::from(columns.width[START]);
            let (starts, rest) = rows.data.split_at(rows.len() * start_bytes);
            let rest = &rest[..rows.len() * rows.row_bytes];
            let starts = [&starts[..range.start * start_bytes], &starts[range.end * start_bytes..]];
            let rest = [&rest[..range.start * rows.row_bytes], &rest[range.end * rows.row_bytes..]];
            encode(&columns, rows.len() - range.len() + new.len(), starts, rest, &new)
        } else {
            let mut all = Vec::with_capacity(rows.len() - range.len() + new.len());
            all.extend(rows.all(0..range.start));
            all.extend(new);
            all.extend(rows.all(range.end..rows.len()));
            encode_anew(&all)
        };
        self.0.set(&bytes);
    }

    fn overwrite(&mut self, columns: &Columns, index: usize, values: &Values) {
        let rests = columns.rests(values);
        let bytes = self.0.make_mut();
        let (raw, data) = MapLeafRaw::mut_from_prefix(bytes).expect("a leaf starts with its header");
        let len = usize::from(raw.len.get());
        let start_bytes = usize::from(columns.width[START]);
        data[index * start_bytes..][..start_bytes].copy_from_slice(&rests[START][..start_bytes]);
        let mut at = len * start_bytes + index * columns.row_bytes();
        for (rest, width) in rests.iter().zip(columns.width).skip(START + 1) {
            let width = usize::from(width);
            data[at..at + width].copy_from_slice(&rest[..width]);
            at += width;
        }
        if index + 1 == len {
            raw.span = (values[START] - columns.base[START]).into();
        }
    }

    /// Splits the leaf between two chunks: in the middle, or before the last chunk if `at_end`, so
    /// that leaves filled in ascending order stay full. `self` keeps the lower rows.
    pub(super) fn split(&mut self, at_end: bool) -> Leaf {
        let rows = self.view();
        let rows: Vec<Values> = rows.all(0..rows.len()).collect();
        let chunk = |index: usize| rows[index][START] / CHUNK_SECTORS;
        let is_cut = |index: &usize| chunk(*index - 1) != chunk(*index);
        let middle = if at_end { rows.len() - 1 } else { rows.len() / 2 };
        let at = (1..=middle).rev().find(is_cut).or_else(|| (middle + 1..rows.len()).find(is_cut));
        let at = at.expect("a chunk has at most 32 extents, less than a leaf that is split");
        *self = Leaf::new(&rows[..at]);
        Leaf::new(&rows[at..])
    }

    /// Appends the rows of the leaf that follows.
    pub(super) fn append(&mut self, right: &Leaf) {
        let rows = [self.view(), right.view()];
        let rows: Vec<Values> = rows.iter().flat_map(|rows| rows.all(0..rows.len())).collect();
        *self = Leaf::new(&rows);
    }

    /// Sums over all rows.
    pub(super) fn sum(&self) -> Live {
        let mut sum = Live::default();
        let rows = self.view();
        (0..rows.len()).for_each(|index| sum.add(rows.counted(index)));
        sum
    }

    /// The leaf for the sectors in `span` whose rows sum up to `live`, out of bytes from a device
    /// with `segments` segments of `segment_bytes`.
    pub(crate) fn verify(
        bytes: &[u8],
        span: &Range<u64>,
        live: Live,
        segments: u32,
        segment_bytes: usize,
    ) -> Result<Leaf, Flaw> {
        let (rows, sum) = Leaf::survey(bytes, segments, segment_bytes)?;
        if rows.start < span.start || rows.end > span.end || sum != live {
            return Err("map leaf is not the one that the index names");
        }
        Ok(Leaf(DenseBytes::new(bytes)))
    }

    /// The sectors from the first row to the last of the leaf in `bytes`, as in [`Leaf::verify`], and the sum of its rows.
    pub(crate) fn survey(
        bytes: &[u8],
        segments: u32,
        segment_bytes: usize,
    ) -> Result<(Range<u64>, Live), Flaw> {
        let rows = check_shape(bytes)?;
        let (mut sum, mut end) = (Live::default(), 0);
        for index in 0..rows.len() {
            let values = rows.values_in_range(index).ok_or("map leaf with a value out of range")?;
            let (start, extent) = try_row(values).ok_or("extent of an unknown encoding")?;
            if start < end {
                return Err("rows of a map leaf overlap");
            }
            extent.check(start, segments, segment_bytes)?;
            let whole = extent.whole_encoded(start);
            if extent.is_encoded()
                && let Some(part) = rows.parts_before(index).next()
                && rows.get(part).1.whole_encoded(rows.start(part)) != whole
            {
                return Err("parts of an encoded chunk that do not fit each other");
            }
            end = start + u64::from(extent.sectors);
            sum.add(rows.counted(index));
        }
        let last = rows.len().checked_sub(1).map(|last| rows.rest(START, last));
        let raw_span = MapLeafRaw::ref_from_prefix(bytes).map(|(raw, _)| raw.span.get()).ok();
        if last.is_none() || last != raw_span {
            return Err("span of a map leaf is wrong");
        }
        Ok((rows.start(0)..end, sum))
    }

    /// The bytes of the leaf with which `bytes` begin, if one can be as long as that says.
    pub(crate) fn first_in(bytes: &[u8]) -> Option<&[u8]> {
        let (raw, _) = MapLeafRaw::ref_from_prefix(bytes).ok()?;
        let row_bytes: usize = raw.width.iter().map(|width| usize::from(*width)).sum();
        bytes.get(..LEAF_HEADER_BYTES + usize::from(raw.len.get()) * row_bytes + LEAF_PADDING)
    }
}

/// The bytes of a leaf of `rows` in the narrowest columns.
fn encode_anew(rows: &[Values]) -> Vec<u8> {
    encode(&Columns::of(rows), rows.len(), [&[], &[]], [&[], &[]], rows)
}

/// The bytes of a leaf of `len` rows: `rows`, which fit `columns`, between others that are encoded so already;
/// of those the starts and the rest, before and behind.
fn encode(columns: &Columns, len: usize, starts: [&[u8]; 2], rest: [&[u8]; 2], rows: &[Values]) -> Vec<u8> {
    let old = [starts[0].len(), starts[1].len(), rest[0].len(), rest[1].len()].iter().sum::<usize>();
    let columns_bytes = old + rows.len() * (usize::from(columns.width[START]) + columns.row_bytes());
    let mut bytes = vec![0; LEAF_HEADER_BYTES + columns_bytes + LEAF_PADDING];

    let mut at = LEAF_HEADER_BYTES;
    copy(&mut bytes, &mut at, starts[0]);
    for values in rows {
        put(&mut bytes, &mut at, columns, START, values);
    }
    copy(&mut bytes, &mut at, starts[1]);
    let last = (at - LEAF_HEADER_BYTES).saturating_sub(columns.width[START].into());
    let span = load(&bytes[LEAF_HEADER_BYTES..], last, columns.width[START]);
    copy(&mut bytes, &mut at, rest[0]);
    for values in rows {
        (START + 1..COLUMNS).for_each(|column| put(&mut bytes, &mut at, columns, column, values));
    }
    copy(&mut bytes, &mut at, rest[1]);

    let raw = MapLeafRaw {
        base: columns.base.map(Into::into),
        span: span.into(),
        len: u16::try_from(len).expect("a leaf is split long before").into(),
        width: columns.width,
    };
    bytes[..LEAF_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    bytes
}

fn copy(bytes: &mut [u8], at: &mut usize, from: &[u8]) {
    bytes[*at..*at + from.len()].copy_from_slice(from);
    *at += from.len();
}

/// Puts a value of a column at `at`, eight bytes wide: those beyond its width are zeros, and the next ones' place.
fn put(bytes: &mut [u8], at: &mut usize, columns: &Columns, column: usize, values: &Values) {
    let rest = values[column] - columns.base[column];
    bytes[*at..*at + 8].copy_from_slice(&rest.to_le_bytes());
    *at += usize::from(columns.width[column]);
}

/// The rows of a leaf out of any `bytes`, if these are as long as it says. Its values may be any.
fn check_shape(bytes: &[u8]) -> Result<Rows<'_>, Flaw> {
    if bytes.len() < LEAF_HEADER_BYTES {
        return Err("map leaf is too short");
    }
    let rows = Rows::of(bytes);
    if rows.len() > ROWS_MAX || rows.raw.width.iter().any(|width| *width > 8) || bytes.len() > LEAF_BYTES_MAX
    {
        return Err("map leaf with too many or too wide rows");
    }
    let end = rows.len() * (usize::from(rows.raw.width[START]) + rows.row_bytes);
    if rows.data.len() != end + LEAF_PADDING || rows.data[end..] != [0; LEAF_PADDING] {
        return Err("map leaf of a bad length");
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use lacuna_codec::Algorithm;
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::addr::GRAIN;

    prop_compose! {
        /// Values of any size, so that all widths occur.
        fn extents()(
            birth in 0..=64u32, segment in 0..=32u32, grain in 0..=24u32, bits in any::<u64>(),
            stored in 1..=1024u16, sectors in 1..=32u8, skip in 0..32u8, crc in any::<u32>(),
            (encoding, chunk_sectors) in (0..3usize, 1..=32u8),
        ) -> Extent {
            let encoding = Algorithm::ALL[encoding];
            let cut = |width: u32, of: u32| (bits.rotate_left(of) >> 1 >> (63 - width.min(63))) as u32;
            Extent {
                phys: PhysAddr { segment: SegNo(cut(segment, 7)), grain: cut(grain, 29) },
                stored: stored * GRAIN as u16,
                crc,
                birth: Seq(bits.checked_shr(birth).unwrap_or(0)),
                sectors,
                skip,
                encoding,
                chunk_sectors: if encoding == Algorithm::None { 0 } else { chunk_sectors },
            }
        }
    }

    proptest! {
        #[test]
        fn splice_is_that_of_a_vector(
            steps in vec((any::<u64>(), 0..4usize, vec(extents(), 0..4)), 1..if cfg!(miri) { 12 } else { 40 }),
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
                    prop_assert_eq!(leaf.view().search(*start), index);
                    prop_assert_eq!(leaf.view().search(*start + 1), index + 1);
                }
            }
        }
    }

    fn sound(rows: u64) -> (Leaf, Live) {
        let rows: Vec<Row> = (0..rows)
            .map(|number| {
                let extent = Extent {
                    phys: PhysAddr { segment: SegNo(1 + (number % 5) as u32), grain: 100 + number as u32 },
                    stored: 5008,
                    crc: number as u32 * 77,
                    birth: Seq(9 + number),
                    sectors: 10,
                    ..Extent::default()
                };
                (64 + number * 32, extent)
            })
            .collect();
        let leaf = Leaf::of(&rows);
        let live = leaf.sum();
        (leaf, live)
    }

    /// Bytes with a forged checksum yield an error or other rows, but no panic.
    #[test]
    fn no_bytes_from_a_device_panic() {
        let (leaf, live) = sound(20);
        let span = 64..10_000;
        let verify = |bytes: &[u8]| Leaf::verify(bytes, &span, live, 8, 1 << 20);
        assert!(verify(leaf.bytes()).is_ok());
        assert!(Leaf::verify(leaf.bytes(), &(64..680), live, 8, 1 << 20).is_err(), "beyond its span");
        assert!(Leaf::verify(leaf.bytes(), &(96..10_000), live, 8, 1 << 20).is_err(), "before its span");
        assert!(Leaf::verify(leaf.bytes(), &span, live, 5, 1 << 20).is_err(), "beyond the store");
        let other = Live { extents: 19, ..live };
        assert!(Leaf::verify(leaf.bytes(), &span, other, 8, 1 << 20).is_err(), "not what the index says");
        for bit in 0..leaf.bytes().len() * 8 {
            let mut bytes = leaf.bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(leaf) = verify(&bytes) {
                leaf.rows().for_each(drop);
                assert!((0..800).all(|lba| leaf.view().search(lba) <= leaf.len()));
            }
        }
        for len in 0..leaf.bytes().len() {
            assert!(verify(&leaf.bytes()[..len]).is_err(), "{len} bytes");
        }
        // As many rows as there may be, each of full width: more than the buffer is sized for.
        let raw =
            MapLeafRaw { base: [0.into(); COLUMNS], span: 0.into(), len: 128.into(), width: [8; COLUMNS] };
        let mut widest = raw.as_bytes().to_vec();
        widest.resize(LEAF_HEADER_BYTES + 128 * 8 * COLUMNS + LEAF_PADDING, 0);
        assert!(verify(&widest).is_err());
    }

    proptest! {
        #[test]
        fn no_noise_panics(mut bytes in vec(any::<u8>(), 0..400), len in 0..40u16, widths in any::<[u8; 6]>()) {
            let (leaf, live) = sound(3);
            if bytes.len() >= LEAF_HEADER_BYTES {
                // Likely enough to get past the first checks.
                bytes[56..58].copy_from_slice(&len.to_le_bytes());
                widths.iter().enumerate().for_each(|(at, width)| bytes[58 + at] = width % 10);
                let rows = usize::from(len) * widths.iter().map(|width| usize::from(width % 10)).sum::<usize>();
                bytes.resize(LEAF_HEADER_BYTES + rows, 7);
                bytes.resize(LEAF_HEADER_BYTES + rows + LEAF_PADDING, 0);
            }
            prop_assert!(Leaf::verify(&bytes, &(0..u64::MAX), live, 8, 1 << 20).is_err());
            drop(leaf);
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
                    ..Extent::default()
                };
                (u64::from(number) * 32, extent)
            })
            .collect();
        let columns = 128 * (2 + 4 + 2 + 3 + 4);
        assert_eq!(Leaf::of(&rows).bytes().len(), LEAF_HEADER_BYTES + columns + LEAF_PADDING);
    }
}
