//! The papers' figures, drawn again: what they print beside what was measured here.
//!
//! Where a paper prints no number for a bar, it has none here, and the words of the paper stand below. Numbers are never
//! read off a picture.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    evaluation::{Evaluation, Measured, ratio, variant},
    html::escape,
    svg::{self, Line, Row, Scale},
};

/// A figure.
pub(crate) struct Figure {
    pub(crate) title: &'static str,
    /// By the tags of docs/SOURCES.md.
    pub(crate) source: &'static str,
    /// The steps that it is drawn from.
    pub(crate) steps: &'static [&'static str],
    /// What others print, and what to mind.
    pub(crate) words: &'static str,
    pub(crate) drawing: Drawing,
}

pub(crate) enum Drawing {
    Bars { rows: Vec<Row>, reference: Option<f64> },
    Lines { axes: [&'static str; 2], scale: Scale, lines: Vec<Line> },
}

impl Drawing {
    pub(crate) fn svg(&self, id: &str, title: &str) -> String {
        match self {
            Drawing::Bars { rows, reference } => svg::bars(id, title, rows, *reference),
            Drawing::Lines { axes, scale, lines } => svg::lines(id, title, *axes, *scale, lines),
        }
    }

    /// Whether anything in it was measured.
    pub(crate) fn is_measured(&self) -> bool {
        match self {
            Drawing::Bars { rows, .. } => rows.iter().any(|row| row.ours.estimate.is_some()),
            Drawing::Lines { lines, .. } => lines.iter().any(|line| !line.points.is_empty()),
        }
    }

    /// What failed, where nothing was measured.
    pub(crate) fn failures(&self) -> BTreeSet<&str> {
        match self {
            Drawing::Bars { rows, .. } => {
                rows.iter().flat_map(|row| &row.ours.why).map(String::as_str).collect()
            }
            Drawing::Lines { .. } => BTreeSet::new(),
        }
    }

    /// The same numbers as a table.
    pub(crate) fn table(&self) -> String {
        let cells = |tag: &str, cells: &[String]| {
            let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
            format!("<tr>{}</tr>", cells.collect::<String>())
        };
        match self {
            Drawing::Bars { rows, .. } => {
                let head = cells("th", &["", "printed", "ours (90% interval)"].map(str::to_owned));
                let row = |row: &Row| {
                    let printed = row.printed.map_or_else(|| "-".to_owned(), svg::range);
                    let ours = svg::ours(&row.ours, "not run");
                    cells("td", &[row.label.clone(), printed, ours])
                };
                format!("<table>{head}{}</table>", rows.iter().map(row).collect::<String>())
            }
            Drawing::Lines { axes, lines, .. } => {
                let head = cells("th", &["".to_owned(), axes[0].to_owned(), axes[1].to_owned()]);
                let row = |line: &Line, [x, y]: [f64; 2]| {
                    cells("td", &[line.label.clone(), svg::plain(x), crate::html::digits(y)])
                };
                let rows =
                    lines.iter().flat_map(|line| line.points.iter().map(move |point| row(line, *point)));
                format!("<table>{head}{}</table>", rows.collect::<String>())
            }
        }
    }
}

const RATE: &str = "/ops_per_second";

/// All of them.
pub(crate) fn all(evaluation: &Evaluation) -> Vec<Figure> {
    let groups = [
        linkbench(evaluation),
        switches(evaluation),
        codecs(evaluation),
        tpcc(evaluation),
        storage(evaluation),
        others(evaluation),
    ];
    groups.into_iter().flatten().collect()
}

fn row(label: impl Into<String>, printed: Option<[f64; 2]>, ours: Measured) -> Row {
    Row { label: label.into(), printed, ours }
}

fn once(value: f64) -> Option<[f64; 2]> {
    Some([value, value])
}

fn linkbench(evaluation: &Evaluation) -> Vec<Figure> {
    let of = |step: &str, first: &str, second: &str, figure: &str| {
        evaluation.measure(step, ratio(first, second, figure))
    };
    let rate = |first: &str, second: &str| of("linkbench", first, second, RATE);
    let room = |first: &str, second: &str| of("linkbench", first, second, "/allocated_bytes");
    let written =
        |step: &str, first: &str, second: &str| of(step, first, second, "/device_bytes_written_per_op");
    const RUN: &[&str] = &["linkbench"];
    vec![
        Figure {
            title: "LinkBench, requests per second",
            source: "I fig. 7; N fig. 6; O",
            steps: RUN,
            words: "Ratios; above 1 the first is faster. I compresses both sides by LZ77, N and O page tables by lz4 and \
                    row tables by zlib. In the papers row tables have a doublewrite buffer and one flusher.",
            drawing: Drawing::Bars {
                rows: vec![
                    row("page : row, I; zlib on both sides", once(2.25), rate("page-zlib", "row")),
                    row("page : row, N; lz4, equal terms", once(1.3), rate("page", "row")),
                    row("page : row, O; lz4, as the papers ran it", once(3.0), rate("page", "row-papers")),
                    row("page : plain, I; zlib", once(0.95), rate("page-zlib", "plain")),
                    row("page : plain, N; lz4", once(0.94), rate("page", "plain")),
                ],
                reference: Some(1.0),
            },
        },
        Figure {
            title: "LinkBench where the device is short, page : plain",
            source: "",
            steps: &["linkbench", "full", "volume"],
            words: "Ratios of requests per second. Full: 75% of the device is live, and the log has wrapped. Volume: reads and \
                    writes are limited to 3,000 a second and 125 MB/s each, as clouds sell it; with a chunk cache two \
                    thirds of the pool's memory hold pages as they are stored.",
            drawing: Drawing::Bars {
                rows: vec![
                    row("processor-bound", None, rate("page", "plain")),
                    row("full device", None, of("full", "page", "plain", RATE)),
                    row("volume", None, of("volume", "page", "plain", RATE)),
                    row("volume, chunk cache", None, of("volume", "page-cached", "plain", RATE)),
                ],
                reference: Some(1.0),
            },
        },
        Figure {
            title: "Mean latency by operation, page : plain",
            source: "I fig. 8; N fig. 7",
            steps: RUN,
            words: "Below 1 page tables answer sooner. Printed: \"generally comparable to those of Uncompressed\".",
            drawing: by_operation(evaluation, "mean_us", ["page", "plain"], None, 1.0),
        },
        Figure {
            title: "99th percentile of latency by operation, row : page",
            source: "I fig. 9",
            steps: RUN,
            words: "Above 1 page tables are sooner. Printed for all operations together: 2.5 to 5.5 times lower.",
            drawing: by_operation(evaluation, "p99_us", ["row", "page"], Some([2.5, 5.5]), 1.0),
        },
        Figure {
            title: "Written to the device over time, KB per request",
            source: "I fig. 10; N fig. 8",
            steps: RUN,
            words: "Printed without numbers: page tables write far less than plain ones, row tables more than plain \
                    ones. The first round that has it.",
            drawing: Drawing::Lines {
                axes: ["seconds", "KB per request"],
                scale: Scale::Linear,
                lines: over_time(
                    evaluation,
                    "linkbench",
                    &["plain", "row", "page", "plain-doublewrite"],
                    |window| {
                        let requests = window["requests"].as_f64().filter(|requests| *requests > 0.0)?;
                        Some(window["device_bytes_written"].as_f64()? / requests / 1e3)
                    },
                ),
            },
        },
        Figure {
            title: "Written to the device for each request",
            source: "I; N; S",
            steps: &["linkbench", "full"],
            words: "How many times more the first writes.",
            drawing: Drawing::Bars {
                rows: vec![
                    row(
                        "plain with doublewrite : page",
                        once(4.0),
                        written("linkbench", "plain-doublewrite", "page"),
                    ),
                    row("the same on a full device", None, written("full", "plain-doublewrite", "page")),
                    row("plain : page", None, written("linkbench", "plain", "page")),
                    row("row : page", None, written("linkbench", "row", "page")),
                ],
                reference: Some(1.0),
            },
        },
        Figure {
            title: "Room",
            source: "I fig. 12; N fig. 5; O",
            steps: RUN,
            words: "Ratios of live bytes; below 1 the first takes less.",
            drawing: Drawing::Bars {
                rows: vec![
                    row("page : row, I; zlib on both sides", once(0.81), room("page-zlib", "row")),
                    row("page : row, N; lz4 against zlib", Some([0.77, 0.97]), room("page", "row")),
                    row("page : row, O; lz4 against zlib", once(1.015), room("page", "row")),
                    row("page : plain, lz4", None, room("page", "plain")),
                ],
                reference: Some(1.0),
            },
        },
        flash(evaluation),
        efficiency(evaluation),
        Figure {
            title: "99th percentile over time at a fixed rate, ms",
            source: "S",
            steps: &["rate"],
            words: "Printed: atomic writes are lower and steadier than doublewrite. Latency counts from when a request \
                    was due. The first round that has it.",
            drawing: Drawing::Lines {
                axes: ["seconds", "p99, ms"],
                scale: Scale::Linear,
                lines: over_time(evaluation, "rate", &["plain", "plain-doublewrite"], |window| {
                    Some(window["p99_us"].as_f64()? / 1e3)
                }),
            },
        },
    ]
}

/// What reaches the flash of a drive, which moves data itself.
fn flash(evaluation: &Evaluation) -> Figure {
    const KINDS: [(&str, &str); 4] = [
        ("xfs/plain-doublewrite", "XFS, plain with doublewrite"),
        ("xfs/row-doublewrite", "XFS, row with doublewrite"),
        ("plain", "nvmfs, plain"),
        ("page", "nvmfs, page"),
    ];
    let of = |kind: &'static str, figure: &'static str| {
        evaluation.measure("flash", move |result| {
            let runs = result["runs"].as_array()?;
            Some(runs.iter().find(|run| run["variant"] == kind)?.pointer(figure)?.as_f64()? / 1e3)
        })
    };
    let rows = KINDS.into_iter().flat_map(|(kind, named)| {
        [
            row(format!("{named}: device"), None, of(kind, "/device_bytes_per_op")),
            row(format!("{named}: flash"), None, of(kind, "/flash_bytes_per_op")),
            row(
                format!("{named}: flash, no discards"),
                None,
                of(kind, "/flash_bytes_per_op_without_discards"),
            ),
        ]
    });
    Figure {
        title: "Written to device and flash for each request, KB, on an SSD that is 75% full",
        source: "N; S",
        steps: &["flash"],
        words: "Flash is that of a modelled drive, fed with what the kernel recorded of the device: 7% of over-provisioning, \
                pages of 16 KiB, erase blocks of 8 MiB. How long a drive lives goes with its inverse. Printed: about 4 \
                times longer.",
        drawing: Drawing::Bars { rows: rows.collect(), reference: None },
    }
}

/// Processor time, energy and temperature.
fn efficiency(evaluation: &Evaluation) -> Figure {
    let per_request = |pointer: &'static str, [first, second]: [&'static str; 2]| {
        evaluation.measure("linkbench", move |result| {
            let of = |name| {
                let run = variant(result, name)?;
                Some(
                    run.pointer(pointer)?.as_f64()?
                        / run["requests"].as_f64().filter(|count| *count > 0.0)?,
                )
            };
            of(second).filter(|below| *below > 0.0).and_then(|below| Some(of(first)? / below))
        })
    };
    let (plain, of_row) = (["page", "plain"], ["page", "row"]);
    Figure {
        title: "Processor time, energy and temperature",
        source: "I table 3, fig. 13",
        steps: &["linkbench"],
        words: "Ratios for each request; below 1 page tables take less. Printed: page tables take slightly less processor \
                time than plain ones, and the drive 3 to 16% less power and heat. Energy is that of processors and memory; it \
                and the temperature are there where the machine has such counters.",
        drawing: Drawing::Bars {
            rows: vec![
                row("processor time, page : plain", None, per_request("/cpu_seconds", plain)),
                row("processor time, page : row", None, per_request("/cpu_seconds", of_row)),
                row("energy, page : plain", None, per_request("/energy_joules", plain)),
                row(
                    "drive, degrees Celsius, page : plain",
                    None,
                    evaluation.measure("linkbench", ratio("page", "plain", "/drive_celsius")),
                ),
            ],
            reference: Some(1.0),
        },
    }
}

/// A bar for each operation of LinkBench.
fn by_operation(
    evaluation: &Evaluation,
    figure: &str,
    [first, second]: [&str; 2],
    all: Option<[f64; 2]>,
    reference: f64,
) -> Drawing {
    const OPERATIONS: [&str; 10] = [
        "add_node",
        "update_node",
        "delete_node",
        "get_node",
        "add_link",
        "delete_link",
        "update_link",
        "count_link",
        "get_link",
        "get_link_list",
    ];
    let mut rows: Vec<Row> = OPERATIONS
        .iter()
        .map(|operation| {
            let pointer = format!("/ops/{operation}/{figure}");
            row(
                operation.replace('_', " "),
                None,
                evaluation.measure("linkbench", ratio(first, second, &pointer)),
            )
        })
        .collect();
    if let Some(printed) = all {
        let least = |result: &Value| {
            let of = |operation: &&str| ratio(first, second, &format!("/ops/{operation}/{figure}"))(result);
            OPERATIONS.iter().map(of).collect::<Option<Vec<f64>>>()?.into_iter().min_by(f64::total_cmp)
        };
        rows.insert(
            0,
            row("all operations; ours: the least", Some(printed), evaluation.measure("linkbench", least)),
        );
    }
    Drawing::Bars { rows, reference: Some(reference) }
}

/// The first round's windows.
fn over_time(
    evaluation: &Evaluation,
    step: &str,
    variants: &[&str],
    figure: impl Fn(&Value) -> Option<f64>,
) -> Vec<Line> {
    let Some(result) = evaluation.results(step).next() else { return Vec::new() };
    let line = |name: &&str| {
        let windows = variant(result, name)?.pointer("/over_time/windows")?.as_array()?;
        let mut ended = 0.0;
        let points = windows.iter().filter_map(|window| {
            ended += window["seconds"].as_f64()?;
            Some([(ended * 10.0).round() / 10.0, figure(window)?])
        });
        Some(Line { label: (*name).to_owned(), points: points.collect() })
    };
    variants.iter().filter_map(line).collect()
}

fn switches(evaluation: &Evaluation) -> Vec<Figure> {
    let rate = |first: &str, second: &str| evaluation.measure("ablations", ratio(first, second, RATE));
    const RUN: &[&str] = &["ablations"];
    vec![
        Figure {
            title: "Atomic writes and trims alone",
            source: "N fig. 3",
            steps: RUN,
            words: "Ratios of LinkBench's requests per second; above 1 the mechanism gains.",
            drawing: Drawing::Bars {
                rows: vec![
                    row("atomic writes : doublewrite, plain", once(1.13), rate("plain", "plain-doublewrite")),
                    row("atomic writes : doublewrite, row", once(1.04), rate("row", "row-doublewrite")),
                    row("atomic writes : doublewrite, page", once(1.03), rate("page", "page-doublewrite")),
                    row("trims : none, page", once(1.07), rate("page", "page-no-trim")),
                ],
                reference: Some(1.0),
            },
        },
        Figure {
            title: "One switch at a time, page-compressed tables",
            source: "O; M",
            steps: RUN,
            words: "Requests per second with all, over those without the one. Below 1 it costs. O prints what compression \
                    costs, 15%, and what holes cost on NVMFS, 25%; M prints a gain of about 30% by atomic writes.",
            drawing: Drawing::Bars {
                rows: vec![
                    row("compression", once(0.85), rate("page", "page-none")),
                    row("trim", once(0.75), rate("page", "page-no-trim")),
                    row("atomic writes", once(1.3), rate("page", "page-no-atomic")),
                    row("packing", None, rate("page", "page-no-packing")),
                    row("a flusher for each processor : one", None, rate("page", "page-one-flusher")),
                    row("checksums", None, rate("page", "page-no-checksums")),
                ],
                reference: Some(1.0),
            },
        },
    ]
}

fn codecs(evaluation: &Evaluation) -> Vec<Figure> {
    const NAMES: [&str; 7] = ["lz4", "snappy", "lzo", "zstd", "zlib", "bzip2", "lzma"];
    let bars = |pointer: &str| {
        let of = |name: &&str| {
            let variant = format!("page-{name}");
            row(*name, None, evaluation.measure("algorithms", ratio(&variant, "page-none", pointer)))
        };
        Drawing::Bars { rows: NAMES.iter().map(of).collect(), reference: Some(1.0) }
    };
    let figure =
        |title, source, words, drawing| Figure { title, source, steps: &["algorithms"], words, drawing };
    vec![
        figure(
            "Load time by algorithm, over that without compression",
            "N fig. 4",
            "Below 1 loading is faster. Printed: faster than plain at least with lz4, lzo and bzip2; lzma left out, for it \
             took 7,800 s.",
            bars("/load_seconds"),
        ),
        figure(
            "Room by algorithm, over that without compression",
            "N fig. 5",
            "Printed: row compression saves 32 to 48%, and page compression another 3 to 23%; lzma is the smallest by a \
             little.",
            bars("/allocated_bytes"),
        ),
        Figure {
            title: "Room of data that no generator made, over plain tables",
            source: "",
            steps: &["datasets"],
            words: "WordNet's nouns and the stars of two catalogues, after every row was overwritten once, on average, by \
                    another.",
            drawing: Drawing::Bars { rows: datasets(evaluation), reference: Some(1.0) },
        },
        figure(
            "LinkBench by algorithm, over that without compression",
            "N fig. 6",
            "Requests per second. Printed: lz4 is the fastest, 6% below plain; bzip2 and lzma are slow.",
            bars(RATE),
        ),
    ]
}

fn datasets(evaluation: &Evaluation) -> Vec<Row> {
    let of = |(set, data): (&str, &str)| {
        let kinds = [
            ("row", "row, zlib"),
            ("page", "page, lz4"),
            ("page-no-packing", "page, lz4, not packed"),
            ("page-zstd", "page, zstd"),
        ];
        kinds.map(|(kind, named)| {
            let (first, second) = (format!("{set}/{kind}"), format!("{set}/plain"));
            let room = ratio(&first, &second, "/overwrite/allocated_bytes");
            row(format!("{data}: {named}"), None, evaluation.measure("datasets", room))
        })
    };
    [("nouns", "text"), ("stars", "numbers")].into_iter().flat_map(of).collect()
}

fn tpcc(evaluation: &Evaluation) -> Vec<Figure> {
    const ORDERS: &str = "/new_orders_per_minute";
    let rate = |first: &str, second: &str| evaluation.measure("tpcc", ratio(first, second, ORDERS));
    vec![
        Figure {
            title: "TPC-C style, new-orders per minute",
            source: "I fig. 11; N fig. 9, 10; S",
            steps: &["tpcc"],
            words: "Ratios. In the style of TPC-C, and not certified.",
            drawing: Drawing::Bars {
                rows: vec![
                    row("page : row, I", once(1.86), rate("page", "row")),
                    row("page : row, N", Some([5.0, 7.0]), rate("page", "row")),
                    row("page : row, S", once(5.0), rate("page", "row")),
                    row("page : plain, I", once(0.88), rate("page", "plain")),
                    row("page : plain, N", once(0.97), rate("page", "plain")),
                ],
                reference: Some(1.0),
            },
        },
        Figure {
            title: "TPC-C style by number of clients",
            source: "N fig. 11",
            steps: &["clients"],
            words: "New-orders per minute. Printed: page tables do 3 to 5 times what row tables do, and more than plain ones \
                    beyond as many clients as cores. The first round that has it.",
            drawing: Drawing::Lines {
                axes: ["clients", "new-orders per minute"],
                scale: Scale::Logarithmic,
                lines: by_clients(evaluation),
            },
        },
    ]
}

fn by_clients(evaluation: &Evaluation) -> Vec<Line> {
    let Some(result) = evaluation.results("clients").next() else { return Vec::new() };
    let runs = result["runs"].as_array().map_or(&[][..], Vec::as_slice);
    let line = |kind: &str| {
        let point = |entry: &Value| {
            let (name, clients) = entry["variant"].as_str()?.split_once('@')?;
            let clients = clients.parse().ok().filter(|_| name == kind)?;
            Some([clients, entry.pointer("/report/runs/0/new_orders_per_minute")?.as_f64()?])
        };
        let mut points: Vec<[f64; 2]> = runs.iter().filter_map(point).collect();
        points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        Line { label: kind.to_owned(), points }
    };
    ["plain", "page", "row"].into_iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

/// Engines and servers as their makers ship them, each that was run.
fn others(evaluation: &Evaluation) -> Vec<Figure> {
    let rows = |step: &'static str, name: &'static str, pointer: &'static str, unit: f64| {
        let mut names: Vec<&str> = Vec::new();
        for run in evaluation.results(step).filter_map(|result| result["runs"].as_array()).flatten() {
            names.extend(run[name].as_str().filter(|name| !names.contains(name)));
        }
        let of = |wanted: &str| {
            let run = |result: &Value| -> Option<Value> {
                result["runs"].as_array()?.iter().find(|run| run[name] == *wanted).cloned()
            };
            let figure = |result: &Value| Some(run(result)?.pointer(pointer)?.as_f64()? / unit);
            let error = |result: &Value| Some(run(result)?["error"].as_str()?.to_owned());
            row(wanted, None, evaluation.measure_or(step, figure, error))
        };
        Drawing::Bars { rows: names.into_iter().map(of).collect(), reference: None }
    };
    let figure = |title, steps, words, drawing| Figure { title, source: "", steps, words, drawing };
    const PEERS: &[&str] = &["peers"];
    const MARIADB: &[&str] = &["mariadb"];
    let peers = |pointer, unit| rows("peers", "contestant", pointer, unit);
    let servers = |pointer, unit| rows("mariadb", "file_system", pointer, unit);
    let sql = "Page-compressed by lz4, unless the name says other tables. myrocks is MyRocks.";
    vec![
        figure(
            "LinkBench on other engines: requests per second",
            PEERS,
            "Equal memory, equal durability; compare/README.md says how each is set up.",
            peers("/run/ops_per_second", 1.0),
        ),
        figure(
            "LinkBench on other engines: room, MB",
            PEERS,
            "Live bytes of ours, files of the others.",
            peers("/run/allocated_bytes", 1e6),
        ),
        figure(
            "LinkBench through SQL on MariaDB: requests per second",
            MARIADB,
            sql,
            servers("/linkbench/runs/0/ops_per_second", 1.0),
        ),
        figure(
            "LinkBench through SQL on MariaDB: KB written for each request",
            MARIADB,
            sql,
            servers("/linkbench/runs/0/device_bytes_written_per_op", 1e3),
        ),
        figure("LinkBench through SQL on MariaDB: tables, MB", MARIADB, sql, servers("/tables_bytes", 1e6)),
    ]
}

fn storage(evaluation: &Evaluation) -> Vec<Figure> {
    const SYSTEMS: [(&str, &str); 4] = [
        ("nvmfs in-process", "nvmfs in-process"),
        ("fuse.lacuna", "nvmfs mounted"),
        ("xfs", "XFS"),
        ("ext4", "ext4"),
    ];
    let trims = |experiment: &'static str, trim: u64, figure: fn(&Value) -> Option<f64>| {
        let of = move |system: &'static str| {
            evaluation.measure("trim", move |result| {
                let is_one = |entry: &&Value| {
                    entry["file_system"] == system
                        && entry["experiment"] == experiment
                        && entry["trim_bytes"] == trim
                };
                figure(result["runs"].as_array()?.iter().find(is_one)?)
            })
        };
        SYSTEMS.map(|(system, name)| (name, of(system)))
    };
    let rows_of = |figure: fn(&Value) -> Option<f64>| {
        let of = |(trim, named): (u64, &str)| {
            trims("beside", trim, figure).map(|(name, ours)| row(format!("{named}, {name}"), None, ours))
        };
        [(1 << 10, "1 KiB"), (4 << 10, "4 KiB"), (12 << 10, "12 KiB")].map(of).into_iter().flatten().collect()
    };
    let then = trims("then", 4096, |entry| entry["operations_per_second"].as_f64());
    let scans = |system: &'static str, experiment: &'static str| {
        evaluation.measure("trim", move |result| {
            let is_one = |entry: &&Value| entry["file_system"] == system && entry["experiment"] == experiment;
            result["runs"].as_array()?.iter().find(is_one)?["operations_per_second"].as_f64()
        })
    };
    let scans = SYSTEMS.iter().flat_map(|(system, name)| {
        ["scan: as loaded", "scan: aged"]
            .map(|run| row(format!("{name}, {}", &run["scan: ".len()..]), None, scans(system, run)))
    });
    let goal = |number: usize| {
        evaluation.measure("goals", move |result| {
            let side = |side: &str| result.pointer(&format!("/goals/{number}/{side}/0"))?.as_f64();
            side("raw").filter(|raw| *raw > 0.0).and_then(|raw| Some(side("ftl")? / raw))
        })
    };
    vec![
        Figure {
            title: "16 KiB writes beside trims: run time, seconds",
            source: "I fig. 14",
            steps: &["trim"],
            words: "ext4 and XFS write each block through to the device; nvmfs takes blocks into memory and is synced once, at \
                    the end. Printed without numbers: NVMFS takes the less the more is trimmed, and the others are slow \
                    at 1 KiB.",
            drawing: Drawing::Bars { rows: rows_of(|entry| entry["seconds"].as_f64()), reference: None },
        },
        Figure {
            title: "16 KiB writes beside trims: written for each block, bytes",
            source: "I fig. 14",
            steps: &["trim"],
            words: "Printed: NVMFS writes less and reads nothing. Reads are judged below, among the claims.",
            drawing: Drawing::Bars {
                rows: rows_of(|entry| {
                    let blocks = entry["operations"].as_f64().filter(|blocks| *blocks > 0.0)?;
                    Some(entry["device_written_bytes"].as_f64()? / blocks)
                }),
                reference: Some(16384.0),
            },
        },
        Figure {
            title: "16 KiB direct write, then a trim of 4 KiB: blocks per second",
            source: "S",
            steps: &["trim"],
            words: "As above, nvmfs is synced once, at the end. Printed as a picture: NVMFS about 2 times XFS.",
            drawing: Drawing::Bars {
                rows: then.into_iter().map(|(name, ours)| row(name, None, ours)).collect(),
                reference: None,
            },
        },
        Figure {
            title: "Scans after months of holes: blocks per second",
            source: "O, as a question",
            steps: &["trim"],
            words: "A file whose blocks of 16 KiB take 4 to 12 KiB and end in a hole is read from front to back by direct reads \
                    of 1 MiB: as it was loaded in order, and after every block was written four times more, in scattered \
                    order, with another size each time.",
            drawing: Drawing::Bars { rows: scans.collect(), reference: None },
        },
        Figure {
            title: "4 KiB append and sync, over the bare device",
            source: "S",
            steps: &["goals"],
            words: "Ours is the ftl beside overwriting in place. Printed for XFS: 0.36 of the requests and 1.38 of the bytes.",
            drawing: Drawing::Bars {
                rows: vec![row("requests", once(0.97), goal(2)), row("bytes written", once(1.0), goal(3))],
                reference: Some(1.0),
            },
        },
        Figure {
            title: "The ftl over the bare device",
            source: "",
            steps: &["goals"],
            words: "Random writes of 16 KiB beside the device's sequential bandwidth; random reads of 16 KiB beside the same.",
            drawing: Drawing::Bars {
                rows: vec![row("random writes", None, goal(0)), row("random reads", None, goal(1))],
                reference: Some(1.0),
            },
        },
    ]
}
