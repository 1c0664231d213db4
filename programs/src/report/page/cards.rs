//! The top of a folder's article: a folded section per checkpoint with three findings, a few bars each, and one solved problem. `findings`
//! computes the findings.

use std::fmt::Write;

use super::escape::{prose, text};
use super::trace;
use crate::report::findings::{Finding, checkpoints, findings};
use crate::report::folder::Folder;
use switchyard::stats::Estimate;

/// One section per checkpoint, the first one open; its summary has the checkpoint and its first finding. `anchor` returns a table's anchor.
pub(super) fn html(folder: &Folder, id: &str, anchor: &impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    for (at, checkpoint) in checkpoints(folder).iter().enumerate() {
        let found = findings(folder, checkpoint);
        let cards: String = found.iter().map(|f| card(f, anchor)).collect();
        let first = found.first().map_or_else(String::new, |finding| text(&finding.title));
        let name = match checkpoint.as_str() {
            "" => text(&folder.name),
            "sft" => "After supervised training <code>sft</code>".into(),
            "grpo_start" => "Where reinforcement learning starts <code>grpo_start</code>".into(),
            "grpo" => "After reinforcement learning <code>grpo</code>".into(),
            other => format!("<code>{}</code>", text(other)),
        };
        let _ = writeln!(
            out,
            "<details class=\"checkpoint\" name=\"{id}-checkpoint\"{}><summary><h2>{name}</h2> <small>{first}</small></summary>\n\
             <div class=\"cards\">{cards}</div>\n{}</details>",
            if at == 0 { " open" } else { "" },
            trace::sample(folder, checkpoint)
        );
    }
    out
}

fn card(finding: &Finding, anchor: &impl Fn(&str) -> Option<String>) -> String {
    let Estimate { value, low, high, n } = finding.number;
    let link = anchor(finding.label).map_or_else(String::new, |at| format!("<a href=\"#{at}\">The whole table</a>"));
    format!(
        "<section class=\"card\"><h3>{}</h3><p><b class=\"number\">{value:.3}</b> <small>[{low:.3}, {high:.3}] <i>n</i> = {n}</small><br>\
         {}</p>{}{link}</section>\n",
        text(&finding.title),
        prose(&finding.of),
        bars(&finding.bars, &finding.own)
    )
}

/// Width of the drawing, end of its bars, height of a bar, and width of a letter of their names.
const WIDE: f64 = 340.0;
const UNTIL: f64 = 300.0;
const ROW: f64 = 21.0;
const LETTER: f64 = 6.8;
/// Maximum letters of a name.
const LONGEST: usize = 26;

/// Shares from 0 to 1 as bars with intervals; the one of the card's number is highlighted.
fn bars(named: &[(String, Estimate)], own: &str) -> String {
    let letters = named.iter().map(|(name, _)| name.chars().count().min(LONGEST)).max().unwrap_or(0);
    let from = (letters as f64 * LETTER + 10.0).max(100.0);
    let x = |share: f64| from + share.clamp(0.0, 1.0) * (UNTIL - from);
    let said: Vec<String> = named.iter().map(|(name, e)| format!("{name} {e:.3}")).collect();
    let mut shapes = String::new();
    for (at, (name, e)) in named.iter().enumerate() {
        let middle = (at as f64 + 0.5) * ROW;
        let class = if name == own { "bar own" } else { "bar" };
        let _ = write!(
            shapes,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" \
             width=\"{:.1}\" height=\"13\"/><path d=\"M{:.1} {middle:.1}H{:.1}\"/><text x=\"{WIDE}\" y=\"{:.1}\" \
             text-anchor=\"end\">{:.2}</text>",
            from - 6.0,
            middle + 4.0,
            text(&shortened(name)),
            middle - 6.5,
            (x(e.value) - from).max(0.5),
            x(e.low),
            x(e.high),
            middle + 4.0,
            e.value
        );
    }
    format!(
        "<svg class=\"bars\" role=\"img\" viewBox=\"0 0 {WIDE} {:.0}\"><title>{}</title>{shapes}</svg>",
        ROW * named.len() as f64,
        text(&said.join(", "))
    )
}

/// A name shortened to this many letters; the drawing's title has the whole name.
fn shortened(name: &str) -> String {
    if name.chars().count() <= LONGEST {
        return name.to_owned();
    }
    name.chars().take(LONGEST - 1).chain(['…']).collect()
}
