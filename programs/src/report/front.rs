//! The README's numbers, from records: a trace, three findings, one picture. A test compares the README with them.

use anyhow::{Context, Result};

use super::folder::Folder;
use super::picture;
use super::verdicts::FEWEST_RUNS;
use switchyard::schema::{
    ComparisonPoint, Event, FateRow, FateTest, KnownValueRow, PositionKind, PositionRow, TeacherForcedRow, runs,
};
use switchyard::stats::{LEVEL, mean_of_runs};

/// The text between a pair of markers of the README (`<!-- trace -->` … `<!-- /trace -->`).
pub struct Part {
    pub marker: &'static str,
    pub text: String,
}

/// All parts of the README with numbers.
pub fn parts(folder: &Folder) -> Result<Vec<Part>> {
    Ok(vec![Part { marker: "trace", text: trace(folder)? }, Part { marker: "findings", text: findings(folder)? }])
}

/// The README with every part inserted between its markers.
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

/// The first problem with a correct answer and exactly two blocks, position by position, with the prediction of each latent step.
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

/// SVG: the problem as chips, above the effect of exchanging its latents.
pub fn picture(folder: &Folder) -> Result<String> {
    let (prompt, positions) = problem(folder)?;
    let known = KnownValueRow::main(folder.rows(&folder.sft)).context("known_value: no row for all steps")?;
    Ok(picture::svg(prompt, &positions, known.hit_rate, known.chance))
}

/// Three findings, each worded as its test allows.
fn findings(folder: &Folder) -> Result<String> {
    let sft = folder.sft.as_str();
    let known = KnownValueRow::main(folder.rows(sft)).context("known_value: no row for all steps")?;
    let event = |event: Event| {
        let row = folder.rows::<TeacherForcedRow>(sft).iter().find(|row| row.event == event);
        row.with_context(|| format!("teacher_forced: no row for {event}"))
    };
    let [at, clauses, random] = [Event::SwiStart, Event::ClauseStart, Event::Random].map(event);
    let of = [latents(known), place(at?, clauses?, random?), training(folder.rows(""))?];
    Ok(of.map(|sentence| format!("- {sentence}\n")).concat())
}

/// Effect on answers of swapping in a block's latents with another value.
fn latents(known: &KnownValueRow) -> String {
    let said = match (known.follows(), known.avoids()) {
        (true, _) => "The answer follows the value in the latent steps",
        (false, true) => "The answer follows the value in the latent steps less often than by chance",
        (false, false) => "Undecided: the answer is not seen to follow the latent steps",
    };
    format!(
        "**{said}.** Swap in the latent steps of a block with another value, and the answer becomes the predicted one in {:.3}, by chance in \
         {:.3}.",
        known.hit_rate, known.chance.value
    )
}

/// States where `<swi>` is likely.
fn place(at: &TeacherForcedRow, clauses: &TeacherForcedRow, random: &TeacherForcedRow) -> String {
    let placed = [clauses, random].into_iter().all(|other| at.is_sharper(other));
    let said = if placed {
        "The decision to switch has a place"
    } else {
        "Undecided: no place is shown for the decision to switch"
    };
    format!(
        "**{said}.** p(`<swi>`) is {:.3} where training data began a block, {:.3} at other clauses, {:.3} anywhere.",
        at.p_swi, clauses.p_swi.value, random.p_swi.value
    )
}

/// Effect of reinforcement learning with frozen latents on the switch rate, over seeds: where text fits, and where it does not.
fn training(rows: &[FateRow]) -> Result<String> {
    let [small, large] = FateRow::BUDGETS;
    let of_budget = |budget: usize| {
        let runs = runs(rows, ComparisonPoint::AtTheEnd, (FateRow::MODES[0], budget))?;
        let change = runs.iter().map(|[start, end]| end.switch_rate - start.switch_rate).collect();
        let ends: Vec<f64> = runs.iter().map(|[_, end]| end.switch_rate).collect();
        anyhow::Ok((FateTest { of: "switch_rate", name: "change of the switch rate", values: change }, ends))
    };
    let ((short, short_ends), (long, long_ends)) = (of_budget(small)?, of_budget(large)?);
    let title = match direction(&long) {
        "falls" => "Where text fits, reinforcement learning leads back to text",
        "rises" => "Where text fits, reinforcement learning leads to more latent steps",
        "" => "Fewer than three runs of reinforcement learning say nothing of the method",
        _ => "Undecided: whether reinforcement learning keeps latent steps",
    };
    let end = |ends: &[f64]| match mean_of_runs(ends) {
        // The table has a separate column for the number of seeds.
        Ok(mean) => {
            format!("{:.3}", mean.share()).replace(&format!(" n={}", mean.n), &format!(" over {} seeds", mean.n))
        }
        Err(_) => ends.iter().map(|end| format!("{end:.3}")).collect::<Vec<_>>().join(", "),
    };
    let of_short = match direction(&short) {
        "falls" => "it falls too",
        "rises" => "it rises",
        "" => "there are fewer than three runs",
        _ => "change undecided",
    };
    Ok(format!(
        "**{title}.** With frozen latents the switch rate ends at {}; where it does not, at {} ({of_short}). \
         [Every seed](reports/micro/tables/tab-rl-fate-tests.md).",
        end(&long_ends),
        end(&short_ends)
    ))
}

