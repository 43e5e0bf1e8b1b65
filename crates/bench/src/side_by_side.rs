//! A table for people: one row per figure, one column per run.

use std::fmt::Write;

/// The table; with two runs or more, the last column is last over first.
pub(crate) struct SideBySide<'r, R> {
    runs: &'r [R],
    text: String,
}

impl<'r, R> SideBySide<'r, R> {
    pub(crate) fn new(runs: &'r [R], title: impl Fn(&R) -> String) -> Self {
        let titles: Vec<String> = runs.iter().map(title).collect();
        let ratio_title = match &titles[..] {
            [first, .., last] => format!("{last} : {first}"),
            _ => String::new(),
        };
        let mut table = SideBySide { runs, text: String::new() };
        table.line("", &titles, &ratio_title);
        table
    }

    pub(crate) fn runs(&self) -> &'r [R] {
        self.runs
    }

    /// A figure of every run, with so many digits after the point.
    pub(crate) fn row(&mut self, name: &str, digits: usize, value: impl Fn(&R) -> f64) {
        let values: Vec<f64> = self.runs.iter().map(value).collect();
        let cells: Vec<String> = values.iter().map(|value| format!("{value:.digits$}")).collect();
        let ratio = match values[..] {
            [first, .., last] if first > 0.0 => format!("{:.2}", last / first),
            _ => String::new(),
        };
        self.line(name, &cells, &ratio);
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, name: &str, cells: &[String], ratio: &str) {
        let _ = write!(self.text, "{name:<38}");
        for cell in cells {
            let _ = write!(self.text, "{cell:>14}");
        }
        let _ = writeln!(self.text, "{ratio:>18}");
    }
}

/// Name of a run: its kind of tables, and the compression if there is one.
pub(crate) fn title(tables: &str, algorithm: &str) -> String {
    if algorithm == "none" { tables.to_owned() } else { format!("{tables}/{algorithm}") }
}
