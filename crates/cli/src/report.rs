//! The results of an evaluation as a page.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lacuna_report::Evaluation;

use crate::output::{write_json, write_report};

/// Draw what ./evaluate measured as one page, beside the papers' figures
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory that ./evaluate keeps its results in
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Write figures and claims as text (Markdown) to this file, too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write all results and verdicts to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write all numbers to this file, too
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let evaluation = Evaluation::read(&arguments.directory)?;
    if let Some(path) = &arguments.json {
        write_json(path, &evaluation.json()?)?;
    }
    if let Some(path) = &arguments.csv {
        write_report(path, &lacuna_report::csv(&evaluation))?;
    }
    if let Some(path) = &arguments.markdown {
        write_report(path, &lacuna_report::markdown(&evaluation))?;
    }
    write_report(&arguments.output, &lacuna_report::html(&evaluation))
}
