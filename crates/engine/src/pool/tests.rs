use lacuna_device::{MemVfs, StreamHint, Vfs};
use lacuna_page::{Codec, Encoder};

use super::*;
use crate::{
    mtr::Mtr,
    page::ops::PageOp,
    types::{Layout, TableId},
};

const PAGE: usize = 4096;

fn space_with_pages(count: u64) -> Space {
    let file = MemVfs::new().create("t", StreamHint::Data).expect("create");
    let space = Space::new(TableId(3), file, Layout::of_pages(PAGE)).expect("space");
    for page in 0..count {
        let mut bytes = vec![0; PAGE];
        lacuna_page::write_meta(&mut bytes, &Meta { kind: 0, table: 3, page_no: page, lsn: 5 });
        PageOp::Init { level: 0 }.apply(&mut bytes).expect("init");
        let mut image = vec![0; PAGE];
        Encoder::new().encode(&bytes, Codec::PLAIN, 512, &mut image);
        space.file().write_at(space.offset(PageNo(page)), &image).expect("write");
    }
    space
}

#[test]
fn memory_stays_bounded_and_hot_pages_stay() {
    let space = space_with_pages(2000);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    for round in 0..5 {
        for hot in 0..8 {
            pool.read(&space, PageNo(hot)).expect("read");
        }
        for cold in 0..400 {
            pool.read(&space, PageNo(8 + round * 390 + cold % 390)).expect("read");
            pool.read(&space, PageNo(cold % 8)).expect("read");
        }
    }
    let stats = pool.stats();
    assert!(stats.bytes as usize <= 64 * PAGE, "{stats:?}");
    assert!(stats.evictions > 1000, "{stats:?}");
    assert!(stats.misses < 5 * 390 + 100, "hot pages were evicted: {stats:?}");
}

#[test]
fn a_page_that_cannot_be_read_fails_each_time_and_leaves_nothing_behind() {
    let space = space_with_pages(1);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    for _ in 0..3 {
        assert!(matches!(pool.read(&space, PageNo(1)), Err(Error::Corrupt { .. })));
    }
    assert_eq!(pool.bytes(), 0);
}

#[test]
fn a_change_that_is_not_logged_stops_the_store_before_the_latch_is_released() {
    let space = space_with_pages(1);
    let poison = Arc::new(crate::poison::Poison::default());
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), poison.clone());
    drop(pool.write(&space, PageNo(0)).expect("write"));
    poison.check().expect("nothing was changed");
    let mut guard = pool.write(&space, PageNo(0)).expect("write");
    Mtr::new().apply(&mut guard, PageOp::Init { level: 1 });
    drop(guard);
    let error = poison.check().expect_err("stopped").to_string();
    assert!(error.contains("an operation failed when it had changed table 3 page 0"), "{error}");
}

#[test]
fn dirty_pages_are_not_evicted_but_wanted() {
    let space = space_with_pages(200);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    for page in 0..100 {
        let guard = pool.write(&space, PageNo(page)).expect("write");
        pool.dirty.enter(&guard.frame, crate::types::Lsn(100 + page));
    }
    assert_eq!(pool.bytes(), 100 * PAGE);
    let wanted = pool.take_wanted();
    assert!(!wanted.is_empty());
    for page in 100..110 {
        pool.read(&space, PageNo(page)).expect("read");
    }
    let asked_twice = |frame: &Arc<Frame>| wanted.iter().any(|before| Arc::ptr_eq(before, frame));
    assert!(!pool.take_wanted().iter().any(asked_twice), "each is asked for once");
    for frame in &wanted {
        assert!(pool.dirty.take_off(&frame.try_read().expect("unlatched"), Lsn(u64::MAX)));
    }
    pool.dirty.land(&wanted);
    pool.take_back(wanted);
    assert!(pool.bytes() < 100 * PAGE, "what was flushed may leave");
    for page in 100..200 {
        pool.read(&space, PageNo(page)).expect("read");
    }
    assert!(pool.bytes() < 100 * PAGE);
}

