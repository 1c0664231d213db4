//! Findings of a checkpoint, each a sentence, a number and a few bars: the cards at the top of the page. Knows which records answer which
//! question. A question has one sentence per outcome of its test ([`TestOutcome`]), so that a title does not claim more than the test.

use super::cells::intervention_row;
use super::folder::{Folder, distinct, place as place_of, sound};
use switchyard::schema::{
    AT_CHANCE, AccuracyRow, Event, Features, InterventionRow, KnownValueRow, MARGIN, NORMAL, NULLS, PhaseRow, ProbeRow,
    ResponseRow, RowFile, SwitchBenefitRow, TeacherForcedRow, dosed,
};
use switchyard::stats::{Estimate, FEWEST, LEVEL};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestOutcome {
    Yes,
    /// The opposite, with the same certainty.
    Opposite,
    /// The whole interval is within [`MARGIN`] of no difference.
    Unchanged,
    Undecided,
    /// The model was at chance to begin with.
    NothingToLose,
    TooFew,
    /// A number without a test.
    Described,
}

impl TestOutcome {
    /// The outcome for a difference with its interval.
    fn of_difference(difference: Estimate) -> Self {
        match difference {
            d if d.n < FEWEST => Self::TooFew,
            d if d.is_above(0.0) => Self::Yes,
            d if d.scaled(-1.0).is_above(0.0) => Self::Opposite,
            d if -MARGIN < d.low && d.high < MARGIN => Self::Unchanged,
            _ => Self::Undecided,
        }
    }

    /// The outcome for a change of accuracy and its row's verdict, given the words for yes and for the opposite.
    fn of_verdict(verdict: &str, change: Estimate, [yes, opposite]: [&str; 2]) -> Self {
        match verdict {
            word if word == yes => Self::Yes,
            word if word == opposite => Self::Opposite,
            AT_CHANCE => Self::NothingToLose,
            _ if change.n < FEWEST => Self::TooFew,
            _ if -MARGIN < change.low && change.high < MARGIN => Self::Unchanged,
            _ => Self::Undecided,
        }
    }
}

/// A question, with a sentence for every answer; empty if its test cannot give that answer.
struct Question {
    asks: &'static str,
    yes: &'static str,
    opposite: &'static str,
    unchanged: &'static str,
    undecided: &'static str,
    nothing_to_lose: &'static str,
}

impl Question {
    fn title(&self, answer: TestOutcome) -> String {
        let sentence = match answer {
            TestOutcome::Yes => self.yes,
            TestOutcome::Opposite => self.opposite,
            TestOutcome::Unchanged => self.unchanged,
            TestOutcome::NothingToLose => self.nothing_to_lose,
            TestOutcome::Undecided | TestOutcome::Described => self.undecided,
            TestOutcome::TooFew => return format!("{} Too few problems to decide.", self.asks),
        };
        if sentence.is_empty() { self.undecided } else { sentence }.to_owned()
    }
}

/// A card of the page.
pub(super) struct Finding {
    pub title: String,
    pub number: Estimate,
    /// Description of the number, as the end of a sentence that begins with it.
    pub of: String,
    /// The small figure: a name and a share each.
    pub bars: Vec<(String, Estimate)>,
    /// The bar that shows the number.
    pub own: String,
    /// The table that it is from.
    pub label: &'static str,
}

impl Finding {
    /// The sentence with its number, after the name of the checkpoint.
    fn line(&self, name: &str) -> String {
        format!("{name}: {}. {:.3} {}.", self.title.trim_end_matches('.'), self.number, self.of)
    }
}

/// Cards of one checkpoint.
const CARDS: usize = 3;