/// Direction of a change over seeds: `falls`, `rises`, `undecided`, or empty with fewer than [`FEWEST_RUNS`] seeds.
fn direction(test: &FateTest) -> &'static str {
    match (test.estimate(), test.p()) {
        _ if test.values.len() < FEWEST_RUNS => "",
        (Ok(change), Ok(p)) if p <= 1.0 - LEVEL && change.value < 0.0 => "falls",
        (Ok(_), Ok(p)) if p <= 1.0 - LEVEL => "rises",
        _ => "undecided",
    }
}

#[cfg(test)]
mod tests {
    use switchyard::stats::Estimate;

    use super::*;

    /// Start and end of the runs of both budgets, by seed.
    fn fate(changes: [&[f64]; 2]) -> Vec<FateRow> {
        let row = |budget: usize, seed: usize, step: usize, switch_rate: f64| FateRow {
            replay: FateRow::MODES[0].to_owned(),
            budget,
            from_step: FateRow::FROM_STEP,
            seed: seed as u64,
            of: FateRow::STEPS,
            step,
            equal: false,
            n: 500,
            accuracy: 0.5,
            switch_rate,
            with_block: None,
            without_block: None,
            kl: 0.0,
        };
        let of = |(budget, changes): (usize, &[f64])| {
            let run = |(seed, change): (usize, &f64)| {
                [row(budget, seed, 0, 0.5), row(budget, seed, FateRow::STEPS, 0.5 + change)]
            };
            changes.iter().enumerate().flat_map(run).collect::<Vec<_>>()
        };
        FateRow::BUDGETS.into_iter().zip(changes).flat_map(of).collect()
    }

    #[test]
    fn training_is_said_by_seeds() {
        for (small, large, title, short) in [
            (
                &[0.3, -0.2, 0.3, 0.1, 0.4][..],
                &[-0.4, -0.45, -0.35, -0.4, -0.42][..],
                "leads back to text",
                "undecided",
            ),
            (&[0.3, 0.35, 0.4, 0.3, 0.38], &[0.3, 0.35, 0.4, 0.3, 0.38], "leads to more latent steps", "it rises"),
            (&[-0.3, -0.35, -0.4, -0.3, -0.38], &[-0.4, 0.3, 0.2, -0.3, 0.1], "Undecided", "it falls too"),
            (&[-0.4], &[-0.4], "Fewer than three runs", "fewer than three runs"),
            (&[-0.4, -0.41], &[-0.4, -0.41], "Fewer than three runs", "fewer than three runs"),
        ] {
            let said = training(&fate([small, large])).expect("runs");
            assert!(said.contains(title) && said.contains(short), "{said}");
        }
        assert!(training(&[]).is_err(), "no runs, no sentence");
    }

    #[test]
    fn a_number_comes_with_what_its_test_supports() {
        let about = |value: f64, half: f64, n: usize| Estimate { value, low: value - half, high: value + half, n };
        let known = |above: f64, half: f64, n: usize| {
            let row = serde_json::json!({"checkpoint": "x", "dataset": "x", "n": n, "seed": 0, "steps": "all", "later": "recompute", "at": "both",
                "draws": 1, "hit_rate": about(0.2 + above, half, n), "chance": about(0.2, half, n), "above_chance": about(above, half, n),
                "kept": about(0.1, half, n), "firings": 1});
            latents(&serde_json::from_value(row).expect("a row"))
        };
        assert!(known(0.5, 0.1, 50).starts_with("**The answer follows the value in the latent steps.**"));
        assert!(known(-0.15, 0.1, 50).contains("less often than by chance.**"));
        for (above, half, n) in [(0.5, 0.6, 50), (0.0, 0.1, 50), (0.5, 0.1, 12)] {
            assert!(known(above, half, n).starts_with("**Undecided"), "{above} {half} {n}");
        }
        let event = |p: f64, half: f64, n: usize| {
            let one = about(1.0, half, n);
            let row = serde_json::json!({"checkpoint": "x", "dataset": "x", "n": n, "seed": 0, "event": "random", "positions": 9,
                "entropy": one, "p_swi": about(p, half, n), "rank": one, "margin": one});
            serde_json::from_value::<TeacherForcedRow>(row).expect("a row")
        };
        let said =
            |at: f64, half: f64, n: usize| place(&event(at, half, n), &event(0.3, half, n), &event(0.02, half, n));
        assert!(said(0.8, 0.02, 100).starts_with("**The decision to switch has a place.**"));
        for (at, half, n) in [(0.8, 0.6, 100), (0.3, 0.02, 100), (0.1, 0.02, 100), (0.8, 0.02, 12)] {
            assert!(said(at, half, n).starts_with("**Undecided"), "{at} {half} {n}");
        }
    }
}
