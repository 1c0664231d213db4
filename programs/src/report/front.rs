//! The README's numbers, from rows: a trace, three findings, one picture. A test compares the README with them.

use anyhow::{Context, Result};

use super::folder::Folder;
use super::picture;
use switchyard::schema::{AccuracyRow, Event, KnownValueRow, PositionKind, PositionRow, TeacherForcedRow};
use switchyard::stats::Estimate;

/// The text between a pair of markers of the README (`<!-- trace -->` … `<!-- /trace -->`).
pub struct Part {
    pub marker: &'static str,
    pub text: String,
}

/// All parts of the README with numbers.
///
/// # Errors
/// Rows that are missing from the folder, by what they would say.
pub fn parts(folder: &Folder) -> Result<Vec<Part>> {
    Ok(vec![Part { marker: "trace", text: trace(folder)? }, Part { marker: "findings", text: findings(folder)? }])
}

/// The README with every part put between its markers.
pub fn filled(readme: &str, parts: &[Part]) -> Result<String> {
    let mut text = readme.to_owned();
    for Part { marker, text: part } in parts {
        let (open, close) = (format!("<!-- {marker} -->\n"), format!("<!-- /{marker} -->"));
        let from = text.find(&open).with_context(|| format!("the README has no `<!-- {marker} -->`"))? + open.len();
        let until = text[from..].find(&close).with_context(|| format!("the README has no `{close}`"))? + from;
        text.replace_range(from..until, part);
    }
    Ok(text)
}

/// The first problem that was answered right with exactly two blocks, position by position, with the token that each latent
/// step would say.
fn problem(folder: &Folder) -> Result<(&str, Vec<(PositionKind, String)>)> {
    let rows = folder.rows::<PositionRow>(&folder.sft);
    let fits =
        |rows: &&[PositionRow]| rows[0].correct && rows.iter().filter(|row| row.kind == PositionKind::Swi).count() == 2;
    let problem = rows.chunk_by(|a, b| a.problem == b.problem).find(fits);
    let problem = problem.context("positions: no problem was answered right with two blocks")?;
    let said = |row: &PositionRow| -> Result<(PositionKind, String)> {
        let lens: Vec<(String, f64)> = serde_json::from_str(row.lens.as_deref().unwrap_or("[]"))?;
        let thought = lens.into_iter().next().map(|(token, _)| token).filter(|_| row.kind == PositionKind::Latent);
        Ok((row.kind, thought.unwrap_or_else(|| row.token.clone()).trim().to_owned()))
    };
    let prompt = problem[0].prompt.as_deref().unwrap_or_default();
    Ok((prompt, problem.iter().map(said).collect::<Result<_>>()?))
}

/// The problem's question, text and latent steps.
fn trace(folder: &Folder) -> Result<String> {
    let (prompt, positions) = problem(folder)?;
    let mut out = format!("```text\nquestion    {prompt}\n");
    let mut written: Vec<&str> = vec![];
    let mut thought: Vec<&str> = vec![];
    for (kind, token) in &positions {
        match kind {
            PositionKind::Text => written.push(token),
            PositionKind::Swi => out += &format!("writes      {} <swi>\n", std::mem::take(&mut written).join(" ")),
            PositionKind::Latent => thought.push(token),
            PositionKind::SwiEndSampled | PositionKind::SwiEndForced => {
                out += &format!("thinks      {}\n", std::mem::take(&mut thought).join("  "));
                written.push("</swi>");
            }
        }
    }
    out += &format!("writes      {}\n```\n", written.join(" "));
    Ok(out)
}

/// That problem as chips, above what exchanging its thoughts does, as SVG.
///
/// # Errors
/// Rows that are missing from the folder, by what they would say.
pub fn picture(folder: &Folder) -> Result<String> {
    let (prompt, positions) = problem(folder)?;
    let known = KnownValueRow::main(folder.rows(&folder.sft)).context("known_value: no row for all steps")?;
    Ok(picture::svg(prompt, &positions, known.hit_rate, known.chance))
}

/// Three findings, a number each.
fn findings(folder: &Folder) -> Result<String> {
    let (sft, grpo) = (folder.sft.as_str(), folder.grpo.as_str());
    let known = KnownValueRow::main(folder.rows(sft)).context("known_value: no row for all steps")?;
    let places = folder.rows::<TeacherForcedRow>(sft).iter().find(|row| row.event == Event::SwiStart);
    let places = places.context("teacher_forced: no row for swi_start")?;
    let all = folder.rows::<AccuracyRow>(grpo).iter().find(|row| row.group == "all");
    let all = all.context("accuracy: no row for all")?;
    Ok([
        format!(
            "- **The latent steps hold the value that the answer needs.** Put in the latent steps of a block that holds another \
             value. \
             The answer becomes the one that arithmetic predicts from it in {}.\n",
            say(known.hit_rate)
        ),
        format!(
            "- **The decision to switch has a place.** Where the training data began a block, the probability of `<swi>` is {}.\n",
            say(places.p_swi)
        ),
        format!(
            "- **After reinforcement learning the model mostly goes back to text.** It then switches on {} of the problems. \
             [Where text does not fit](docs/results.md) it mostly switches.\n",
            say(all.switch_rate)
        ),
    ]
    .concat())
}

/// `0.978 [0.966, 0.989] n=286`.
fn say(e: Estimate) -> String {
    format!("{e:.3}")
}
