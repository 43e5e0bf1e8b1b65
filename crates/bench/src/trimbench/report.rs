//! The experiments' results, as JSON and as a table for people.

use std::{borrow::Cow, fmt::Write};

use serde::{Deserialize, Serialize};

/// Result of one run on one target. Its JSON form is part of the command line's contract.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measured {
    /// Directory or store.
    pub target: String,
    /// Type of the file system.
    pub file_system: String,
    /// Block device or other counter of the traffic; none when it is not counted.
    pub counted_by: Option<String>,
    /// The experiment.
    pub experiment: Cow<'static, str>,
    /// `random` or `zeros`.
    pub data: Cow<'static, str>,
    /// Bytes trimmed off each block; 0 where nothing is trimmed.
    pub trim_bytes: u64,
    /// Threads at work.
    pub threads: u32,
    /// Blocks, requests, appends or holes.
    pub operations: u64,
    /// Run time until all data was durable.
    pub seconds: f64,
    /// Their ratio.
    pub operations_per_second: f64,
    /// Read from the device meanwhile.
    pub device_read_bytes: Option<u64>,
    /// Written to it until all deferred data was written.
    pub device_written_bytes: Option<u64>,
}

impl Measured {
    fn what(&self) -> String {
        let mut what = self.experiment.to_string();
        if self.trim_bytes > 0 {
            let _ = write!(what, " {}", bytes(self.trim_bytes));
        }
        if self.data != "random" {
            let _ = write!(what, " {}", self.data);
        }
        if self.experiment.starts_with("parallel") {
            let _ = write!(what, " x{}", self.threads);
        }
        what
    }
}

fn bytes(bytes: u64) -> String {
    if bytes.is_multiple_of(1024) { format!("{}K", bytes / 1024) } else { bytes.to_string() }
}

/// A table: a line for every run, the targets of one run below each other.
pub fn table(all: &[Measured]) -> String {
    let mut text = String::new();
    let titles = ["seconds", "per second", "read MB", "written MB"];
    line(&mut text, "", "", &titles.map(str::to_owned), "");
    let mut whats: Vec<String> = Vec::new();
    for what in all.iter().map(Measured::what) {
        if !whats.contains(&what) {
            whats.push(what);
        }
    }
    for what in whats {
        for (index, row) in all.iter().filter(|row| row.what() == what).enumerate() {
            let title = if index == 0 { &what[..] } else { "" };
            let traffic = |bytes: Option<u64>| {
                bytes.map_or("?".to_owned(), |bytes| format!("{:.1}", bytes as f64 / 1e6))
            };
            let cells = [
                format!("{:.3}", row.seconds),
                format!("{:.0}", row.operations_per_second),
                traffic(row.device_read_bytes),
                traffic(row.device_written_bytes),
            ];
            line(&mut text, title, &row.file_system, &cells, &row.target);
        }
    }
    text
}

fn line(text: &mut String, what: &str, file_system: &str, cells: &[String; 4], target: &str) {
    let [seconds, rate, read, written] = cells;
    let line = format!("{what:<20}{file_system:<18}{seconds:>10}{rate:>12}{read:>12}{written:>12}  {target}");
    let _ = writeln!(text, "{}", line.trim_end());
}
