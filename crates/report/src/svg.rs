//! Charts. They are narrow, so that a phone shows their text in a readable size, and take their colours from the page.

use std::fmt::Write;

use lacuna_bench::Estimate;

use crate::{
    evaluation::Measured,
    html::{digits, escape},
};

const WIDTH: f64 = 420.0;
/// Where bars begin and end; behind their end is room for the number.
const BAR: [f64; 2] = [4.0, 318.0];

/// A bar of a chart, or two: what others printed, and what was measured here.
pub(crate) struct Row {
    pub(crate) label: String,
    /// From the least to the most.
    pub(crate) printed: Option<[f64; 2]>,
    pub(crate) ours: Measured,
}

/// A line of a chart.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<[f64; 2]>,
}

/// The scale of the other axis.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    Linear,
    /// For steps that double.
    Logarithmic,
}

fn open(text: &mut String, id: &str, height: f64, title: &str, description: &str) {
    let _ = write!(
        text,
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        escape(title),
        escape(description)
    );
}

fn text_at(text: &mut String, class: &str, x: f64, y: f64, content: &str) {
    let _ = write!(text, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(content));
}

fn line_at(text: &mut String, class: &str, from: [f64; 2], to: [f64; 2]) {
    let [x1, y1] = from;
    let [x2, y2] = to;
    let _ =
        write!(text, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

/// Printed figures in words, as they are printed.
pub(crate) fn range([low, high]: [f64; 2]) -> String {
    if low == high { low.to_string() } else { format!("{low} to {high}") }
}

/// A measurement in words.
pub(crate) fn measured(estimate: &Estimate) -> String {
    let [low, high] = estimate.interval;
    if high.is_finite() {
        format!("{} ({} to {})", digits(estimate.median), digits(low), digits(high))
    } else {
        format!("{} (one round)", digits(estimate.median))
    }
}

/// The same, with what failed; `nothing` says that nothing was tried.
pub(crate) fn ours(ours: &Measured, nothing: &str) -> String {
    let measured = ours.estimate.as_ref().map(measured);
    let said: Vec<String> = measured.into_iter().chain(ours.why.iter().cloned()).collect();
    if said.is_empty() { nothing.to_owned() } else { said.join("; ") }
}

/// Bars from the left; with a reference, a line there.
pub(crate) fn bars(id: &str, title: &str, rows: &[Row], reference: Option<f64>) -> String {
    let finite = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    let tops = rows.iter().flat_map(|row| {
        // An interval of few rounds may reach far; it is cut at twice the median. One round has none.
        let ours = row.ours.estimate.as_ref().map(|ours| match ours.interval[1] {
            high if high.is_finite() => high.min(2.0 * ours.median).max(ours.median),
            _ => ours.median,
        });
        [row.printed.map(|[_, high]| high), ours]
    });
    let top = tops.chain([reference]).flatten().filter_map(finite).fold(1e-9, f64::max) * 1.02;
    let x = |value: f64| BAR[0] + (BAR[1] - BAR[0]) * (value / top).clamp(0.0, 1.0);
    let (mut body, mut y) = (String::new(), 4.0);
    let mut described = Vec::new();
    for row in rows {
        text_at(&mut body, "label", BAR[0], y + 11.0, &row.label);
        y += 16.0;
        let mut said = Vec::new();
        if let Some(printed) = row.printed {
            let [low, high] = printed;
            bar(&mut body, "printed", x(0.0), x(high), y);
            if low < high {
                line_at(&mut body, "mark", [x(low), y], [x(low), y + 11.0]);
            }
            text_at(&mut body, "number", BAR[1] + 6.0, y + 9.5, &range(printed));
            said.push(format!("printed {}", range(printed)));
            y += 13.0;
        }
        if let Some(ours) = &row.ours.estimate {
            bar(&mut body, "ours", x(0.0), x(ours.median), y);
            let [low, high] = ours.interval;
            if high.is_finite() {
                line_at(&mut body, "whisker", [x(low), y + 5.5], [x(high), y + 5.5]);
            }
            text_at(&mut body, "number strong", BAR[1] + 6.0, y + 9.5, &digits(ours.median));
        }
        let note = match (&row.ours.estimate, row.ours.why.is_empty()) {
            (Some(_), true) => None,
            (Some(_), false) => Some("not all rounds: see the numbers"),
            (None, true) => Some("ours: not run"),
            (None, false) => Some("failed: see the numbers"),
        };
        if let Some(note) = note {
            y += if row.ours.estimate.is_some() { 13.0 } else { 0.0 };
            text_at(&mut body, "number", BAR[0], y + 9.5, note);
        }
        said.push(format!("ours {}", self::ours(&row.ours, "not run")));
        y += 20.0;
        described.push(format!("{}: {}", row.label, said.join(", ")));
    }
    let mut svg = String::new();
    open(&mut svg, id, y, title, &described.join("; "));
    // Below everything else: texts are drawn over it.
    if let Some(reference) = reference {
        line_at(&mut svg, "reference", [x(reference), 0.0], [x(reference), y - 4.0]);
    }
    svg + &body + "</svg>"
}

fn bar(text: &mut String, class: &str, from: f64, to: f64, y: f64) {
    let width = (to - from).max(0.5);
    let _ = write!(
        text,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"11\"/>"
    );
}

/// Lines over time, or over something else.
pub(crate) fn lines(id: &str, title: &str, axes: [&str; 2], scale: Scale, all: &[Line]) -> String {
    const PLOT: [f64; 4] = [52.0, 410.0, 12.0, 190.0];
    let [left, right, above, below] = PLOT;
    let placed = |x: f64| if scale == Scale::Logarithmic { x.max(1e-9).log2() } else { x };
    let is_point = |point: &&[f64; 2]| point.iter().all(|value| value.is_finite());
    let points = || all.iter().flat_map(|line| &line.points).filter(is_point);
    let (mut first, mut last, mut top) = (f64::INFINITY, f64::NEG_INFINITY, 1e-9_f64);
    for [x, y] in points() {
        (first, last, top) = (first.min(placed(*x)), last.max(placed(*x)), top.max(*y));
    }
    let top = top * 1.05;
    let across =
        |x: f64| left + (right - left) * ((placed(x) - first) / (last - first).max(1e-9)).clamp(0.0, 1.0);
    let up = |y: f64| below - (below - above) * (y / top).clamp(0.0, 1.0);
    let mut body = String::new();
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        line_at(&mut body, "grid", [left, up(value)], [right, up(value)]);
        text_at(&mut body, "tick end", left - 5.0, up(value) + 4.0, &digits(value));
    }
    let mut ticks: Vec<f64> = points().map(|[x, _]| *x).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let mut free = f64::NEG_INFINITY;
    for x in ticks {
        if across(x) >= free {
            text_at(&mut body, "tick middle", across(x), below + 14.0, &plain(x));
            free = across(x) + 36.0;
        }
    }
    text_at(&mut body, "tick middle", f64::midpoint(left, right), below + 30.0, axes[0]);
    let mut y = below + 48.0;
    let mut described = Vec::new();
    for (number, line) in all.iter().enumerate() {
        let class = format!("line s{}", number % 6);
        let mut path = String::new();
        for [x, y] in line.points.iter().filter(is_point) {
            let _ = write!(path, "{:.1},{:.1} ", across(*x), up(*y));
        }
        let _ = write!(body, "<polyline class=\"{class}\" points=\"{}\"/>", path.trim_end());
        line_at(&mut body, &class, [left, y - 4.0], [left + 24.0, y - 4.0]);
        text_at(&mut body, "label", left + 30.0, y, &line.label);
        y += 17.0;
        let ends = line.points.first().zip(line.points.last());
        let ends = ends.map(|(first, last)| format!("{} to {}", digits(first[1]), digits(last[1])));
        described.push(format!("{}: from {}", line.label, ends.unwrap_or_else(|| "nothing".to_owned())));
    }
    let mut svg = String::new();
    let what = format!("{} over {}. {}", axes[1], axes[0], described.join("; "));
    open(&mut svg, id, y, title, &what);
    svg + &body + "</svg>"
}

/// A whole number as it is.
pub(crate) fn plain(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e6 { format!("{value:.0}") } else { digits(value) }
}
