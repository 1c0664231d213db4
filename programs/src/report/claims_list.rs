//! `claims.md` and, if requested, `claims.csv` and `claims.tex`: one line per claim, with its tests folded below. Formats verdicts.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::render_table::{number, safe};
use super::tables::{Cell, ColumnKind, Formats, Table};
use super::verdicts::{READING, TestedClaim, Verdict};
use switchyard::store::write_atomic;

/// Writes the files; returns which.
pub(crate) fn save(claims: &[TestedClaim<'_>], stem: &Path, formats: Formats) -> Result<Vec<PathBuf>> {
    let written = table(claims)?.save(stem, formats)?;
    // In Markdown the tests are folded below.
    write_atomic(&written[0], markdown(claims).as_bytes())?;
    Ok(written)
}

/// One row per claim and checkpoint.
fn table(claims: &[TestedClaim<'_>]) -> Result<Table> {
    let names = [
        "claim",
        "text",
        "on the paper's own numbers",
        "our checkpoint",
        "ours",
        "verdict",
        "p (Holm)",
        "untested",
        "tests",
    ];
    let mut table = Table::new("claims", TITLE, names.map(|name| (name, ColumnKind::Text)));
    for tested in claims {
        let claim = tested.claim;
        let row = [
            claim.id.clone(),
            claim.text.clone(),
            in_paper(tested).to_owned(),
            tested.on.clone(),
            tested.ours.clone(),
            tested.verdict.words().to_owned(),
            tested.tested_p().map_or_else(String::new, |p| number(p, 3)),
            claim.untested.clone(),
            tested.tests.join("; "),
        ];
        table.push(row.into_iter().map(Cell::Text).collect())?;
    }
    table.note = READING.into();
    Ok(table)
}

const TITLE: &str = "The paper's claims on our rows";

/// `7 reproduced, 4 not reproduced, ...`, and the number of claims, if some have a verdict per checkpoint.
pub(super) fn counted(claims: &[TestedClaim<'_>]) -> String {
    let counts = Verdict::ALL.map(|v| format!("{} {}", count(claims, v), v.words())).join(", ");
    let different = claims.chunk_by(|a, b| a.claim.id == b.claim.id).count();
    if different == claims.len() {
        return counts;
    }
    format!("{counts} ({} verdicts on {different} claims: those about both checkpoints have two)", claims.len())
}

/// One line per claim, then one fold per claim.
fn markdown(claims: &[TestedClaim<'_>]) -> String {
    let mut out = format!("**{TITLE}** (`claims`): {}\n\n", counted(claims));
    out += "| claim | the paper's own numbers | ours | verdict |\n| --- | --- | --- | --- |\n";
    let each: Vec<&[TestedClaim<'_>]> = claims.chunk_by(|a, b| a.claim.id == b.claim.id).collect();
    for of in &each {
        let line = |show: &dyn Fn(&TestedClaim<'_>) -> String| {
            let shown = of.iter().map(|t| (t, show(t))).filter(|(_, text)| !text.is_empty());
            let named = shown.map(|(t, text)| if of.len() > 1 { format!("{}: {text}", t.on) } else { text });
            safe(&named.collect::<Vec<_>>().join("; "))
        };
        out += &format!(
            "| {} | {} | {} | {} |\n",
            safe(&of[0].claim.text),
            in_paper(&of[0]),
            line(&|t| t.ours.clone()),
            line(&|t| t.describe())
        );
    }
    out += &format!("\n{}\n", safe(READING));
    for of in &each {
        out += &fold(of);
    }
    out
}

fn fold(of: &[TestedClaim<'_>]) -> String {
    let claim = of[0].claim;
    let mut out = format!("\n<details><summary>{}</summary>\n\n{}\n\n", claim.id, safe(&claim.text));
    if !claim.rests_on.is_empty() {
        out += &format!("Rests on {}.\n", claim.rests_on.join(", "));
    }
    for (what, text) in [("Note", &claim.note), ("Not tested", &claim.untested)] {
        if !text.is_empty() {
            out += &format!("{what}: {}\n", safe(text));
        }
    }
    out.push('\n');
    for tested in of {
        let on = if tested.on.is_empty() { String::new() } else { format!("{}: ", safe(&tested.on)) };
        out += &format!("- {on}{}\n", tested.describe());
        let lines = tested.tests.iter().chain(&tested.calibrated);
        lines.for_each(|line| out += &format!("  - {}\n", safe(line)));
    }
    out + "\n</details>\n"
}

/// Outcome of a claim's comparisons on the paper's own numbers.
pub(crate) fn in_paper(tested: &TestedClaim<'_>) -> &'static str {
    match tested.claim.holds_in_paper {
        Some(true) => "hold",
        Some(false) => "do not hold",
        None => "none",
    }
}

pub(crate) fn count(claims: &[TestedClaim<'_>], verdict: Verdict) -> usize {
    claims.iter().filter(|t| t.verdict == verdict).count()
}
