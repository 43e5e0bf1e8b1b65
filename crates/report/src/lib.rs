//! The results of `./evaluate` as one page, and as text: figures, claims, machine, raw numbers.
//!
//! 1. [`Evaluation::read`] reads a directory, and is the only part that does. What is no result of the evaluation is an
//!    error that names the file. Files are data of strangers: each is bounded, and none is trusted.
//! 2. [`html()`], [`markdown()`] and [`csv()`] are functions from values to text. Every text that comes from a file goes
//!    through `html::escape` on its way into the page, so no file can add markup to it, or make it load anything.
//! 3. Figures are drawn as SVG inside the page, with a title, a description and a table of the same numbers. A figure
//!    that was not measured is there and says so.
//!
//! The verdicts are those of [`lacuna_bench::proof`], which `lacuna verdict` prints.
//!
//! layers: evaluation, html < csv, svg < figures, words < markdown, page

#[cfg(test)]
mod tests;

mod csv;
mod evaluation;
mod figures;
mod html;
mod markdown;
mod page;
mod svg;
mod words;

pub use csv::csv;
pub use evaluation::{Evaluation, Status, Step};
pub use markdown::markdown;
pub use page::html;
