//! A checkpoint's findings, a sentence, a number and a few bars each: the cards at the top of the page. Knows which rows
//! answer which question. A title is the verdict of the rows, or says that they decide nothing.

use super::cells::intervention_row;
use super::folder::{Folder, distinct, sound};
use switchyard::schema::{
    AccuracyRow, Event, Features, InterventionRow, KnownValueRow, NORMAL, PhaseRow, ProbeRow, ResponseRow, RowFile,
    SwitchBenefitRow, TeacherForcedRow,
};
use switchyard::stats::{Estimate, FEWEST};

/// One of the page's cards.
pub(super) struct Finding {
    /// What was asked, and what was found.
    pub asks: &'static str,
    pub title: String,
    pub number: Estimate,
    /// What the number is, as the end of a sentence that begins with it.
    pub of: String,
    /// The small figure: a name and a share each.
    pub bars: Vec<(String, Estimate)>,
    /// The bar that the number is of.
    pub own: String,
    /// The table that it is from.
    pub label: &'static str,
}

/// Cards of one checkpoint.
pub(super) const CARDS: usize = 3;

/// A finding of a checkpoint, from rows of the file of this name.
type Source = (&'static str, fn(&Folder, &str) -> Option<Finding>);

/// Every question, the strongest kind of evidence first.
const SOURCES: [Source; 8] = [
    (InterventionRow::NAME, known_value),
    (InterventionRow::NAME, latents),
    (TeacherForcedRow::NAME, place),
    (SwitchBenefitRow::NAME, benefit),
    (ProbeRow::NAME, value_probe),
    (ResponseRow::NAME, responses),
    (AccuracyRow::NAME, accuracy),
    (PhaseRow::NAME, over_training),
];

/// Rows that say something of a model without blocks.
const OF_TEXT: [&str; 2] = [AccuracyRow::NAME, PhaseRow::NAME];

/// The first findings that the checkpoint has rows for, the strongest kind of evidence first.
pub(super) fn findings(folder: &Folder, checkpoint: &str) -> Vec<Finding> {
    of_sources(folder, checkpoint, &|_| true)
}

/// The findings of a checkpoint in lines of text, from the rows of these files only: sentence, number, interval, and what the
/// number is.
pub fn said(folder: &Folder, checkpoint: &str, files: &[&str]) -> Vec<String> {
    let line = |f: Finding| format!("{checkpoint}: {}. {:.3} {}.", f.title.trim_end_matches('.'), f.number, f.of);
    of_sources(folder, checkpoint, &|file| files.contains(&file)).into_iter().map(line).collect()
}

/// The first finding of each checkpoint of a folder, in the same lines, with the folder's name.
pub(super) fn first(folder: &Folder) -> Vec<String> {
    let line = |checkpoint: String| {
        let found = of_sources(folder, &checkpoint, &|_| true).into_iter().next()?;
        let name = if checkpoint.is_empty() { folder.name.clone() } else { format!("{}/{checkpoint}", folder.name) };
        Some(format!("{name}: {}. {:.3} {}.", found.title.trim_end_matches('.'), found.number, found.of))
    };
    checkpoints(folder).into_iter().filter_map(line).collect()
}

fn of_sources(folder: &Folder, checkpoint: &str, from: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    // For a model that never learnt to switch, how it switches is not a finding.
    let plain = folder.is_plain(checkpoint);
    let sources = SOURCES.iter().filter(|(file, _)| from(file) && (!plain || OF_TEXT.contains(file)));
    let found = sources.filter_map(|(_, of)| of(folder, checkpoint)).take(CARDS);
    found
        .map(|f| {
            if f.number.n < FEWEST { Finding { title: format!("{} Too few problems to say.", f.asks), ..f } } else { f }
        })
        .collect()
}

/// Checkpoints that have a finding, in the order of training.
pub(super) fn checkpoints(folder: &Folder) -> Vec<String> {
    let rows =
        [KnownValueRow::NAME, InterventionRow::NAME, TeacherForcedRow::NAME, ResponseRow::NAME, AccuracyRow::NAME];
    let mut names = distinct(rows.into_iter().flat_map(|rows| folder.checkpoints(rows)));
    // Only trained so far: what the last phase reached.
    if names.is_empty() {
        names.extend(folder.phases().last().map(|row| row.phase.as_str()));
    }
    let has = |name: &&str| !findings(folder, name).is_empty();
    names.into_iter().filter(has).map(str::to_owned).collect()
}

/// Does the answer go where the value in the latents goes?
fn known_value(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = KnownValueRow::main(folder.rows(checkpoint))?;
    let number = sound(row.hit_rate)?;
    let title = if row.follows() {
        "The answer follows the value in the latents"
    } else if row.avoids() {
        "The answer follows the value in the latents less often than by chance"
    } else {
        "No sign that the answer follows the latents"
    };
    Some(Finding {
        asks: "Does the answer follow the value in the latents?",
        title: title.into(),
        number,
        of: "of the answers become what arithmetic predicts when another problem’s latents, with another value, are put in".into(),
        bars: bars([("predicted answer", row.hit_rate), ("by chance", row.chance), ("old answer kept", row.kept)]),
        own: "predicted answer".into(),
        label: "tab:known-value",
    })
}

/// What other inputs at the latent steps leave of right answers.
fn latents(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let of =
        |mode: &str| intervention_row(folder, checkpoint, mode).and_then(|row| row.diagnostic_accuracy).and_then(sound);
    let row = ["resample", "zero"]
        .iter()
        .find_map(|mode| intervention_row(folder, checkpoint, mode).filter(|_| of(mode).is_some()))?;
    let other = if row.mode == "zero" { "zeros in their place" } else { "those of another problem" };
    let title = match row.verdict() {
        "lower" => "Other latents make right answers wrong",
        "higher" => "More answers are right when the latents are replaced",
        _ => "No loss is shown when the latents are replaced",
    };
    let named = [
        (NORMAL, "unchanged"),
        ("resample", "another problem’s"),
        ("zero", "zeros"),
        ("random_norm", "random, same norm"),
        ("embedding_argmax", "token it would say"),
        ("skip", "no latents: text"),
    ];
    Some(Finding {
        asks: "Do right answers need these latents?",
        title: title.into(),
        number: of(&row.mode)?,
        of: format!("of the answers that were right with latents stay right with {other}"),
        bars: named.iter().filter_map(|(mode, name)| Some(((*name).to_owned(), of(mode)?))).collect(),
        own: named.iter().find(|(mode, _)| *mode == row.mode).map_or_else(String::new, |(_, name)| (*name).to_owned()),
        label: "tab:intervention-ladder",
    })
}

/// Where the model opens a block.
fn place(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = |event: Event| folder.rows::<TeacherForcedRow>(checkpoint).iter().find(|row| row.event == event);
    let at = row(Event::SwiStart)?;
    let others = [
        (Event::ClauseStart, "other clause starts"),
        (Event::SameToken, "same token elsewhere"),
        (Event::Random, "anywhere"),
    ];
    let others: Vec<(&TeacherForcedRow, &str)> =
        others.iter().filter_map(|(event, name)| Some((row(*event)?, *name))).collect();
    let placed = !others.is_empty() && others.iter().all(|(other, _)| at.is_sharper(other));
    let title = if placed {
        "The model switches where it was taught to"
    } else {
        "No place of its own for the decision to switch"
    };
    let beside = others.iter().map(|(other, name)| (*name, other.p_swi));
    Some(Finding {
        asks: "Does the decision to switch have a place?",
        title: title.into(),
        number: sound(at.p_swi)?,
        of: "is the probability of <swi> where the annotation begins a block".into(),
        bars: bars(std::iter::once(("annotated", at.p_swi)).chain(beside)),
        own: "annotated".into(),
        label: "tab:tf",
    })
}

/// What a block is worth.
fn benefit(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = folder.rows::<SwitchBenefitRow>(checkpoint).iter().find(|row| row.group == "chosen")?;
    let title = match row.verdict() {
        "helps" => "Thinking in latents helps where the model chooses it",
        "hurts" => "Thinking in latents hurts where the model chooses it",
        _ => "No gain from latents is shown where the model chooses them",
    };
    Some(Finding {
        asks: "Do latents help?",
        title: title.into(),
        number: sound(row.with_block)?,
        of: "of the problems where it opens a block are answered right with one".into(),
        bars: bars([("with a block", row.with_block), ("<swi> forbidden", row.without_block)]),
        own: "with a block".into(),
        label: "tab:switch-benefit",
    })
}

/// Whether a value can be read off the latents.
fn value_probe(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let own = |row: &&ProbeRow| {
        row.value().is_some_and(|value| value.starts_with("s_j@")) && row.features == Features::ResidPost
    };
    let rows: Vec<&ProbeRow> = folder.rows::<ProbeRow>(checkpoint).iter().filter(own).collect();
    let last = rows.iter().map(|row| row.layer).max()?;
    let steps: Vec<&&ProbeRow> = rows.iter().filter(|row| row.layer == last).collect();
    let best = steps.iter().max_by(|a, b| a.score().value.total_cmp(&b.score().value))?;
    let step = |row: &ProbeRow| {
        row.value().and_then(|value| value.split_once('@')).map_or(String::new(), |(_, step)| format!("step {step}"))
    };
    let title = if best.is_readable() {
        "The latents hold the value of their clause"
    } else {
        "No value is found in the latents"
    };
    Some(Finding {
        asks: "Can the value be read in the latents?",
        title: title.into(),
        number: sound(best.score())?,
        of: format!(
            "is the accuracy of a linear probe for the value at {} of the last layer, the best of {}; the commonest value has {:.3}",
            step(best),
            steps.len(),
            best.chance
        ),
        bars: steps.iter().map(|row| (step(row), row.score())).collect(),
        own: step(best),
        label: "tab:probe-values",
    })
}

/// How often the model switches.
fn responses(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = folder.rows::<ResponseRow>(checkpoint).iter().find(|row| row.group == "all")?;
    let number = sound(row.switch_rate)?;
    let title = if number.high <= 0.0 || number.value == 0.0 {
        "The model never opens a block"
    } else {
        "The model opens blocks of its own accord"
    };
    Some(Finding {
        asks: "How often does the model switch?",
        title: title.into(),
        number,
        of: "of the responses hold at least one block of latent steps".into(),
        bars: bars([("responses with a block", number)]),
        own: "responses with a block".into(),
        label: "tab:gen-analysis",
    })
}

fn accuracy(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = |group: &str| folder.rows::<AccuracyRow>(checkpoint).iter().find(|row| row.group == group);
    let number = sound(row("all")?.accuracy)?;
    let named = [("all", "as it likes"), ("forced", "a block is forced"), ("text_only", "<swi> forbidden")];
    Some(Finding {
        asks: "How many problems are solved?",
        title: "Accuracy".into(),
        number,
        of: "of the problems are answered right".into(),
        bars: bars(named.iter().filter_map(|(group, name)| Some((*name, row(group)?.accuracy)))),
        own: "as it likes".into(),
        label: "tab:switching",
    })
}

/// Accuracy of the phases of a run of `train`, where nothing else was measured.
fn over_training(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = folder.phases().iter().find(|row| row.phase == checkpoint)?;
    Some(Finding {
        asks: "How many problems are solved?",
        title: "Held-out accuracy".into(),
        number: sound(row.accuracy)?,
        of: "of the held-out problems are answered right after this phase".into(),
        bars: bars(folder.phases().iter().map(|row| (row.phase.as_str(), row.accuracy))),
        own: checkpoint.to_owned(),
        label: "tab:training",
    })
}

fn bars<'a>(named: impl IntoIterator<Item = (&'a str, Estimate)>) -> Vec<(String, Estimate)> {
    named.into_iter().filter_map(|(name, e)| Some((name.to_owned(), sound(e)?))).collect()
}
