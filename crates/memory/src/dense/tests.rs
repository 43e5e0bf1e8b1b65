use std::thread;

use super::*;
use lacuna_sim::{SeededRng, for_each_seed};

impl Arena {
    /// Checks the bookkeeping of the pages against their bits; returns how many units are taken.
    fn check(&mut self) -> usize {
        let mut taken = 0;
        let mut has_empty = false;
        for (number, page) in self.pages.iter_mut().enumerate() {
            let Some(page) = page else { continue };
            let units: usize = page.taken.iter().map(|word| word.count_ones() as usize).sum();
            assert_eq!(page.taken_units, units);
            let run_max = std::mem::replace(&mut page.run_max, UNITS);
            let is_longer = run_max < PIECE_UNITS_MAX && page.find(run_max + 1).is_some();
            assert!(!is_longer, "invariant 3: a run is longer than {run_max}");
            for (units, from) in self.from.iter().enumerate().skip(1) {
                let is_found = {
                    page.run_max = UNITS;
                    page.find(units).is_some()
                };
                assert!(*from <= number || !is_found, "invariant 3: {units} units in page {number}");
            }
            page.run_max = run_max;
            taken += units;
            has_empty |= units == 0;
        }
        assert_eq!(self.has_empty, has_empty);
        taken
    }

    fn held_pages(&self) -> usize {
        self.pages.iter().flatten().count()
    }
}

type Piece = (usize, NonNull<u8>, u32);

fn take(arena: &mut Arena, units: usize) -> Piece {
    let (piece, page) = arena.take(units);
    (units, piece, page)
}

fn give_back(arena: &mut Arena, (units, piece, page): Piece) {
    arena.give_back(page, piece, units);
}

/// Pieces are made and dropped at random; none overlaps another, and freed space is reused.
#[test]
fn pieces_do_not_overlap_and_come_back() {
    let (lives, rounds) = if cfg!(miri) { (40, 100) } else { (4000, 20_000) };
    for_each_seed(3, |seed| {
        let (mut rng, mut arena) = (SeededRng::new(seed), Arena::new());
        let mut pieces: Vec<Piece> = Vec::new();
        for _ in 0..rounds {
            if pieces.len() < lives && rng.chance(60) {
                pieces.push(take(&mut arena, 1 + rng.below(PIECE_UNITS_MAX as u64) as usize));
            } else if !pieces.is_empty() && rng.chance(30) {
                let piece = rng.below(pieces.len() as u64) as usize;
                let (units, memory, page) = &mut pieces[piece];
                let new = 1 + rng.below(PIECE_UNITS_MAX as u64) as usize;
                let is_done = arena.resize(*page, *memory, *units, new);
                assert!(is_done || new > *units, "a piece can always be smaller");
                *units = if is_done { new } else { *units };
            } else if !pieces.is_empty() {
                give_back(&mut arena, pieces.swap_remove(rng.below(pieces.len() as u64) as usize));
            }
        }
        let units: usize = pieces.iter().map(|(units, ..)| units).sum();
        assert_eq!(arena.check(), units);
        pieces.sort_unstable_by_key(|(_, piece, _)| *piece);
        for pair in pieces.windows(2) {
            let end = pair[0].1.addr().get() + pair[0].0 * UNIT_BYTES;
            assert!(end <= pair[1].1.addr().get(), "a piece lies in another");
        }
        let pages = arena.held_pages();
        assert!(pages * UNITS <= units * 5 / 4 + 2 * UNITS, "{pages} pages for {units} units");
        pieces.drain(..).for_each(|piece| give_back(&mut arena, piece));
        assert_eq!((arena.check(), arena.held_pages()), (0, 1), "all but one go back");
    });
}

/// As leaves grow when their numbers need one more byte.
#[test]
fn growing_all_pieces_at_random_takes_little_more_than_they_do() {
    let count = if cfg!(miri) { 50 } else { 10_000 };
    let (mut rng, mut arena) = (SeededRng::new(7), Arena::new());
    let mut small: Vec<Piece> = (0..count).map(|_| take(&mut arena, 7)).collect();
    let mut grown = Vec::new();
    while !small.is_empty() {
        let piece = small.swap_remove(rng.below(small.len() as u64) as usize);
        grown.push(take(&mut arena, 9));
        give_back(&mut arena, piece);
    }
    assert_eq!(arena.check(), count * 9);
    let pages = arena.held_pages();
    assert!(pages * UNITS <= count * 9 * 6 / 5 + 2 * UNITS, "{pages} pages for {count} pieces");
}

#[test]
fn a_piece_grows_where_it_is_into_free_units_of_its_page() {
    let mut arena = Arena::new();
    let (_, piece, page) = take(&mut arena, 4);
    let behind = take(&mut arena, 1);
    assert!(!arena.resize(page, piece, 4, 5), "another one lies there");
    assert!(arena.resize(page, piece, 4, 2) && arena.resize(page, piece, 2, 4), "nobody took them");
    assert!(arena.resize(page, piece, 4, 2));
    let between = take(&mut arena, 1);
    assert!(between.1 < behind.1 && !arena.resize(page, piece, 2, 3), "it lies there");
    while arena.held_pages() == 1 {
        take(&mut arena, 1);
    }
    let units = arena.check();
    assert_eq!(units, UNITS + 1);
    let last = arena.page(page).memory.at((UNITS - 1) * UNIT_BYTES);
    assert!(!arena.resize(page, last, 1, 2), "the page ends");
    assert_eq!(arena.check(), units);
}

#[test]
fn a_copy_of_what_is_shared_is_changed() {
    let mut first = DenseBytes::new(&[1, 2, 3]);
    let memory = first.as_ptr();
    first.make_mut()[0] = 9;
    first.set(&[9, 2, 3, 4]);
    assert!(first.as_ptr() == memory && !first.is_shared(), "alone it is changed where it is");
    let second = first.clone();
    assert!(first.is_same(&second) && first.is_shared() && second.is_shared());
    first.make_mut()[1] = 8;
    assert!(!first.is_same(&second) && !first.is_shared() && !second.is_shared());
    assert_eq!((&first[..], &second[..]), (&[9, 8, 3, 4][..], &[9, 2, 3, 4][..]));
    let third = first.clone();
    first.set(&[7]);
    assert_eq!((&first[..], &third[..]), (&[7][..], &[9, 8, 3, 4][..]));
    first.set(&[6; DenseBytes::LEN_MAX]);
    assert_eq!(first[..], [6; DenseBytes::LEN_MAX]);
    assert_eq!(DenseBytes::new(&[]).len(), 0);
}

#[test]
fn threads_pass_handles_on() {
    let (pieces, rounds) = if cfg!(miri) { (4, 3) } else { (200, 50) };
    let piece = |round: usize, number: usize| vec![(round * 7 + number) as u8; 64 + number * 20];
    thread::scope(|scope| {
        for round in 0..rounds {
            let made: Vec<_> = (0..pieces).map(|number| DenseBytes::new(&piece(round, number))).collect();
            let passed = made.clone();
            let join = scope.spawn(move || {
                for (number, mut bytes) in passed.into_iter().enumerate() {
                    assert_eq!(bytes[..], piece(round, number));
                    bytes.make_mut().fill(!0);
                }
            });
            for (number, mut bytes) in made.into_iter().enumerate() {
                assert_eq!(bytes[..], piece(round, number));
                bytes.make_mut().fill(0x55);
                assert!(bytes.iter().all(|byte| *byte == 0x55));
            }
            if round % 2 == 0 {
                join.join().unwrap();
            }
        }
    });
}
