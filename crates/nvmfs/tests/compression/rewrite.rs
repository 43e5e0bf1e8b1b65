//! Rewriting data under another compression, on demand and when they are cold, while they are in use.

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use super::{CHUNK, content, formatted, named, noise, open, room, shrinking, write};
use crate::by_inode::{self, ROOT, assert_clean, at, dir, file, refused, times};
use lacuna_device::BlockDevice;
use lacuna_ftl as ftl;
use lacuna_nvmfs::{Compression, Ino, Nvmfs, Refusal, Room, Seq};
use lacuna_sim::{BeforeReads, SeededRng};

#[test]
fn a_rewrite_brings_old_data_under_the_new_compression() {
    let vfs = open(&formatted(64 << 20, "default"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(5));
    let ino = file(&fs, "file");
    let data = shrinking(&mut rng, 100 * CHUNK);
    for (number, part) in data.chunks(4096).enumerate() {
        write(&fs, ino, number as u64 * 4096, part);
    }
    // Far away, behind a hole.
    write(&fs, ino, 1 << 40, &data[..CHUNK]);
    fs.fsync(ino, false).unwrap();
    by_inode::SECONDS.set(2000);
    let before = room(&fs, ino);
    assert_eq!(before.plain.mapped_bytes, 101 * CHUNK as u64);
    assert_eq!(fs.rewrite(ino, 0, u64::MAX >> 20).unwrap().written_bytes, 0, "it stays as it is");
    fs.set_compression(ino, named("zstd:5")).unwrap();
    assert_eq!(room(&fs, ino), before);
    by_inode::SECONDS.set(3000);
    let rewritten = fs.rewrite(ino, 0, (1 << 40) + CHUNK as u64).unwrap();
    assert_eq!((rewritten.read_bytes, rewritten.written_bytes), (101 * CHUNK as u64, 101 * CHUNK as u64));
    let after = room(&fs, ino);
    assert!(
        after.plain.mapped_bytes == 0 && after.zstd.stored_bytes < before.plain.stored_bytes / 2,
        "{after:?}"
    );
    assert!(times(&fs.getattr(ino).unwrap()) == (1000, 1000, 2000), "{:?}", fs.getattr(ino));
    let mut back = vec![0; data.len()];
    fs.read(ino, 0, &mut back).unwrap();
    assert!(back == data);
    // And back, part by part: to whole chunks.
    fs.set_compression(ino, Compression::None).unwrap();
    fs.rewrite(ino, 5 * CHUNK as u64 + 1, 1).unwrap();
    assert_eq!(room(&fs, ino).plain.mapped_bytes, CHUNK as u64);
    fs.rewrite(ino, 0, (1 << 40) + CHUNK as u64).unwrap();
    assert_eq!(room(&fs, ino), before);
    refused(fs.rewrite(dir(&fs, ROOT, "dir"), 0, 1), Refusal::IsADirectory);
    refused(fs.rewrite(ino, u64::MAX, 1), Refusal::FileTooLarge);
    assert_eq!(at(1000).seconds, 1000);
    assert_clean(&vfs);
}

/// What is written after `rewrite` has looked at the data and before it writes them: it stays.
fn assert_write_between_stays(default: &str, rewrite: impl Fn(&Nvmfs, Ino)) {
    type Work = Box<dyn FnOnce() + Send>;
    let device = formatted(64 << 20, default);
    let vfs = open(&device);
    let ino = file(&vfs.posix(), "file");
    write(&vfs.posix(), ino, 0, &shrinking(&mut SeededRng::new(1), 4 * CHUNK));
    vfs.close().unwrap();
    let before_read: Arc<Mutex<Option<Work>>> = Arc::default();
    let of_device = Arc::clone(&before_read);
    let vfs = open(
        &(BeforeReads::new(device, move |_| {
            let work = of_device.lock().unwrap().take();
            work.into_iter().for_each(|work| work());
            Ok(())
        }) as Arc<dyn BlockDevice>),
    );
    let fs = vfs.posix();
    fs.read(ino, 0, &mut [0; 8]).unwrap(); // only the data are read from now on
    let (starts, writer) = mpsc::channel();
    *before_read.lock().unwrap() = Some(Box::new(move || {
        let (done, waits) = mpsc::channel();
        let write_it = std::thread::spawn(move || {
            write(&fs, ino, 1000, &[9; 8]);
            let _ = done.send(());
        });
        // Where the sectors are held, it waits for them, and this not for it.
        let _ = waits.recv_timeout(Duration::from_secs(1));
        starts.send(write_it).unwrap();
    }));
    rewrite(&vfs, ino);
    writer.try_recv().expect("the rewrite read nothing").join().unwrap();
    let mut found = [0; 8];
    vfs.posix().read(ino, 1000, &mut found).unwrap();
    assert_eq!(found, [9; 8]);
    assert_clean(&vfs);
}

#[test]
fn what_is_written_in_the_middle_of_a_rewrite_stays() {
    assert_write_between_stays("zstd:3", |vfs, ino| {
        vfs.posix().rewrite(ino, 0, 4 * CHUNK as u64).unwrap();
    });
}

#[test]
fn what_is_written_in_the_middle_of_a_walk_over_cold_data_stays() {
    assert_write_between_stays("lz4", |vfs, _| {
        let all = Seq(0)..Seq(u64::MAX);
        assert!(vfs.compress_cold(named("zstd:3"), &all, |_| ControlFlow::Continue(())).unwrap());
    });
}

/// Writers that count up, each in sectors of its own, while others rewrite them: no count ever goes back.
#[test]
fn what_is_written_beside_a_rewrite_stays() {
    let vfs = open(&formatted(64 << 20, "zstd:3"));
    assert_counts_stay(&vfs, |ino| vfs.posix().rewrite(ino, 0, 4 * CHUNK as u64).unwrap().written_bytes > 0);
}

#[test]
fn what_is_written_beside_a_walk_over_cold_data_stays() {
    let vfs = open(&formatted(64 << 20, "lz4"));
    assert_counts_stay(&vfs, |_| {
        let all = Seq(0)..Seq(u64::MAX);
        let before = vfs.compression_stats().recompressed_bytes;
        assert!(vfs.compress_cold(named("zstd:3"), &all, |_| ControlFlow::Continue(())).unwrap());
        vfs.compression_stats().recompressed_bytes > before
    });
}

/// `rewrite` returns whether it wrote anything.
fn assert_counts_stay(vfs: &Nvmfs, rewrite: impl Fn(Ino) -> bool + Sync) {
    const WRITERS: u64 = 3;
    const SECTORS: u64 = 24;
    let fs = vfs.posix();
    let ino = file(&fs, "file");
    write(&fs, ino, 0, &[1; 4 * CHUNK]);
    (0..WRITERS * SECTORS).for_each(|sector| write(&fs, ino, sector * 512, &[0; 8]));
    let (ends, rewrites) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (fs, rewrites) = (fs.clone(), &rewrites);
                scope.spawn(move || {
                    let mut rng = SeededRng::new(writer);
                    let mut counts = [0_u64; SECTORS as usize];
                    let mut number = 0;
                    // Until enough was rewritten beside it, for which it may have to leave others time.
                    while number < 200 || rewrites.load(SeqCst) < 20 {
                        number += 1;
                        if number > 200 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        let sector = rng.below(SECTORS);
                        let at = (sector * WRITERS + writer) * 512;
                        let mut found = [0; 8];
                        fs.read(ino, at, &mut found).unwrap();
                        let count = &mut counts[sector as usize];
                        assert_eq!(u64::from_le_bytes(found), *count, "writer {writer}, sector {sector}");
                        *count += 1;
                        write(&fs, ino, at, &count.to_le_bytes());
                    }
                })
            })
            .collect();
        let rewriters: Vec<_> = (0..2)
            .map(|_| {
                let (ends, rewrites, rewrite) = (&ends, &rewrites, &rewrite);
                scope.spawn(move || {
                    while !ends.load(SeqCst) {
                        rewrites.fetch_add(u64::from(rewrite(ino)), SeqCst);
                    }
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        ends.store(true, SeqCst);
        rewriters.into_iter().for_each(|rewriter| rewriter.join().unwrap());
        written.into_iter().for_each(|written| written.unwrap());
    });
    assert_clean(vfs);
}

/// Which files a walk over cold data takes up, and that it does so once.
#[test]
fn cold_data_is_compressed_harder() {
    let vfs = open(&formatted(64 << 20, "lz4"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(9));
    let data = shrinking(&mut rng, 40 * CHUNK);
    let make = |name: &str, text: &str, data: &[u8]| {
        let ino = file(&fs, name);
        fs.set_compression(ino, named(text)).unwrap();
        write(&fs, ino, 0, data);
        ino
    };
    let (cold, own_lz4) = (make("cold", "default", &data), make("lz4", "lz4", &data));
    let (own_none, own_zstd) = (make("none", "none", &data), make("zstd", "zstd:1", &data));
    let in_vain = make("noise", "default", &noise(&mut rng, 20 * CHUNK));
    fs.sync().unwrap();
    let old = Seq(vfs.ftl().last_seq().0 + 1);
    let hot = make("hot", "default", &data);
    write(&fs, cold, 3 * CHUNK as u64 + 512, &[7; 512]); // one chunk of it is hot
    let kinds = |ino| {
        let Room { plain, lz4, zstd } = room(&fs, ino);
        [plain, lz4, zstd].map(|of| of.mapped_bytes / CHUNK as u64)
    };
    let before = (vfs.quotas().unwrap(), times(&fs.getattr(cold).unwrap()));
    let walk = |births| {
        let (mut bytes, mut smaller) = (0, Vec::new());
        let ended = vfs.compress_cold(named("zstd:9"), &births, |piece| {
            bytes += piece.tried_bytes;
            smaller.extend(piece.smaller);
            ControlFlow::Continue(())
        });
        assert!(ended.unwrap());
        smaller.dedup();
        (bytes, smaller)
    };
    assert_eq!(walk(Seq(0)..old), ((39 + 40 + 20) * CHUNK as u64, vec![cold, own_lz4]));
    assert_eq!((kinds(cold)[2], kinds(own_lz4)), (39, [0, 0, 40]));
    assert_eq!((kinds(own_none), kinds(own_zstd)), ([40, 0, 0], [0, 0, 40]));
    assert_eq!((kinds(in_vain), kinds(hot)), ([20, 0, 0], [0, 40, 0]));
    assert_eq!(vfs.compression_stats().recompressed_bytes, 79 * CHUNK as u64);
    let now = Seq(vfs.ftl().last_seq().0 + 1);
    assert_eq!(walk(old..now), (41 * CHUNK as u64, vec![cold, hot]), "the rest, and nothing twice");
    assert_eq!(walk(Seq(0)..old), (20 * CHUNK as u64, vec![]), "what does not shrink is found again");
    let mut expected = data.clone();
    expected[3 * CHUNK + 512..3 * CHUNK + 1024].fill(7);
    assert!(content(&fs, cold) == expected && content(&fs, own_lz4) == data);
    assert_eq!(times(&fs.getattr(cold).unwrap()).1, before.1.1);
    assert!(vfs.quotas().unwrap()[0].used.bytes < before.0[0].used.bytes);
    let stopped = vfs.compress_cold(named("zstd:9"), &(Seq(0)..now), |_| ControlFlow::Break(()));
    assert!(!stopped.unwrap());
    refused(
        vfs.compress_cold(Compression::None, &(Seq(0)..now), |_| ControlFlow::Continue(())),
        Refusal::Invalid,
    );
    assert_clean(&vfs);
}

/// Noise of which parts come again: zstd may need more bytes around it than LZ4.
fn noise_with_repeats(rng: &mut SeededRng) -> Vec<u8> {
    let mut data = noise(rng, CHUNK);
    for _ in 0..2 + rng.below(10) {
        let len = 60 + rng.below(600) as usize;
        let mut any = || rng.below((CHUNK - len) as u64) as usize;
        let (from, to) = (any(), any());
        data.copy_within(from..from + len, to);
    }
    data
}

/// A walk must take no space, or writers of a full store would be refused because of it.
#[test]
fn a_walk_over_cold_data_makes_nothing_longer() {
    const CHUNKS: u64 = 200;
    let vfs = open(&formatted(64 << 20, "none"));
    let (fs, mut rng) = (vfs.posix(), SeededRng::new(4));
    let [lz4, zstd] = ["lz4", "zstd:1"].map(|text| {
        let ino = file(&fs, text);
        fs.set_compression(ino, named(text)).unwrap();
        ino
    });
    for number in 0..CHUNKS {
        let data = noise_with_repeats(&mut rng);
        [lz4, zstd].iter().for_each(|ino| write(&fs, *ino, number * CHUNK as u64, &data));
    }
    for ino in [lz4, zstd] {
        fs.rewrite(ino, 0, CHUNKS * CHUNK as u64).unwrap(); // which tries each chunk
    }
    let of_chunks = |ino: Ino| -> Vec<u64> {
        let chunk = |number| {
            let start = (ino.number() << 36) + number * 32;
            vfs.ftl().allocated(ftl::Lba(start)..ftl::Lba(start + 32)).unwrap()
        };
        (0..CHUNKS).map(chunk).collect()
    };
    let (before, by_zstd) = (of_chunks(lz4), of_chunks(zstd));
    let is_longer = |(by_lz4, by_zstd): (&u64, &u64)| by_lz4 < by_zstd;
    let longer = before.iter().zip(&by_zstd).filter(|both| is_longer(*both)).count();
    assert!((1..CHUNKS as usize).contains(&longer), "zstd makes {longer} longer");
    let all = Seq(0)..Seq(vfs.ftl().last_seq().0 + 1);
    assert!(vfs.compress_cold(named("zstd:1"), &all, |_| ControlFlow::Continue(())).unwrap());
    let after = of_chunks(lz4);
    let least: Vec<_> = before.iter().zip(&by_zstd).map(|(lz4, zstd)| *lz4.min(zstd)).collect();
    assert_eq!(after, least);
    assert!(content(&fs, lz4) == content(&fs, zstd));
    assert_clean(&vfs);
}