#[test]
fn nothing_is_left_of_a_forgotten_table_not_even_what_was_wanted() {
    let space = space_with_pages(200);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    for page in 0..100 {
        let guard = pool.write(&space, PageNo(page)).expect("write");
        pool.dirty.enter(&guard.frame, crate::types::Lsn(100 + page));
    }
    let wanted = pool.take_wanted();
    assert!(!wanted.is_empty());
    pool.forget_table(space.id());
    assert_eq!((pool.bytes(), pool.dirty.dirty_bytes()), (0, 0));
    pool.take_back(wanted);
    for page in 0..200 {
        pool.read(&space, PageNo(page)).expect("read");
    }
    assert!(pool.bytes() <= 64 * PAGE);
}

#[test]
fn what_is_read_ahead_is_there_for_its_first_use() {
    let space = space_with_pages(10);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    for _ in 0..2 {
        pool.read_ahead(&space, PageNo(3)).expect("read ahead");
    }
    let stats = pool.stats();
    assert_eq!((stats.read_ahead, stats.hits, stats.misses), (1, 0, 0));
    pool.read(&space, PageNo(3)).expect("read");
    let stats = pool.stats();
    assert_eq!((stats.read_ahead, stats.hits, stats.misses), (1, 1, 0));
    assert!(pool.read_ahead(&space, PageNo(10)).is_err());
    assert_eq!(pool.bytes(), PAGE, "nothing is left of what could not be read");
}

#[test]
fn a_scan_that_is_read_ahead_leaves_hot_pages_alone() {
    let space = space_with_pages(2000);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    for page in 0..2000 {
        pool.read_ahead(&space, PageNo(page)).expect("read ahead");
        pool.read(&space, PageNo(page)).expect("read");
        for _ in 0..3 {
            pool.read(&space, PageNo(page % 40)).expect("read");
        }
    }
    let stats = pool.stats();
    assert!(stats.bytes as usize <= 64 * PAGE, "{stats:?}");
    assert!(stats.misses < 100, "hot pages were evicted: {stats:?}");
}

#[test]
fn a_page_is_made_anew_although_reading_it_ahead_fails() {
    let space = space_with_pages(1);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    let id = PageId { table: space.id(), page: PageNo(7) };
    let (frame, to_fill) = pool.look_up(&space, id);
    let holds = Arc::strong_count(&frame);
    std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let mut page = pool.create(&space, PageNo(7));
            page.bytes_mut()[100] = 7;
        });
        while Arc::strong_count(&frame) == holds {
            std::thread::yield_now();
        }
        pool.discard(&frame);
        drop(to_fill);
        maker.join().expect("made");
    });
    assert_eq!(pool.read(&space, PageNo(7)).expect("in memory")[100], 7);
}

#[test]
fn a_page_changed_again_since_it_was_written_is_not_due_for_its_older_changes() {
    let space = space_with_pages(1);
    let pool = Pool::new(64 * PAGE, Lsn(u64::MAX), Arc::default());
    let change = |start| {
        let guard = pool.write(&space, PageNo(0)).expect("write");
        pool.dirty.enter(&guard.frame, Lsn(start));
        Arc::clone(&guard.frame)
    };
    let take_off =
        |frame: &Arc<Frame>, before| pool.dirty.take_off(&frame.try_read().expect("unlatched"), Lsn(before));
    let frame = change(100);
    change(110);
    assert!(!take_off(&frame, 100), "older changes than it has");
    assert!(take_off(&frame, 101), "since its oldest change");
    change(120);
    assert!(!take_off(&frame, u64::MAX), "in flight");
    pool.dirty.land(std::slice::from_ref(&frame));
    assert!(!take_off(&frame, 120) && take_off(&frame, 121));
}

#[test]
fn uses_at_the_same_time_count_once() {
    let space = space_with_pages(1);
    let frame = Frame::new(&space, PageNo(0), AlignedBuf::zeroed(PAGE), 7, Arc::default());
    for (now, want) in [(7, 0), (7, 0), (8, 1), (8, 1), (9, 2), (12, 3), (13, 3)] {
        frame.touch(now);
        assert_eq!(frame.uses(), want, "at {now}");
    }
}