/// A finding of a checkpoint, from rows of the file of this name.
type Source = (&'static str, fn(&Folder, &str) -> Option<Finding>);

/// Every question, the strongest kind of evidence first.
const SOURCES: [Source; 9] = [
    (InterventionRow::NAME, known_value),
    (InterventionRow::NAME, latents),
    (TeacherForcedRow::NAME, place),
    (SwitchBenefitRow::NAME, benefit),
    (ProbeRow::NAME, value_probe),
    (ResponseRow::NAME, responses),
    (AccuracyRow::NAME, accuracy),
    (PhaseRow::NAME, over_training),
    (InterventionRow::HOOKS, hooks),
];

/// Records that describe a model without blocks.
const OF_TEXT: [&str; 2] = [AccuracyRow::NAME, PhaseRow::NAME];

/// The first findings that the checkpoint has rows for, the strongest kind of evidence first.
pub(super) fn findings(folder: &Folder, checkpoint: &str) -> Vec<Finding> {
    of_sources(folder, checkpoint, &|_| true)
}

/// The findings of a checkpoint as lines of text, only from records of these files: sentence, number, interval, and the number's
/// description.
pub fn describe(folder: &Folder, checkpoint: &str, files: &[&str]) -> Vec<String> {
    of_sources(folder, checkpoint, &|file| files.contains(&file)).iter().map(|f| f.line(checkpoint)).collect()
}

/// The first finding of each checkpoint of a folder, in the same form, with the folder's name.
pub(super) fn first(folder: &Folder) -> Vec<String> {
    let line = |checkpoint: String| {
        let name = if checkpoint.is_empty() { folder.name.clone() } else { format!("{}/{checkpoint}", folder.name) };
        Some(findings(folder, &checkpoint).first()?.line(&name))
    };
    checkpoints(folder).into_iter().filter_map(line).collect()
}

fn of_sources(folder: &Folder, checkpoint: &str, from: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    // For a model that never learnt to switch, how it switches is not a finding.
    let plain = folder.is_plain(checkpoint);
    let sources = SOURCES.iter().filter(|(file, _)| from(file) && (!plain || OF_TEXT.contains(file)));
    sources.filter_map(|(_, of)| of(folder, checkpoint)).take(CARDS).collect()
}

/// A finding in its question's words; with too few problems it states that.
fn finding(question: &Question, answer: TestOutcome, number: Estimate, of: String, label: &'static str) -> Finding {
    let answer = if number.n < FEWEST { TestOutcome::TooFew } else { answer };
    Finding { title: question.title(answer), number, of, bars: vec![], own: String::new(), label }
}

/// Checkpoints that have a finding, in the order of training.
pub(super) fn checkpoints(folder: &Folder) -> Vec<String> {
    let files = SOURCES.iter().map(|(file, _)| *file).filter(|file| *file != PhaseRow::NAME);
    let mut names = distinct(files.chain([KnownValueRow::NAME]).flat_map(|file| folder.checkpoints(file)));
    names.sort_by_key(|name| place_of(name));
    // Only trained so far: the result of the last phase.
    if names.is_empty() {
        names.extend(folder.phases().last().map(|row| row.phase.as_str()));
    }
    let has = |name: &&str| !findings(folder, name).is_empty();
    names.into_iter().filter(has).map(str::to_owned).collect()
}

/// Whether the answer follows the value in the latents.
fn known_value(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = KnownValueRow::main(folder.rows(checkpoint))?;
    let number = sound(row.hit_rate)?;
    let of =
        "of the answers become what arithmetic predicts when another problem’s latents, with another value, are put in";
    let found =
        finding(&KNOWN_VALUE, TestOutcome::of_difference(row.above_chance), number, of.into(), "tab:known-value");
    Some(Finding {
        bars: bars([("predicted answer", row.hit_rate), ("by chance", row.chance), ("old answer kept", row.kept)]),
        own: "predicted answer".into(),
        ..found
    })
}

const KNOWN_VALUE: Question = Question {
    asks: "Does the answer follow the value in the latents?",
    yes: "The answer follows the value in the latents",
    opposite: "The answer follows the value in the latents less often than by chance",
    unchanged: "The answer follows the value in the latents no more often than by chance",
    undecided: "No sign that the answer follows the latents",
    nothing_to_lose: "",
};

/// Correct answers that remain with other inputs at the latent steps.
fn latents(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let of =
        |mode: &str| intervention_row(folder, checkpoint, mode).and_then(|row| row.diagnostic_accuracy).and_then(sound);
    let row = ["resample", "zero"]
        .iter()
        .find_map(|mode| intervention_row(folder, checkpoint, mode).filter(|_| of(mode).is_some()))?;
    let other = if row.mode == "zero" { "zeros in their place" } else { "those of another problem" };
    let answer = TestOutcome::of_verdict(row.verdict(), row.accuracy_change, ["lower", "higher"]);
    let named = [
        (NORMAL, "unchanged"),
        ("resample", "another problem’s"),
        ("zero", "zeros"),
        ("random_norm", "random, same norm"),
        ("embedding_argmax", "token it would say"),
        ("skip", "no latents: text"),
    ];
    let said =
        format!("of the answers that were right with latents stay right with {other}; {}{}", around(row), lucky(row));
    Some(Finding {
        bars: named.iter().filter_map(|(mode, name)| Some(((*name).to_owned(), of(mode)?))).collect(),
        own: named.iter().find(|(mode, _)| *mode == row.mode).map_or_else(String::new, |(_, name)| (*name).to_owned()),
        ..finding(&LATENTS, answer, of(&row.mode)?, said, "tab:intervention-ladder")
    })
}

const LATENTS: Question = Question {
    asks: "Do right answers need these latents?",
    yes: "Right answers become wrong when the latents are replaced",
    opposite: "More answers are right when the latents are replaced",
    unchanged: "Accuracy stays within .05 when the latents are replaced",
    undecided: "Undecided: no loss is shown when the latents are replaced",
    nothing_to_lose: "Nothing to lose: with its own latents the model is right no more often than a guess",
};

/// Accuracy before and after a change and, if no loss could be seen, the reason.
fn around(row: &InterventionRow) -> String {
    let after = row.accuracy.value;
    let before = after - row.accuracy_change.value;
    let chance = row.at_chance().map_or_else(String::new, |(before, guess)| {
        format!(" (of the changed problems {:.3} were right before, a guess gives {guess:.3})", before.value)
    });
    format!("accuracy is {before:.3} before and {after:.3} after{chance}")
}

/// The change at a hook point with the largest effect on accuracy, of those that are significant if there are any.
fn hooks(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let rows = folder.rows_in::<InterventionRow>(InterventionRow::HOOKS, checkpoint);
    let size = |row: &InterventionRow| row.accuracy_change.value.abs();
    let mut changes: Vec<&InterventionRow> =
        rows.iter().filter(|row| row.mode != NORMAL && !NULLS.contains(&row.mode.as_str())).collect();
    // A loss that the test shows comes before a larger change that it does not.
    let decided = |row: &InterventionRow| row.lowers() || row.raises();
    changes.sort_by(|a, b| decided(b).cmp(&decided(a)).then(size(b).total_cmp(&size(a))));
    let row = *changes.first()?;
    let name = |row: &InterventionRow| format!("{} at {}", dosed(&row.mode, row.dose), row.acts_at());
    let of_all = match changes.len() {
        1 => String::new(),
        all if decided(row) => format!("; the largest significant one of {all} effects"),
        all => format!("; the largest of {all} effects"),
    };
    let of = format!("of the problems are answered right after {}; {}{of_all}", name(row), around(row));
    let normal = rows.iter().filter(|row| row.mode == NORMAL).map(|row| ("unchanged".to_owned(), row.accuracy));
    let strongest = changes.iter().take(5).map(|row| (name(row), row.accuracy));
    Some(Finding {
        bars: normal.chain(strongest).filter_map(|(name, e)| Some((name, sound(e)?))).collect(),
        own: name(row),
        ..finding(
            &HOOKS,
            TestOutcome::of_verdict(row.verdict(), row.accuracy_change, ["lower", "higher"]),
            sound(row.accuracy)?,
            of,
            "tab:hook-intervention",
        )
    })
}

const HOOKS: Question = Question {
    asks: "Do right answers need this activation?",
    yes: "Accuracy falls when the activation is changed",
    opposite: "Accuracy rises when the activation is changed",
    unchanged: "Accuracy stays within .05 when the activation is changed",
    undecided: "Undecided: no loss is shown when the activation is changed",
    nothing_to_lose: "Nothing to lose: unchanged, the model is right no more often than a guess",
};

/// Number of diagnostic problems that were correct by chance.
fn lucky(row: &InterventionRow) -> String {
    let known = row.diagnostic_accuracy.zip(row.diagnostic_by_luck);
    known.map_or_else(String::new, |(diagnostic, luck)| {
        format!("; about {luck:.0} of these {} were right by luck", diagnostic.n)
    })
}

/// Finding: where the model opens a block.
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
    let answer = match others.as_slice() {
        [] => TestOutcome::Undecided,
        others if others.iter().any(|(other, _)| other.p_swi.n < FEWEST) => TestOutcome::TooFew,
        others if others.iter().all(|(other, _)| at.is_sharper(other)) => TestOutcome::Yes,
        others if others.iter().any(|(other, _)| other.is_sharper(at)) => TestOutcome::Opposite,
        _ => TestOutcome::Undecided,
    };
    let beside = others.iter().map(|(other, name)| (*name, other.p_swi));
    let tagged_itself =
        folder.setup(TeacherForcedRow::NAME, checkpoint, "annotator") == Some(TeacherForcedRow::SELF_TAGGED);
    let (question, of) = if tagged_itself {
        (
            &OWN_PLACE,
            "is the probability of <swi> where the model's own entropies begin a block (no --annotator was named)",
        )
    } else {
        (&PLACE, "is the probability of <swi> where the annotation begins a block")
    };
    let compared: Vec<String> =
        others.iter().map(|(other, name)| format!("{:.3} ({name}, n={})", other.p_swi.value, other.p_swi.n)).collect();
    let of = if compared.is_empty() { of.to_owned() } else { format!("{of}; elsewhere {}", compared.join(", ")) };
    Some(Finding {
        bars: bars(std::iter::once(("annotated", at.p_swi)).chain(beside)),
        own: "annotated".into(),
        ..finding(question, answer, sound(at.p_swi)?, of, "tab:tf")
    })
}

