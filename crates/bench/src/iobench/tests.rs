use lacuna_device::MemDevice;

use super::*;

const BYTES: u64 = 64 << 20;

fn device() -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new(BYTES))
}

fn config(patterns: &[Pattern]) -> Config {
    Config {
        patterns: patterns.to_vec(),
        seconds: Duration::from_millis(30),
        threads: 2,
        block_bytes: 16 << 10,
        live_percent: 50,
        overwrite_capacities: 2,
        wraps: false,
        map_memory_bytes: Some(1 << 14),
        skew: Skew::Uniform,
        seed: 1,
        quiet: true,
    }
}

#[test]
fn all_patterns_run_on_both_targets() {
    let reports = run(&config(&Pattern::ALL), &device(), Some(&device())).unwrap();
    assert_eq!(reports.len(), 2 * Pattern::ALL.len());
    for (report, number) in reports.iter().zip(0..) {
        let pattern = Pattern::ALL[number / 2];
        assert_eq!((report.pattern, report.target), (pattern.name(), ["ftl", "raw"][number % 2]));
        assert!(report.requests > 0 && report.latency.count == report.requests, "{report:?}");
        assert_eq!(report.host_bytes_written == 0, pattern.is_read());
        match (report.target, pattern.is_read()) {
            ("raw", false) => assert_eq!(report.device_bytes_written, report.host_bytes_written),
            ("ftl", false) => assert!(report.write_amplification >= 1.0, "{report:?}"),
            _ => assert!(report.device_bytes_read >= report.requests * report.request_bytes, "{report:?}"),
        }
    }
    let table = comparison(&reports);
    assert_eq!(table.lines().count(), 1 + 3 * Pattern::ALL.len() + 3);
    assert!(table.contains("does not mean"), "what the ratios are not stands below them");
    assert_eq!(table.lines().filter(|line| line.trim().starts_with("ftl : raw")).count(), Pattern::ALL.len());
}

#[test]
fn goals_are_judged_on_both_targets() {
    let config = config(&[]);
    let (one, other) = (device(), device());
    let (goals, all) = goals::run(&config, 2, &one, &other).unwrap();
    for device in [one, other] {
        lacuna_ftl::Ftl::open(device, lacuna_ftl::Options::default())
            .expect("each had the store at the end of a half");
    }
    assert_eq!((goals.len(), all.len()), (4, 2 * 2 * 3 + 1));
    for goal in &goals {
        let [low, high] = goal.interval;
        assert!(low <= goal.ratio && goal.ratio <= high * 1.001 && goal.values["ftl"].len() == 2, "{goal:?}");
    }
    assert_eq!(goals[3].values["raw"], [1.0, 1.0], "the bare device gets each byte once");
    // Nine sectors for eight, and what a store writes in any case, which counts when there is time for few.
    assert!(goals[3].ratio >= 1.125, "{:?}", goals[3]);
    let written: Vec<_> = all.iter().filter(|report| report.pattern == "randwrite").collect();
    assert!(written.iter().all(|report| report.log_bytes > 0) && written.len() == 2);
    assert_eq!(all[12].pattern, "overwrite");
    let table = goals::table(&config, &goals, &all);
    assert_eq!(table.lines().count(), 1 + 4 + 1, "{table}");
    for rounds in [0, 11] {
        assert!(goals::run(&config, rounds, &device(), &device()).is_err());
    }
}

#[test]
fn a_compressed_file_is_judged_beside_a_plain_one() {
    let made = std::cell::RefCell::new(Vec::new());
    let (goals, all) = goals::run_compressed(&config(&[]), 2, [&device(), &device()], &|_, is_compressed| {
        made.borrow_mut().push(is_compressed);
        Ok(lacuna_device::MemVfs::new())
    })
    .unwrap();
    assert_eq!((goals.len(), all.len()), (6, 2 * 2 * 4));
    assert_eq!(made.into_inner(), [true, false].repeat(2 * 2 * 4));
    for goal in &goals {
        assert!(goal.values["compressed"].len() == 2 && goal.values["plain"].len() == 2, "{goal:?}");
    }
    assert!(all.iter().step_by(2).all(|report| report.target == "compressed"));
    let table = goals::compression_table(&goals);
    assert_eq!(table.lines().count(), 1 + 6, "{table}");
}

#[test]
fn overwrites_write_what_they_should_and_skew_helps() {
    let run = |skew| {
        let config = Config { skew, ..config(&[Pattern::Overwrite]) };
        let report = run(&config, &device(), None).unwrap().remove(0);
        assert_eq!(report.requests, 2 * BYTES / (16 << 10));
        assert_eq!(report.span_bytes, BYTES * 50 / 100 / (16 << 10) * (16 << 10));
        assert!(report.gc_bytes > 0, "{report:?}");
        report
    };
    run(Skew::Uniform);
    run(Skew::Zipf(0.99));
}

#[test]
fn nonsense_and_full_stores_are_named() {
    let bad = |config: Config| run(&config, &device(), None).unwrap_err().to_string();
    assert!(bad(Config { block_bytes: 1000, ..config(&[]) }).contains("1000"));
    assert!(bad(Config { live_percent: 0, ..config(&[]) }).contains("0%"));
    let full = Config { live_percent: 99, ..config(&[Pattern::Overwrite]) };
    let error = run(&full, &device(), None).unwrap_err();
    assert!(format!("{error:#}").contains("no space left"), "{error:#}");
    assert!(bad(Config { threads: 100_000, ..config(&[Pattern::RandomRead]) }).contains("memory device"));
    for (text, skew) in [("uniform", Skew::Uniform), ("zipf:0.99", Skew::Zipf(0.99))] {
        assert_eq!((text.parse(), skew.to_string()), (Ok(skew), text.to_owned()));
    }
    for text in ["", "zipf", "zipf:", "zipf:1", "zipf:0", "zipf:nan", "pareto"] {
        assert!(text.parse::<Skew>().is_err(), "{text}");
    }
}
