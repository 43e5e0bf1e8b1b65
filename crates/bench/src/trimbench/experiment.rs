//! The experiments.

use std::{
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::sync_channel,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use lacuna_device::AlignedBuf;

use super::{
    BLOCK_BYTES, Config, Data, Measured,
    target::{Target, TestFile},
};
use crate::{progress::Progress, random::Random, shuffle::Shuffle};

/// Bytes of an append, and of each piece of data between two holes.
const PIECE_BYTES: u64 = 4096;
/// Bytes of the writes that fill a file before anything is measured.
const FILL_BYTES: u64 = 1 << 20;
/// Times that every block is written again between two scans.
const AGE: u64 = 4;
/// Blocks that the writer may be ahead of the trimmer.
const AHEAD_MAX: usize = 1024;
/// Longest wait for freed space.
const SPACE_WAIT: Duration = Duration::from_secs(600);
/// Freed share of a dropped file that counts as all of it: file systems keep some of its metadata.
const ROOM_SHARE: f64 = 0.98;

/// One way to use files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// One thread writes blocks, another follows and trims them.
    Beside,
    /// One thread writes a block, then trims it.
    Then,
    /// Many threads write and read blocks of one file.
    Parallel,
    /// Appends of 4 KiB, each made durable.
    Append,
    /// A file with very many holes is made, copied and dropped.
    Holes,
    /// A file is read from front to back, as it was loaded, and after all its blocks changed their size again and again.
    Scan,
}

impl Experiment {
    /// All of them, in the order of reports.
    pub const ALL: [Experiment; 6] = [
        Experiment::Beside,
        Experiment::Then,
        Experiment::Parallel,
        Experiment::Append,
        Experiment::Holes,
        Experiment::Scan,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Beside => "beside",
            Experiment::Then => "then",
            Experiment::Parallel => "parallel",
            Experiment::Append => "append",
            Experiment::Holes => "holes",
            Experiment::Scan => "scan",
        }
    }
}

/// Runs one experiment in all its variants.
pub(super) fn run(config: &Config, target: &dyn Target, experiment: Experiment) -> Result<Vec<Measured>> {
    let bench = Bench { config, target };
    match experiment {
        Experiment::Beside | Experiment::Then => {
            let mut all = Vec::new();
            for &data in &config.data {
                for &trim in &config.trims {
                    all.push(bench.write_and_trim(experiment, data, trim)?);
                }
            }
            Ok(all)
        }
        Experiment::Parallel => bench.parallel(),
        Experiment::Append => Ok(vec![bench.append()?]),
        Experiment::Holes => bench.holes(),
        Experiment::Scan => bench.scan(),
    }
}

/// Removes a file when an experiment ends, also by an error.
struct Remover<'a>(&'a dyn Target, &'static str);

impl Drop for Remover<'_> {
    fn drop(&mut self) {
        let _ = self.0.remove(self.1);
    }
}

struct Bench<'a> {
    config: &'a Config,
    target: &'a dyn Target,
}