const OWN_PLACE: Question = Question {
    yes: "<swi> is more likely where the model's own entropy is high",
    opposite: "<swi> is more likely elsewhere than where the model's own entropy is high",
    ..PLACE
};

const PLACE: Question = Question {
    asks: "Does the decision to switch have a place?",
    yes: "<swi> is more likely where the model was taught to switch",
    opposite: "<swi> is more likely elsewhere than where the model was taught to switch",
    unchanged: "",
    undecided: "Undecided: no place is shown for the decision to switch",
    nothing_to_lose: "",
};

fn benefit(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = folder.rows::<SwitchBenefitRow>(checkpoint).iter().find(|row| row.group == "chosen")?;
    let answer = TestOutcome::of_verdict(row.verdict(), row.benefit, ["helps", "hurts"]);
    let of = "of the problems where it opens a block are answered right with one";
    Some(Finding {
        bars: bars([("with a block", row.with_block), ("<swi> forbidden", row.without_block)]),
        own: "with a block".into(),
        ..finding(&BENEFIT, answer, sound(row.with_block)?, of.into(), "tab:switch-benefit")
    })
}

const BENEFIT: Question = Question {
    asks: "Do latents help?",
    yes: "Thinking in latents helps where the model chooses it",
    opposite: "Thinking in latents hurts where the model chooses it",
    unchanged: "With a block and without, accuracy is the same within .05 where the model chooses one",
    undecided: "Undecided: no gain from latents is shown where the model chooses them",
    nothing_to_lose: "Nothing to compare: neither with a block nor without is the model right more often than a guess",
};

