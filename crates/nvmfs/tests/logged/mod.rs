//! What the library logs.

use std::{cell::RefCell, sync::Once};

use log::{LevelFilter, Log, Metadata, Record};

struct Logger;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("{}: {}", record.level(), record.args());
        LINES.with_borrow_mut(|lines| lines.push(line));
    }

    fn flush(&self) {}
}

/// The result of `work`, and the lines that this thread logs meanwhile.
pub(crate) fn logged<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Logger).expect("no other test sets one");
        log::set_max_level(LevelFilter::Warn);
    });
    LINES.take();
    let done = work();
    (done, LINES.take())
}
