//! The claims and the figures as text that people read in a repository.

use std::fmt::Write;

use crate::{
    evaluation::{Evaluation, Status},
    figures::{self, Drawing},
    html::digits,
    svg, words,
};

/// All of it as Markdown, tables instead of charts.
pub fn markdown(evaluation: &Evaluation) -> String {
    let proof = &evaluation.proof;
    let rounds = if proof.rounds == 1 { "one round".to_owned() } else { format!("{} rounds", proof.rounds) };
    let mut text = format!(
        "# An evaluation: {}, {rounds}\n\nMade of the files beside it by `lacuna report DIR --markdown FILE`; \
         program {}. Letters name the sources: I INFLOW 2014, N NVMSA 2015, S the slides of NVMFS 2015, O Oracle 2015, \
         M MariaDB 2014. In brackets: the 90% interval over rounds.\n\n",
        cell(&evaluation.settings),
        cell(&proof.git.join(", ")),
    );
    if evaluation.settings != "full" {
        text += "**Short runs on small data:** they show that everything works and roughly how it compares, and two rounds \
                 decide little. `./evaluate --full` on a quiet machine is for verdicts.\n\n";
    }
    if let Some(failed) = words::failed_steps(evaluation) {
        let _ = writeln!(text, "**{failed}**\n");
    }
    for (what, title) in [("machine", "Machine"), ("versions", "Versions")] {
        for value in evaluation.noted(what).values() {
            let mut said = Vec::new();
            words::leaves(value, "", &mut |name, leaf| said.push(format!("{} {}", cell(name), cell(leaf))));
            let _ = writeln!(text, "{title}: {}.\n", said.join("; "));
        }
    }
    text += "## Claims\n\nVerdicts are of all tests together (Holm's correction), p is corrected; counts have none.\n\n";
    table(&mut text, &["claim", "printed", "target", "ours", "p", "verdict"]);
    for claim in &proof.claims {
        let p = claim.p.map_or_else(|| "-".to_owned(), digits);
        let verdict = match &claim.reason {
            Some(reason) => format!("{}: {reason}", claim.verdict),
            None => claim.verdict.to_string(),
        };
        line(
            &mut text,
            &[&claim.name, &words::printed(claim), &words::target(claim), &words::ours(claim), &p, &verdict],
        );
    }
    text += "\n## Figures\n";
    for figure in figures::all(evaluation) {
        drawing(&mut text, evaluation, &figure);
    }
    text += "\n## Steps\n\n";
    table(&mut text, &["step", "round", "result", "date", "seconds", "command"]);
    for step in &evaluation.steps {
        let said = |name: &str| step.json[name].as_str().unwrap_or("-").to_owned();
        let result = match step.status {
            Status::Done => "done".to_owned(),
            Status::NotRun => format!("not run: {}", said("reason")),
            Status::Failed => format!("failed: {}", said("reason")),
        };
        let seconds = step.json["seconds"].as_f64().map_or_else(|| "-".to_owned(), svg::plain);
        let round = step.round.to_string();
        line(&mut text, &[step.name, &round, &result, &said("date"), &seconds, &said("command")]);
    }
    text
}

fn drawing(text: &mut String, evaluation: &Evaluation, figure: &figures::Figure) {
    let _ = writeln!(text, "\n### {}\n\n{}\n", cell(figure.title), cell(figure.words));
    if !figure.source.is_empty() {
        let _ = writeln!(text, "Source: {}.\n", cell(figure.source));
    }
    if !figure.drawing.is_measured() {
        let why = words::why_nothing(evaluation, figure.steps, &figure.drawing.failures());
        let _ = writeln!(text, "Not measured: {}.", cell(&why));
        return;
    }
    match &figure.drawing {
        Drawing::Bars { rows, .. } => {
            table(text, &["", "printed", "ours"]);
            for row in rows {
                let printed = row.printed.map_or_else(|| "-".to_owned(), svg::range);
                let ours = svg::ours(&row.ours, "not measured");
                line(text, &[&row.label, &printed, &ours]);
            }
        }
        Drawing::Lines { axes, lines, .. } => {
            table(text, &["", &format!("{} by {}", axes[1], axes[0])]);
            for of in lines {
                let points = of.points.iter().map(|[x, y]| format!("{} at {}", digits(*y), svg::plain(*x)));
                line(text, &[&of.label, &points.collect::<Vec<_>>().join(", ")]);
            }
        }
    }
}

fn table(text: &mut String, titles: &[&str]) {
    line(text, titles);
    *text += &"|---".repeat(titles.len());
    *text += "|\n";
}

fn line(text: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|content| cell(content)).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// A text that stands for itself in a table: no markup, one line.
fn cell(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' => escaped.extend(['\\', character]),
            '<' => escaped += "&lt;",
            '&' => escaped += "&amp;",
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