/// Whether a value can be read from the latents.
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
    // The best of several steps is above chance more often than a single one: corrected.
    let p = 2.0 * best.score().p_above(best.chance) * steps.len() as f64;
    let answer = if p <= 1.0 - LEVEL { TestOutcome::Yes } else { TestOutcome::Undecided };
    let of = format!(
        "is the accuracy of a linear probe for the value at {} of the last layer, the best of {}; the commonest value has {:.3}",
        step(best),
        steps.len(),
        best.chance
    );
    Some(Finding {
        bars: steps.iter().map(|row| (step(row), row.score())).collect(),
        own: step(best),
        ..finding(&VALUE_PROBE, answer, sound(best.score())?, of, "tab:probe-values")
    })
}

const VALUE_PROBE: Question = Question {
    asks: "Can the value be read in the latents?",
    yes: "A linear probe reads the value of a clause from its latents",
    opposite: "",
    unchanged: "",
    undecided: "Undecided: no value is found in the latents",
    nothing_to_lose: "",
};

/// Finding: how often the model switches.
fn responses(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = folder.rows::<ResponseRow>(checkpoint).iter().find(|row| row.group == "all")?;
    let number = sound(row.switch_rate)?;
    let answer = if number.value == 0.0 { TestOutcome::Opposite } else { TestOutcome::Yes };
    let of = "of the responses contain at least one block of latent steps";
    Some(Finding {
        bars: bars([("responses with a block", number)]),
        own: "responses with a block".into(),
        ..finding(&RESPONSES, answer, number, of.into(), "tab:gen-analysis")
    })
}

