//! The page.

use std::fmt::Write;

use lacuna_bench::{LEVEL, Verdict, proof::Judged};

use crate::{
    evaluation::{Evaluation, Status},
    figures,
    html::{digits, escape},
    svg, words,
};

const STYLE: &str = include_str!("style.css");

/// The whole page. It loads nothing, and forbids that it does.
pub fn html(evaluation: &Evaluation) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Lacuna, evaluation</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    head(&mut text, evaluation);
    figures_of(&mut text, evaluation);
    claims(&mut text, evaluation);
    machine(&mut text, evaluation);
    steps(&mut text, evaluation);
    raw(&mut text, evaluation);
    text + "</body>\n</html>\n"
}

const VERDICTS: [Verdict; 5] =
    [Verdict::Met, Verdict::Missed, Verdict::Open, Verdict::Failed, Verdict::NotRun];

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::Open => "open",
        Verdict::Failed => "failed",
        Verdict::NotRun => "not-run",
    }
}

fn head(text: &mut String, evaluation: &Evaluation) {
    let proof = &evaluation.proof;
    let rounds = if proof.rounds == 1 { "one round".to_owned() } else { format!("{} rounds", proof.rounds) };
    let _ = write!(
        text,
        "<header>\n<h1>Lacuna beside the papers</h1>\n<p>What NVM compression was said to bring in 2014 and 2015, measured \
         again on this machine: {rounds}, <b>{}</b>; program {}.</p>\n",
        escape(&evaluation.settings),
        escape(&proof.git.join(", ")),
    );
    if evaluation.settings != "full" {
        *text += "<p class=\"banner\">Short runs on small data: they show that everything works and roughly how it \
                  compares. Verdicts for publication need <code>./evaluate --full</code> on a quiet machine.</p>\n";
    }
    if let Some(failed) = words::failed_steps(evaluation) {
        let _ = writeln!(text, "<p class=\"banner\">{failed}</p>");
    }
    if proof.git.len() > 1 {
        *text += "<p class=\"banner\">Figures of several versions of the program are mixed.</p>\n";
    }
    *text += "<ul class=\"tally\">";
    for verdict in VERDICTS {
        let count = proof.claims.iter().filter(|claim| claim.verdict == verdict).count();
        let _ = write!(text, "<li class=\"{}\"><b>{count}</b>{verdict}</li>", class(verdict));
    }
    *text += "</ul>\n<nav><a href=\"#figures\">Figures</a><a href=\"#claims\">Claims</a>\
              <a href=\"#machine\">Machine</a><a href=\"#steps\">Steps</a><a href=\"#raw\">Raw results</a></nav>\n\
              </header>\n";
}

fn figures_of(text: &mut String, evaluation: &Evaluation) {
    *text += "<section id=\"figures\">\n<h2>Figures</h2>\n<p class=\"key\"><span class=\"k-printed\"></span>printed \
              <span class=\"k-ours\"></span>ours, with its 90% interval. The dashed line is 1, or the size written. I: \
              INFLOW 2014. N: NVMSA 2015. S: NVMFS slides 2015. O: Oracle 2015. M: MariaDB 2014.</p>\n\
              <div class=\"figures\">\n";
    for (number, figure) in figures::all(evaluation).iter().enumerate() {
        let _ = writeln!(text, "<figure id=\"f{number}\"><h3>{}</h3>", escape(figure.title));
        if !figure.source.is_empty() {
            let _ = writeln!(text, "<p class=\"source\">{}</p>", escape(figure.source));
        }
        if figure.drawing.is_measured() {
            *text += &figure.drawing.svg(&format!("f{number}"), figure.title);
        } else {
            let why = words::why_nothing(evaluation, figure.steps, &figure.drawing.failures());
            let _ = write!(text, "<p class=\"not-run\">Not measured here: {}.</p>", escape(&why));
        }
        let _ = writeln!(
            text,
            "\n<figcaption>{}</figcaption><details><summary>numbers</summary>{}</details></figure>",
            escape(figure.words),
            figure.drawing.table()
        );
    }
    *text += "</div>\n</section>\n";
}

