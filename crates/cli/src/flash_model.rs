use std::{fmt::Write, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lacuna_bench::{
    flash::{FlashModel, FlashOptions, FlashReport, live_bytes_peak},
    trace::{BlockEvents, TraceOp, TraceReader, TraceSource},
};
use serde_json::{Value, json};

use crate::{say, size::Size};

/// Show what a write trace (see --trace of linkbench and iobench) costs a modelled SSD
#[derive(Args)]
pub(crate) struct Arguments {
    /// A trace
    trace: PathBuf,
    /// The trace is the kernel's record of a block device: what trace_pipe gives of its events block_rq_complete
    #[arg(long)]
    block_events: bool,
    /// Flash page: the unit of programming
    #[arg(long, default_value = "16K")]
    page: Size,
    /// Erase block: the unit of erasing, over all chips that the drive stripes over
    #[arg(long, default_value = "8M")]
    erase_block: Size,
    /// Flash beyond the capacity, in percent
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(..=1000))]
    over_provisioning: u64,
    /// Write buffer of the drive
    #[arg(long, default_value = "1M")]
    buffer: Size,
    /// Capacity of the drive; by default that of the traced device, or, where the trace does not name one (of a
    /// directory, or of block events), the most that was live at any time
    #[arg(long)]
    capacity: Option<Size>,
    /// The drive was written full before, so what the trace neither writes nor discards is data to keep
    #[arg(long)]
    preconditioned: bool,
    /// The drive hears of no discards
    #[arg(long)]
    no_discards: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let name = arguments.trace.display().to_string();
    let options = FlashOptions {
        page_bytes: arguments.page.0,
        erase_block_bytes: arguments.erase_block.0,
        over_provisioning_percent: arguments.over_provisioning,
        buffer_bytes: arguments.buffer.0,
    };
    let (source, trace) = open(arguments)?;
    let capacity_bytes = match (arguments.capacity, source) {
        (Some(capacity), _) => capacity.0,
        (None, Some(TraceSource::Device { capacity_bytes })) => capacity_bytes,
        (None, _) => live_bytes_peak(open(arguments)?.1, options.page_bytes)?,
    };
    let mut model = FlashModel::new(capacity_bytes, options).with_context(|| name.clone())?;
    if arguments.preconditioned {
        model.precondition().with_context(|| name.clone())?;
    }
    for op in trace {
        model.apply(op?).with_context(|| name.clone())?;
    }
    let report = model.report().with_context(|| name.clone())?;
    if arguments.json {
        return say(&(serde_json::to_string_pretty(&as_json(&name, source, &options, &report))? + "\n"));
    }
    say(&text(&name, &options, &report))
}

type Operations = Box<dyn Iterator<Item = lacuna_device::Result<TraceOp>>>;

/// The trace as the drive hears it, and what it says of its source: a record of the kernel says nothing.
fn open(arguments: &Arguments) -> Result<(Option<TraceSource>, Operations)> {
    let (source, all): (_, Operations) = if arguments.block_events {
        (None, Box::new(BlockEvents::open(&arguments.trace)?))
    } else {
        let trace = TraceReader::open(&arguments.trace)?;
        (Some(trace.source()), Box::new(trace))
    };
    let is_heard = |op: &lacuna_device::Result<TraceOp>| !matches!(op, Ok(TraceOp::Discard { .. }));
    Ok((source, if arguments.no_discards { Box::new(all.filter(is_heard)) } else { all }))
}

fn as_json(name: &str, source: Option<TraceSource>, options: &FlashOptions, report: &FlashReport) -> Value {
    json!({
        "trace": name,
        "source": match source {
            Some(TraceSource::Device { .. }) => "device",
            Some(TraceSource::Files) => "files",
            None => "block events",
        },
        "page_bytes": options.page_bytes,
        "erase_block_bytes": options.erase_block_bytes,
        "over_provisioning_percent": options.over_provisioning_percent,
        "buffer_bytes": options.buffer_bytes,
        "capacity_bytes": report.capacity_bytes,
        "blocks": report.blocks,
        "host_bytes": report.host_bytes,
        "discarded_bytes": report.discarded_bytes,
        "syncs": report.syncs,
        "live_bytes": report.live_bytes,
        "programmed_bytes": report.programmed_bytes,
        "moved_bytes": report.moved_bytes,
        "write_amplification": report.write_amplification(),
        "erases": report.erases,
        "erases_min": report.erases_min,
        "erases_mean": report.erases_mean,
        "erases_max": report.erases_max,
    })
}

fn text(name: &str, options: &FlashOptions, report: &FlashReport) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let mut text = format!(
        "{name}\n  drive: {} blocks of {:.1} MB, {:.1} MB capacity, pages of {} bytes\n",
        report.blocks,
        mb(options.erase_block_bytes),
        mb(report.capacity_bytes),
        options.page_bytes,
    );
    for (title, bytes) in [
        ("written by the host", report.host_bytes),
        ("discarded by the host", report.discarded_bytes),
        ("live at the end", report.live_bytes),
        ("programmed into flash", report.programmed_bytes),
        ("of it moved by the drive", report.moved_bytes),
    ] {
        let _ = writeln!(text, "  {title:<26} {:>12.1} MB", mb(bytes));
    }
    let _ = writeln!(text, "  {:<26} {:>12.3}", "write amplification", report.write_amplification());
    let _ = writeln!(text, "  {:<26} {:>12}", "syncs", report.syncs);
    let _ = writeln!(
        text,
        "  {:<26} {:>12}   per block: {} to {}, {:.2} on average",
        "erases", report.erases, report.erases_min, report.erases_max, report.erases_mean,
    );
    text
}