const RESPONSES: Question = Question {
    asks: "How often does the model switch?",
    yes: "The model opens blocks by itself",
    opposite: "The model opens a block in none of these responses",
    unchanged: "",
    undecided: "How often the model switches",
    nothing_to_lose: "",
};

fn accuracy(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = |group: &str| folder.rows::<AccuracyRow>(checkpoint).iter().find(|row| row.group == group);
    let number = sound(row("all")?.accuracy)?;
    let named = [("all", "as it likes"), ("forced", "a block is forced"), ("text_only", "<swi> forbidden")];
    let of = "of the problems are answered right";
    Some(Finding {
        bars: bars(named.iter().filter_map(|(group, name)| Some((*name, row(group)?.accuracy)))),
        own: "as it likes".into(),
        ..finding(&described("Accuracy"), TestOutcome::Described, number, of.into(), "tab:switching")
    })
}

/// A question without a test.
const fn described(name: &'static str) -> Question {
    let asks = "How many problems are solved?";
    Question { asks, yes: "", opposite: "", unchanged: "", undecided: name, nothing_to_lose: "" }
}

/// Accuracy of the phases of a run of `train`, if nothing else was measured.
fn over_training(folder: &Folder, checkpoint: &str) -> Option<Finding> {
    let row = folder.phases().iter().find(|row| row.phase == checkpoint)?;
    let of = "of the held-out problems are answered right after this phase";
    Some(Finding {
        bars: bars(folder.phases().iter().map(|row| (row.phase.as_str(), row.accuracy))),
        own: checkpoint.to_owned(),
        ..finding(
            &described("Held-out accuracy"),
            TestOutcome::Described,
            sound(row.accuracy)?,
            of.into(),
            "tab:training",
        )
    })
}