fn claims(text: &mut String, evaluation: &Evaluation) {
    let tests = evaluation.proof.claims.iter().filter(|claim| claim.p.is_some()).count();
    let _ = write!(
        text,
        "<section id=\"claims\">\n<h2>Claims</h2>\n<p>Sides of a ratio take turns, and only figures of one round are divided \
         by each other. The interval holds the geometric mean of the rounds' ratios with a confidence of 90%. Verdicts are \
         of all {tests} tests together: by Holm's correction the chance that any of them is wrong is at most {:.0}%, and p \
         is the corrected probability. Counts that depend on no clock are judged by the worst round.</p>\n\
         <table class=\"cards\"><thead><tr><th>claim</th><th>printed, source</th><th>target</th><th>ours</th><th>p</th>\
         <th>verdict</th><th>command</th></tr></thead><tbody>\n",
        LEVEL * 100.0
    );
    for claim in &evaluation.proof.claims {
        claim_row(text, evaluation, claim);
    }
    *text += "</tbody></table>\n</section>\n";
}

fn claim_row(text: &mut String, evaluation: &Evaluation, claim: &Judged) {
    let cell = |label: &str, content: &str| format!("<td data-label=\"{label}\">{content}</td>");
    let reason =
        claim.reason.as_deref().map(|reason| format!("<br><span class=\"muted\">{}</span>", escape(reason)));
    let verdict = format!(
        "<span><span class=\"verdict {}\">{}</span>{}</span>",
        class(claim.verdict),
        claim.verdict,
        reason.unwrap_or_default()
    );
    let commands = claim.runs.iter().map(|run| match evaluation.proof.commands.get(run) {
        Some(command) => {
            format!("<details><summary>{run}</summary><code>{}</code></details>", escape(command))
        }
        None => escape(run),
    });
    let _ = writeln!(
        text,
        "<tr>{}{}{}{}{}{}{}</tr>",
        cell("claim", &escape(&claim.name)),
        cell("printed", &escape(&words::printed(claim))),
        cell("target", &escape(&words::target(claim))),
        cell("ours", &escape(&words::ours(claim))),
        cell("p", &claim.p.map_or_else(|| "-".to_owned(), digits)),
        cell("verdict", &verdict),
        cell("command", &format!("<span>{}</span>", commands.collect::<String>())),
    );
}

fn machine(text: &mut String, evaluation: &Evaluation) {
    *text += "<section id=\"machine\">\n<h2>Machine and versions</h2>\n";
    for what in ["machine", "versions"] {
        let noted = evaluation.noted(what);
        if noted.len() > 1 {
            let _ = writeln!(text, "<p class=\"banner\">The steps differ in {what}: all are shown.</p>");
        }
        for value in noted.values() {
            *text += "<div class=\"wide\"><table>";
            words::leaves(value, "", &mut |name, leaf| {
                let _ = write!(text, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(leaf));
            });
            *text += "</table></div>\n";
        }
    }
    *text += "</section>\n";
}

fn steps(text: &mut String, evaluation: &Evaluation) {
    *text += "<section id=\"steps\">\n<h2>Steps</h2>\n<table class=\"cards\"><thead><tr><th>step, round</th><th>result\
              </th><th>date</th><th>seconds</th><th>command</th></tr></thead><tbody>\n";
    for step in &evaluation.steps {
        let said = |name: &str| step.json[name].as_str().unwrap_or("-");
        let (class, result) = match step.status {
            Status::Done => ("met", "done".to_owned()),
            Status::NotRun => ("not-run", format!("not run: {}", said("reason"))),
            Status::Failed => ("missed", format!("failed: {}", said("reason"))),
        };
        let _ = writeln!(
            text,
            "<tr><td data-label=\"step\">{}, {}</td><td data-label=\"result\"><span class=\"{class}\">{}</span></td>\
             <td data-label=\"date\">{}</td><td data-label=\"seconds\">{}</td>\
             <td data-label=\"command\"><code>{}</code></td></tr>",
            step.name,
            step.round,
            escape(&result),
            escape(said("date")),
            step.json["seconds"].as_f64().map_or_else(|| "-".to_owned(), svg::plain),
            escape(said("command")),
        );
    }
    *text += "</tbody></table>\n</section>\n";
}

fn raw(text: &mut String, evaluation: &Evaluation) {
    *text += "<section id=\"raw\">\n<h2>Raw results</h2>\n<p><code>lacuna report DIR --json FILE</code> and <code>--csv \
              FILE</code> write all of them. The files of the steps follow.</p>\n";
    for step in &evaluation.steps {
        let _ = writeln!(
            text,
            "<details><summary>{}, round {}</summary><pre class=\"wide\"><code>{}</code></pre></details>",
            step.name,
            step.round,
            escape(&serde_json::to_string_pretty(&step.json).unwrap_or_default())
        );
    }
    *text += "</section>\n";
}