impl Bench<'_> {
    fn blocks(&self) -> u64 {
        self.config.file_bytes / BLOCK_BYTES
    }

    fn row(&self, experiment: &'static str, operations: u64, seconds: f64) -> Measured {
        Measured {
            target: self.target.name(),
            file_system: self.target.file_system(),
            counted_by: self.target.device(),
            experiment: experiment.into(),
            data: Data::Random.name().into(),
            trim_bytes: 0,
            threads: 1,
            operations,
            seconds,
            operations_per_second: operations as f64 / seconds.max(1e-9),
            device_read_bytes: None,
            device_written_bytes: None,
        }
    }

    /// Measures `work`, which returns how many operations it made. Deferred work is part of the traffic, not of the
    /// time.
    fn measure(&self, experiment: &'static str, work: impl FnOnce() -> Result<u64>) -> Result<Measured> {
        self.target.settle()?;
        let before = self.target.traffic()?;
        let start = Instant::now();
        let operations = work()?;
        let seconds = start.elapsed().as_secs_f64();
        self.target.settle()?;
        let mut row = self.row(experiment, operations, seconds);
        if let (Some(before), Some(after)) = (before, self.target.traffic()?) {
            let traffic = after.since(before);
            row.device_read_bytes = Some(traffic.read_bytes);
            row.device_written_bytes = Some(traffic.written_bytes);
        }
        Ok(row)
    }

    fn progress<F: FnMut() -> String + Send>(&self, what: String, line: F) -> Progress<F> {
        Progress::new(format!("{}: {what}", self.target.name()), self.config.quiet, line)
    }

    /// A file that was written once in full.
    fn filled(&self, name: &'static str, data: Data) -> Result<(Box<dyn TestFile>, Remover<'_>)> {
        let file = self.target.create(name, false)?;
        let remover = Remover(self.target, name);
        let buf = filling(data, self.config.seed, FILL_BYTES);
        for offset in (0..self.config.file_bytes).step_by(FILL_BYTES as usize) {
            let bytes = FILL_BYTES.min(self.config.file_bytes - offset);
            file.write(offset, &buf[..bytes as usize])?;
        }
        file.sync()?;
        Ok((file, remover))
    }

    fn write_and_trim(&self, experiment: Experiment, data: Data, trim: u64) -> Result<Measured> {
        let (file, _remover) = self.filled("blocks", data)?;
        let (blocks, done) = (self.blocks(), AtomicU64::new(0));
        let order = Shuffle::new(blocks, self.config.seed, 0x7B);
        let mut buf = filling(data, self.config.seed + 1, BLOCK_BYTES);
        let write = |block: u64, buf: &mut AlignedBuf| {
            if data == Data::Random {
                buf[..8].copy_from_slice(&(block + 1).to_le_bytes());
            }
            file.write(block * BLOCK_BYTES, buf)
        };
        let cut = |block: u64| {
            file.trim((block + 1) * BLOCK_BYTES - trim, trim)?;
            done.fetch_add(1, Relaxed);
            anyhow::Ok(())
        };
        let what = format!("{} {} trimmed by {trim}", experiment.name(), data.name());
        let progress = self.progress(what, || format!("{} of {blocks} blocks", done.load(Relaxed)));
        let measured = progress.during(|| {
            self.measure(experiment.name(), || {
                match experiment {
                    Experiment::Then => {
                        (0..blocks).map(|index| order.permute(index)).try_for_each(|block| {
                            write(block, &mut buf)?;
                            cut(block)
                        })?
                    }
                    _ => thread::scope(|scope| {
                        let (written, to_trim) = sync_channel::<u64>(AHEAD_MAX);
                        let trimmer = scope.spawn(|| to_trim.into_iter().try_for_each(cut));
                        let writer = (0..blocks).map(|index| order.permute(index)).try_for_each(|block| {
                            write(block, &mut buf)?;
                            // The send fails only if the trimmer has failed: its error is the one to report.
                            let _ = written.send(block);
                            anyhow::Ok(())
                        });
                        drop(written);
                        writer.and(trimmer.join().expect("the trimmer panicked"))
                    })?,
                }
                file.sync()?;
                Ok(blocks)
            })
        })?;
        let threads = if experiment == Experiment::Then { 1 } else { 2 };
        Ok(Measured { data: data.name().into(), trim_bytes: trim, threads, ..measured })
    }

    /// Random blocks, first written, then read, by one thread and by many.
    fn parallel(&self) -> Result<Vec<Measured>> {
        let (file, _remover) = self.filled("blocks", Data::Random)?;
        let mut all = Vec::new();
        let mut thread_counts = vec![1, self.config.threads];
        thread_counts.dedup();
        for threads in thread_counts {
            for (name, is_write) in [("parallel write", true), ("parallel read", false)] {
                let row = self.measure(name, || self.hammer(&*file, threads, is_write))?;
                all.push(Measured { threads, ..row });
            }
        }
        Ok(all)
    }

    fn hammer(&self, file: &dyn TestFile, threads: u32, is_write: bool) -> Result<u64> {
        let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
        let work = |number: u32| {
            let mut random = Random::new(self.config.seed, 0xD1 + u64::from(number));
            let mut buf = filling(Data::Random, self.config.seed + u64::from(number), BLOCK_BYTES);
            loop {
                let offset = random.below(self.blocks()) * BLOCK_BYTES;
                let result = if is_write { file.write(offset, &buf) } else { file.read(offset, &mut buf) };
                if result.is_err() {
                    stop.store(true, Relaxed);
                    return result;
                }
                requests.fetch_add(1, Relaxed);
                // One request at least: there is no rate without.
                if stop.load(Relaxed) {
                    return Ok(());
                }
            }
        };
        let what = format!("{} by {threads} threads", if is_write { "writes" } else { "reads" });
        let progress = self.progress(what, || format!("{} requests", requests.load(Relaxed)));
        progress.during(|| {
            thread::scope(|scope| {
                let workers: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
                sleep_unless(&stop, self.config.seconds);
                workers.into_iter().try_for_each(|worker| worker.join().expect("a worker panicked"))
            })
        })?;
        if is_write {
            file.sync()?;
        }
        Ok(requests.into_inner())
    }

    fn append(&self) -> Result<Measured> {
        let file = self.target.create("log", true)?;
        let _remover = Remover(self.target, "log");
        let buf = filling(Data::Random, self.config.seed, PIECE_BYTES);
        let appended = AtomicU64::new(0);
        let progress = self.progress("append".to_owned(), || format!("{} appends", appended.load(Relaxed)));
        progress.during(|| {
            self.measure("append 4K", || {
                let start = Instant::now();
                let mut end = 0;
                while end == 0 || start.elapsed() < self.config.seconds {
                    file.write(end, &buf)?;
                    file.sync()?;
                    end += PIECE_BYTES;
                    appended.fetch_add(1, Relaxed);
                }
                Ok(end / PIECE_BYTES)
            })
        })
    }

    /// Pieces of 4 KiB with a hole of 4 KiB after each.
    fn holes(&self) -> Result<Vec<Measured>> {
        let holes = self.config.holes;
        let file = self.target.create("holes", false)?;
        let _remover = Remover(self.target, "holes");
        let done = AtomicU64::new(0);
        let line = || format!("{} of {holes} pieces", done.load(Relaxed));
        let buf = filling(Data::Random, self.config.seed, PIECE_BYTES);
        let made = self.progress("a file with holes is made".to_owned(), line).during(|| {
            self.measure("holes: make", || {
                for hole in 0..holes {
                    file.write(hole * 2 * PIECE_BYTES, &buf)?;
                    done.store(hole, Relaxed);
                }
                file.sync()?;
                Ok(holes)
            })
        })?;
        let allocated = file.allocated()?;
        let mut all = vec![made];
        let has_space = self.target.free_bytes()? > allocated + allocated / 4;
        if self.config.copies && has_space {
            done.store(0, Relaxed);
            let copied = self
                .progress("it is copied".to_owned(), line)
                .during(|| self.measure("holes: copy", || self.copy(&*file, &done)))?;
            self.target.remove("copy")?;
            all.push(copied);
        } else if self.config.copies && !self.config.quiet {
            eprintln!("{}: no space to copy the file with holes", self.target.name());
        }
        drop(file);
        all.push(self.drop_file("holes", allocated)?);
        Ok(all)
    }

    fn copy(&self, from: &dyn TestFile, done: &AtomicU64) -> Result<u64> {
        let to = self.target.create("copy", false)?;
        let remover = Remover(self.target, "copy");
        let mut buf = AlignedBuf::zeroed(FILL_BYTES as usize);
        let (mut offset, mut pieces) = (0, 0);
        while let Some((start, end)) = from.next_data(offset)? {
            for at in (start..end).step_by(FILL_BYTES as usize) {
                let piece = &mut buf[..FILL_BYTES.min(end - at) as usize];
                from.read(at, piece)?;
                to.write(at, piece)?;
            }
            pieces += 1;
            done.store(pieces, Relaxed);
            offset = end;
        }
        to.sync()?;
        std::mem::forget(remover); // It is removed outside of the time.
        Ok(pieces)
    }

    /// Removes a file and waits until its space is free again. Other users of the file system disturb that.
    fn drop_file(&self, name: &'static str, allocated: u64) -> Result<Measured> {
        self.target.settle()?;
        let wanted = self.target.free_bytes()? + (allocated as f64 * ROOM_SHARE) as u64;
        self.measure("holes: drop", || {
            let start = Instant::now();
            self.target.remove(name)?;
            while self.target.free_bytes()? < wanted {
                if start.elapsed() > SPACE_WAIT {
                    bail!("the space of a dropped file is not back after {} s", SPACE_WAIT.as_secs());
                }
                thread::sleep(Duration::from_millis(5));
            }
            Ok(self.config.holes)
        })
    }

    /// A file whose blocks take 4 to 12 KiB and end in a hole, read by one thread from front to back: as it was written in
    /// order, and after each block was written [`AGE`] times more, in scattered order and with another size each time.
    fn scan(&self) -> Result<Vec<Measured>> {
        let file = self.target.create("scan", false)?;
        let _remover = Remover(self.target, "scan");
        let blocks = self.blocks();
        let loaded = self.scan_write("scan: load", &*file, blocks, |index| index)?;
        let before = self.scan_read("scan: as loaded", &*file)?;
        let order = Shuffle::new(blocks, self.config.seed, 0x5C);
        let aged =
            self.scan_write("scan: age", &*file, AGE * blocks, |index| order.permute(index % blocks))?;
        let after = self.scan_read("scan: aged", &*file)?;
        Ok(vec![loaded, before, aged, after])
    }

    fn scan_write(
        &self,
        name: &'static str,
        file: &dyn TestFile,
        writes: u64,
        block_of: impl Fn(u64) -> u64,
    ) -> Result<Measured> {
        let buf = filling(Data::Random, self.config.seed, BLOCK_BYTES);
        let mut random = Random::new(self.config.seed, 0x5D + writes);
        let done = AtomicU64::new(0);
        let line = || format!("{} of {writes} blocks", done.load(Relaxed));
        self.progress(name.to_owned(), line).during(|| {
            self.measure(name, || {
                for index in 0..writes {
                    let start = block_of(index) * BLOCK_BYTES;
                    let kept = (1 + random.below(3)) * PIECE_BYTES;
                    file.write(start, &buf[..kept as usize])?;
                    file.trim(start + kept, BLOCK_BYTES - kept)?;
                    done.fetch_add(1, Relaxed);
                }
                file.sync()?;
                Ok(writes)
            })
        })
    }

    fn scan_read(&self, name: &'static str, file: &dyn TestFile) -> Result<Measured> {
        let mut buf = AlignedBuf::zeroed(FILL_BYTES as usize);
        self.measure(name, || {
            // The last block's hole may be beyond the end of the file.
            let bytes = self.config.file_bytes - (BLOCK_BYTES - PIECE_BYTES);
            for start in (0..bytes).step_by(FILL_BYTES as usize) {
                file.read(start, &mut buf[..FILL_BYTES.min(bytes - start) as usize])?;
            }
            Ok(self.blocks())
        })
    }
}

fn filling(data: Data, seed: u64, bytes: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(bytes as usize);
    if data == Data::Random {
        let mut random = Random::new(seed, 0xF1);
        for word in buf.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
    }
    buf
}

/// Sleeps, then sets `stop`; returns early when another thread did.
fn sleep_unless(stop: &AtomicBool, time: Duration) {
    let start = Instant::now();
    while let Some(left) = time.checked_sub(start.elapsed()) {
        if stop.load(Relaxed) {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(20)));
    }
    stop.store(true, Relaxed);
}