fn bars<'a>(named: impl IntoIterator<Item = (&'a str, Estimate)>) -> Vec<(String, Estimate)> {
    named.into_iter().filter_map(|(name, e)| Some((name.to_owned(), sound(e)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};
    use switchyard::stats::wilson;
    use switchyard::store::RowWriter;

    use super::*;

    /// Inputs for the records of every question.
    #[derive(Clone, Copy)]
    struct FindingCase {
        n: usize,
        /// Of the two things compared, and half the width of the interval of their difference.
        difference: f64,
        half: f64,
        p: f64,
        /// Accuracy before anything is changed, against a guess of 1/7.
        before: f64,
    }

    const EFFECT: FindingCase = FindingCase { n: 200, difference: 0.4, half: 0.05, p: 1e-9, before: 0.9 };

    fn save<R: RowFile>(folder: &Path, n: usize, row: Value) {
        save_as::<R>(R::NAME, folder, n, row);
    }

    fn save_as<R: RowFile>(file: &str, folder: &Path, n: usize, mut row: Value) {
        let identity = json!({"checkpoint": "toy/sft", "dataset": "toy", "n": n, "seed": 0});
        row.as_object_mut().expect("a row").extend(identity.as_object().expect("an object").clone());
        let name = if R::NAME == PhaseRow::NAME { file.to_owned() } else { format!("{file}-sft") };
        let mut writer = RowWriter::create(folder, &name).expect("a file");
        writer.push(&row).expect("a row");
        writer.finish().expect("a file");
    }

    /// The title of each question, in the order of [`SOURCES`].
    fn titles_of(case: FindingCase) -> Vec<String> {
        let FindingCase { n, difference, half, p, before } = case;
        let temp = tempfile::tempdir().expect("a folder");
        let folder = temp.path();
        let about = |value: f64| json!({"value": value, "low": value - half, "high": value + half, "n": n});
        let share = |value: f64| json!(wilson((value * n as f64).round() as usize, n, LEVEL).expect("a share"));
        save::<KnownValueRow>(
            folder,
            n,
            json!({"steps": "all", "later": "recompute", "at": "both", "draws": 1, "firings": 9,
            "hit_rate": about(0.3 + difference), "chance": about(0.3), "above_chance": about(difference), "kept": about(0.1)}),
        );
        let intervention = json!({"mode": "resample", "dose": null, "steps": "all", "later": "recompute", "at": "both",
            "blocks": "own", "draws": 1, "accuracy": share((before - difference).clamp(0.0, 1.0)), "accuracy_change": about(-difference),
            "answer_changed": about(0.5), "guess": 1.0 / 7.0, "before": share(before), "diagnostic_accuracy": about(0.5), "diagnostic_by_luck": 3.0,
            "wrong_to_right": null, "lost": 0, "gained": 0, "p_value": p, "p_holm": p, "logit_diff": null, "logit_diff_change": null,
            "firings": 1, "mean_change": 1.0});
        save::<InterventionRow>(folder, n, intervention.clone());
        let mut hooked = intervention;
        hooked["hook"] = "blocks.0.hook_resid_post".into();
        save_as::<InterventionRow>(InterventionRow::HOOKS, folder, n, hooked);
        let mut writer = RowWriter::create(folder, "teacher_forced-sft").expect("a file");
        for (event, at) in [("swi_start", 0.4 + difference), ("clause_start", 0.4)] {
            let row = json!({"checkpoint": "toy/sft", "dataset": "toy", "n": n, "seed": 0, "event": event, "positions": 90,
                "entropy": about(0.2), "p_swi": about(at), "rank": about(1.0), "margin": about(1.0)});
            writer.push(&row).expect("a row");
        }
        writer.finish().expect("a file");
        save::<SwitchBenefitRow>(
            folder,
            n,
            json!({"group": "chosen", "with_block": share(before), "without_block": share((before - difference).clamp(0.0, 1.0)),
            "benefit": about(difference), "guess": 1.0 / 7.0, "better": 0, "worse": 0, "p_value": p, "p_holm": p}),
        );
        save::<ProbeRow>(
            folder,
            n,
            json!({"target": "value:s_j@1", "protocol": "grouped", "negatives": null, "layer": 4, "from_last": 1,
            "features": "resid_post", "rows": 90, "positives": 45, "accuracy": about(0.3 + difference), "balanced_accuracy": about(0.3 + difference),
            "auroc": null, "selectivity": null, "chance": 0.3}),
        );
        save::<ResponseRow>(folder, n, json!({"group": "all", "switch_rate": share(before), "truncated": about(0.0)}));
        save::<AccuracyRow>(
            folder,
            n,
            json!({"group": "all", "k_min": 1, "k_cap": 5, "accuracy": share(before), "switch_rate": about(0.5),
            "truncated": about(0.0)}),
        );
        save::<PhaseRow>(
            folder,
            n,
            json!({"phase": "sft", "source": "hidden_state", "accuracy": share(before), "switch_rate": about(0.5),
            "truncated": about(0.0)}),
        );
        let folder = Folder::open(folder).expect("rows");
        let found = SOURCES.iter().map(|(file, of)| {
            let found = of(&folder, "sft");
            found.unwrap_or_else(|| panic!("no finding from `{file}`: give its rows here")).title
        });
        found.collect()
    }

    #[test]
    fn every_sentence_says_what_its_test_supports() {
        use TestOutcome::{Described, NothingToLose, Opposite, TooFew, Unchanged, Undecided, Yes};
        let sure = titles_of(EFFECT);
        let cases: [(&str, FindingCase, [TestOutcome; SOURCES.len()]); 6] = [
            ("an effect", EFFECT, [Yes, Yes, Yes, Yes, Yes, Yes, Described, Described, Yes]),
            (
                "at chance before",
                FindingCase { before: 0.18, difference: 0.15, half: 0.04, p: 1e-6, ..EFFECT },
                [Yes, NothingToLose, Yes, NothingToLose, Yes, Yes, Described, Described, NothingToLose],
            ),
            (
                "underpowered",
                FindingCase { n: 30, half: 0.5, p: 0.3, ..EFFECT },
                [Undecided, Undecided, Undecided, Undecided, Undecided, Yes, Described, Described, Undecided],
            ),
            (
                "the other way round",
                FindingCase { before: 0.3, difference: -0.3, ..EFFECT },
                [Opposite, Opposite, Opposite, Opposite, Undecided, Yes, Described, Described, Opposite],
            ),
            (
                "no difference, within the margin",
                FindingCase { difference: 0.0, half: 0.02, p: 1.0, ..EFFECT },
                [Unchanged, Unchanged, Undecided, Unchanged, Undecided, Yes, Described, Described, Unchanged],
            ),
            ("below the floor", FindingCase { n: FEWEST - 1, ..EFFECT }, [TooFew; SOURCES.len()]),
        ];
        let accuracy = [described("Accuracy"), described("Held-out accuracy")];
        let questions =
            [&KNOWN_VALUE, &LATENTS, &PLACE, &BENEFIT, &VALUE_PROBE, &RESPONSES, &accuracy[0], &accuracy[1], &HOOKS];
        for (name, case, wanted) in cases {
            for (((title, wanted), question), yes) in titles_of(case).into_iter().zip(wanted).zip(questions).zip(&sure)
            {
                assert_eq!(title, question.title(wanted), "{name}");
                assert!(matches!(wanted, Yes | Described) || title != *yes, "{name}: {title}");
            }
        }
    }

    #[test]
    fn a_checkpoint_with_records_of_one_kind_has_its_finding() {
        let temp = tempfile::tempdir().expect("a folder");
        let about = |value: f64| json!({"value": value, "low": value - 0.05, "high": value + 0.05, "n": 200});
        let row = json!({"group": "chosen", "with_block": about(0.9), "without_block": about(0.5), "benefit": about(0.4), "guess": 0.1,
            "better": 90, "worse": 10, "p_value": 1e-9, "p_holm": 1e-9});
        save::<SwitchBenefitRow>(temp.path(), 200, row);
        assert_eq!(checkpoints(&Folder::open(temp.path()).expect("rows")), ["sft"]);
    }

    #[test]
    fn a_significant_loss_is_shown_before_a_larger_change_that_is_not() {
        let temp = tempfile::tempdir().expect("a folder");
        let about = |value: f64| json!({"value": value, "low": value - 0.05, "high": value + 0.05, "n": 200});
        let row = |hook: &str, change: f64, p: f64| {
            json!({"checkpoint": "toy/sft", "dataset": "toy", "n": 200, "seed": 0, "mode": "zero", "dose": null, "steps": "all",
                "later": "recompute", "at": "both", "blocks": "own", "hook": hook, "draws": 1, "accuracy": about(0.5),
                "accuracy_change": about(change), "answer_changed": about(0.5), "lost": 0, "gained": 0, "p_value": p, "p_holm": p,
                "firings": 1, "mean_change": 1.0})
        };
        let name = format!("{}-sft", InterventionRow::HOOKS);
        let mut writer = RowWriter::create(temp.path(), &name).expect("a file");
        for row in [row("blocks.0.hook_resid_post", -0.1, 0.08), row("blocks.1.hook_resid_post", -0.09, 1e-5)] {
            writer.push(&row).expect("a row");
        }
        writer.finish().expect("a file");
        let found = hooks(&Folder::open(temp.path()).expect("rows"), "sft").expect("a finding");
        assert_eq!(found.title, HOOKS.yes);
        assert!(found.of.contains("blocks.1") && found.of.contains("the largest significant one of 2"), "{}", found.of);
    }
}
