//! The certificate: what a model's latents do, one question and answer per line ([`CardQuestion`]).
//!
//! 1. Decode the problems unchanged, and with the latents of each block replaced: by another problem's, in reverse order, by the mean of
//!    each step, by the embedding of the most probable token; where arithmetic is known, by those of a block with another value.
//! 2. Replace one latent step at a time by another problem's.
//! 3. Decode every problem with a block and without.
//! 4. Fit a linear probe for the value of a clause at the last layer of each latent step, split by program.
//! 5. Decode training problems, and compare with unseen problems of the same subject and level; decode problems one level beyond the hardest
//!    trained one; sample each problem several times.
//! 6. Answer ([`crate::schema::CardRow`]): one Holm family; *no* by equivalence within `margin`.
//! 7. Count the opaque serial depth ([`SerialDepth`]).
//!
//! Misleads: an answer is the result of its test and no more. *more than the token* cannot distinguish a state from a token whose embedding
//! the model reads differently; a model may encode a value that the probe does not find. Other seeds of training are not measured, because
//! a checkpoint has one.

use std::collections::{BTreeMap, HashSet};

use anyhow::Result;

use super::layer_probe::values_at_last_layer;
use super::{About, Journal, check_of, latent_intervention, pass_at_k, switch_benefit};
use crate::corpus::{Corpus, program};
use crate::evaluation::Scores;
use crate::interventions::Steps;
use crate::latent::{Chain, LatentSource, SerialDepth, Trace};
use crate::progress::say;
use crate::recipe::MOST_ROWS;
use crate::recipe::Range::{AtMost, Count};
use crate::schema::{
    AT_CHANCE, CardQuestion, CardRow, ChainOf, Evidence, Features, InterventionRow, KnownValueRow, MARGIN, ProbeRow,
    RowFile, SerialDepthRow, Summary, SwitchBenefitRow, SwitchProblemRow, answer, benefit,
};
use crate::stats::probe::TooFew;
use crate::stats::{Estimate, FEWEST, Flips, LEVEL, accuracy};
use crate::store::{MODEL_CARD, Measurements, Placement, commit, put_certificate};
use crate::study::arithmetic::{Arithmetic, is_known};
use crate::study::{DoesNotApply, Study};
use crate::text::Problem;

pub const ABOUT: About =
    About::asking("the certificate: eleven questions about the latents, one answer each, one family of tests")
        .on_request();

settings! {
    pub struct Config {
        /// Latent steps that are replaced one at a time, from the first, at most.
        pub steps: usize = 16 => Count(1, MOST_ROWS),
        /// Draws of another problem's latents.
        pub draws: usize = 3 => Count(1, MOST_ROWS),
        /// Sampled answers to each problem.
        pub samples: usize = 4 => Count(2, MOST_ROWS),
        /// Largest effect that still counts as none: *no* needs two one-sided tests that reject it. Above 0, at most 0.5.
        pub margin: f64 = MARGIN => AtMost(0.5),
    }
}

/// The lines of a model's card, as rows and in the model card that `train` wrote next to the weights.
pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    check_of("card", config, Config::RANGES)?;
    let depths = serial_depth(study)?;
    journal.save(SerialDepthRow::NAME, &depths)?;
    let rows = rows(study, config)?;
    let summary = journal.tell(&rows, table)? + &depths.iter().map(SerialDepthRow::line).collect::<String>();
    let Some(CardRow { identity, .. }) = rows.first() else { return Ok(summary) };
    let (problems, of) = (study.corpus.test.len(), &identity.dataset);
    let lines = format!("commit {}, {of}, seed {}:\n\n{summary}", commit(), identity.seed);
    for folder in study.source.first().into_iter().chain(&study.adapter) {
        let shown = folder.display();
        match put_certificate(folder, problems, &lines) {
            Ok(Placement::Written) => say(&format!("{shown}: the certificate is in its {MODEL_CARD}")),
            Ok(Placement::Larger(more)) => {
                say(&format!("{shown}: its {MODEL_CARD} has a certificate of {more} problems, which stays"));
            }
            Ok(Placement::NoCard) => {}
            Err(why) => say(&format!("the certificate is in the rows, not in the model card: {why:#}")),
        }
    }
    Ok(summary)
}

/// Opaque serial depth of text, of the longest block, and of the response with the most latents.
pub fn serial_depth(study: &Study) -> Result<Vec<SerialDepthRow>> {
    let (model, reasoning) = (&study.model, &study.reasoning);
    let positions = model.config().max_position_embeddings;
    let depth = SerialDepth::new(model.config(), &reasoning.source, model.heads.sizes(), positions)?;
    let mixes = reasoning.source.mixing().is_some();
    let of = |trace: &Trace| if mixes { trace.positions.len() } else { trace.latent_calls() };
    let most = study.sweep()?.traces.iter().map(of).max().unwrap_or(0);
    let chains = [(ChainOf::Text, 0), (ChainOf::Block, reasoning.longest_block()), (ChainOf::Response, most)];
    let row = |(chain, latents)| {
        let Chain { layers, operations } = depth.chain(latents);
        SerialDepthRow {
            identity: study.identity(study.corpus.test.len()),
            chain,
            latents,
            layers,
            operations,
            positions,
        }
    };
    Ok(chains.into_iter().filter(|&(chain, latents)| chain == ChainOf::Text || latents > 0).map(row).collect())
}

/// The lines of a model's card.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<CardRow>> {
    rows_by(study, config, None)
}

/// [`rows`] with another arithmetic; `None`: that of the problems.
pub(crate) fn rows_by(study: &Study, config: &Config, arithmetic: Option<&dyn Arithmetic>) -> Result<Vec<CardRow>> {
    let margin = config.margin;
    let identity = study.identity(study.corpus.test.len());
    if let Err(why) = caught(longest_block(study))? {
        let none = |&question: &CardQuestion| (question, Evidence::Missing(format!("no latents: {why}")));
        return answer(&identity, margin, CardQuestion::ALL.iter().map(none).collect());
    }
    let known = arithmetic.is_some() || is_known(study);
    let summary = caught(interventions(study, config, known, arithmetic))?;
    let by_step = caught(steps(study, config))?;
    let benefits = caught(benefits(study))?;
    let probes = caught(values_at_last_layer(study))?;
    let memorised = caught(memorised(study, margin))?;
    let deeper = caught(deeper(study, margin))?;
    let varies = caught(varies(study, config))?;
    let lost = |mode: &'static str| from(&summary, |summary| loss(&summary.rows, mode, margin));
    let found = |question: CardQuestion| match question {
        CardQuestion::Used => lost("resample"),
        CardQuestion::Follows if !known => Evidence::Missing("no arithmetic is known of these problems".to_owned()),
        CardQuestion::Follows => from(&summary, |summary| followed(&summary.known, margin)),
        CardQuestion::OneStep => from(&by_step, |rows| largest_loss(rows, margin)),
        CardQuestion::Ordered => lost("reverse"),
        CardQuestion::Specific => lost("mean"),
        CardQuestion::BeyondToken => lost("embedding_argmax"),
        CardQuestion::Helps => from(&benefits, |rows| helped(rows, margin)),
        CardQuestion::Readable => from(&probes, |rows| read(rows, margin)),
        CardQuestion::Memorised => from(&memorised, Evidence::clone),
        CardQuestion::Deeper => from(&deeper, Evidence::clone),
        CardQuestion::Varies => from(&varies, Evidence::clone),
    };
    answer(&identity, margin, CardQuestion::ALL.iter().map(|&question| (question, found(question))).collect())
}

/// The result of an experiment, or the reason why it does not apply to this model and data. Other errors are returned as errors.
pub(super) fn caught<T>(result: Result<T>) -> Result<Result<T, String>> {
    match result {
        Err(why) if why.is::<DoesNotApply>() || why.is::<TooFew>() => Ok(Err(format!("{why:#}"))),
        other => other.map(Ok),
    }
}

fn from<T>(result: &Result<T, String>, evidence: impl Fn(&T) -> Evidence) -> Evidence {
    result.as_ref().map_or_else(|why| Evidence::Missing(why.clone()), evidence)
}

fn longest_block(study: &Study) -> Result<usize> {
    let longest = study.sweep()?.bank.steps();
    study.require(longest > 0, || "no problem has a latent block".to_owned())?;
    Ok(longest)
}

const MODES: [&str; 5] = ["normal", "resample", "reverse", "mean", "embedding_argmax"];

fn interventions(study: &Study, config: &Config, known: bool, arithmetic: Option<&dyn Arithmetic>) -> Result<Summary> {
    let exchange = known.then_some("known_value");
    let modes = MODES.into_iter().chain(exchange).map(str::to_owned).collect();
    let asked = latent_intervention::Config { modes, draws: config.draws, ..Default::default() };
    Ok(latent_intervention::summary(study, &asked, arithmetic)?.0)
}

/// Interventions at one latent step at a time.
fn steps(study: &Study, config: &Config) -> Result<Vec<InterventionRow>> {
    let steps = (0..longest_block(study)?.min(config.steps)).map(Steps::Only).collect();
    let modes = vec!["normal".to_owned(), "resample".to_owned()];
    let asked = latent_intervention::Config { modes, steps, draws: 1, ..Default::default() };
    Ok(latent_intervention::summary(study, &asked, None)?.0.rows)
}

fn benefits(study: &Study) -> Result<Vec<SwitchBenefitRow>> {
    let mut problems = Measurements::in_memory();
    switch_benefit::measure(study, &switch_benefit::Config::default(), &mut problems)?;
    benefit(&problems.sorted(|row: &SwitchProblemRow| row.problem)?)
}

/// Loss of accuracy under a mode at all steps.
fn loss(rows: &[InterventionRow], mode: &str, margin: f64) -> Evidence {
    let Some(row) = rows.iter().find(|row| row.mode == mode) else {
        return Evidence::Missing(format!("{mode} changed nothing here"));
    };
    lost(row, row.p_value, margin, String::new())
}

fn lost(row: &InterventionRow, p: f64, margin: f64, detail: String) -> Evidence {
    if row.verdict() == AT_CHANCE {
        return Evidence::Missing("unchanged, the model is right no more often than a guess".to_owned());
    }
    Evidence::Measured { number: row.accuracy_change.scaled(-1.0), p, p_same: row.p_same(margin), detail }
}

/// The step with the largest loss; its p-value is corrected for the choice among all steps.
fn largest_loss(rows: &[InterventionRow], margin: f64) -> Evidence {
    let single: Vec<&InterventionRow> = rows.iter().filter(|row| matches!(row.steps, Steps::Only(_))).collect();
    let Some(worst) = single.iter().min_by(|a, b| a.accuracy_change.value.total_cmp(&b.accuracy_change.value)) else {
        return Evidence::Missing("no single step could be replaced".to_owned());
    };
    let alone = single.iter().filter(|row| row.lowers()).map(|row| row.steps.to_string()).collect::<Vec<_>>();
    let alone = if alone.is_empty() { "none".to_owned() } else { alone.join(", ") };
    let detail = format!("step {} of {}; steps that lose alone: {alone}", worst.steps, single.len());
    // *No* says it of every step: the least certain one decides.
    let p_same = single.iter().map(|row| row.p_same(margin)).fold(0.0, f64::max);
    match lost(worst, (worst.p_value * single.len() as f64).min(1.0), margin, detail) {
        Evidence::Measured { number, p, detail, .. } => Evidence::Measured { number, p, p_same, detail },
        missing => missing,
    }
}

fn followed(known: &[KnownValueRow], margin: f64) -> Evidence {
    let Some(row) = KnownValueRow::main(known) else {
        return Evidence::Missing("no two problems have blocks that could be exchanged".to_owned());
    };
    let detail = format!("predicted {:.3}, by chance {:.3}", row.hit_rate.value, row.chance.value);
    of_number(row.above_chance, two_sided(row.above_chance), margin, detail)
}

fn helped(rows: &[SwitchBenefitRow], margin: f64) -> Evidence {
    let Some(row) = rows.iter().find(|row| row.group == "chosen") else {
        return Evidence::Missing("the model opens a block on fewer than two problems".to_owned());
    };
    if row.verdict() == AT_CHANCE {
        return Evidence::Missing("with a block and without, the model is right no more often than a guess".to_owned());
    }
    of_number(row.benefit, row.p_value, margin, String::new())
}

/// The best step's probe for the value of the block's own clause; its p-value is corrected for the choice among all steps.
fn read(rows: &[ProbeRow], margin: f64) -> Evidence {
    let own: Vec<(&str, &ProbeRow)> = rows
        .iter()
        .filter(|row| row.features == Features::ResidPost)
        .filter_map(|row| Some((row.value()?.strip_prefix("s_j@")?, row)))
        .collect();
    let Some((step, best)) = own.iter().max_by(|a, b| a.1.beyond_chance().value.total_cmp(&b.1.beyond_chance().value))
    else {
        return Evidence::Missing("no latent step has values that a probe could be fitted to".to_owned());
    };
    let beyond = best.beyond_chance();
    let detail = format!("step {step}, the best of {}; the commonest value has {:.3}", own.len(), best.chance);
    let p_same = own.iter().map(|(_, row)| row.beyond_chance().p_equivalent(margin)).fold(0.0, f64::max);
    Evidence::Measured { number: beyond, p: (two_sided(beyond) * own.len() as f64).min(1.0), p_same, detail }
}

fn of_number(number: Estimate, p: f64, margin: f64, detail: String) -> Evidence {
    Evidence::Measured { number, p, p_same: number.p_equivalent(margin), detail }
}

/// Training problems against unseen ones: one problem of each program, paired within subject and level.
fn memorised(study: &Study, margin: f64) -> Result<Evidence> {
    let trained = study.training_problems()?;
    let (seen, unseen) = (study.decode_with(&study.model, &trained.corpus)?, study.decoded()?.0);
    let is_unseen = |problem: &Problem| !trained.programs.contains(&program(problem));
    let seen = by_kind(&trained.corpus, &seen, |_| true);
    let (mut unseen, mut before, mut after) = (by_kind(&study.corpus, unseen, is_unseen), vec![], vec![]);
    for (kind, right) in seen {
        let others = unseen.remove(&kind).unwrap_or_default();
        for (with, without) in right.into_iter().zip(others) {
            before.push(without);
            after.push(with);
        }
    }
    if before.is_empty() {
        return Ok(Evidence::Missing(
            "no held-out problem is of a kind that was trained and is itself unseen".to_owned(),
        ));
    }
    let [unseen, seen] = [&before, &after].map(|right| accuracy(right));
    let (unseen, seen) = (unseen?, seen?);
    if before.len() < FEWEST {
        let few = format!("{} programs of each kind, and a test needs {FEWEST}", before.len());
        return Ok(Evidence::Missing(few));
    }
    if !seen.is_above(trained.corpus.guess()) {
        return Ok(Evidence::Missing("it is right no more often than a guess on its training problems too".to_owned()));
    }
    let flips = Flips::count(&before, &after)?;
    let detail = format!("{:.3} and {:.3}, {} programs each", seen.value, unseen.value, before.len());
    let (number, p, p_same) = (flips.change(LEVEL)?, flips.p_value(), flips.p_equivalent(margin));
    Ok(Evidence::Measured { number, p, p_same, detail })
}

/// Subject and level.
type Kind<'a> = (Option<&'a str>, Option<u8>);

/// Whether the first problem of each program was answered right, by kind.
fn by_kind<'a>(
    corpus: &'a Corpus,
    scores: &Scores,
    wanted: impl Fn(&Problem) -> bool,
) -> BTreeMap<Kind<'a>, Vec<bool>> {
    let (mut kinds, mut met): (BTreeMap<Kind, Vec<bool>>, _) = (BTreeMap::new(), HashSet::new());
    for (problem, outcome) in corpus.test.iter().zip(&scores.outcomes) {
        if wanted(problem) && met.insert(program(problem)) {
            kinds.entry((problem.subject.as_deref(), problem.level)).or_default().push(outcome.correct);
        }
    }
    kinds
}

/// Problems one level beyond the hardest trained one, against a guess.
fn deeper(study: &Study, margin: f64) -> Result<Evidence> {
    let problems = study.deeper_problems()?;
    let right = study.decode_with(&study.model, problems)?.accuracy;
    let guess = problems.guess();
    let hardest = study.corpus.test.iter().filter_map(|problem| problem.level).max();
    let outcomes = &study.decoded()?.0.outcomes;
    let hardest: Vec<bool> = outcomes.iter().filter(|o| o.level == hardest).map(|o| o.correct).collect();
    let level = problems.test.first().and_then(|problem| problem.level).unwrap_or_default();
    let detail = format!(
        "level {level}: {:.3} right, {guess:.3} by a guess; {:.3} at the hardest trained level",
        right.value,
        accuracy(&hardest)?.value
    );
    let number = Estimate { value: right.value - guess, low: right.low - guess, high: right.high - guess, n: right.n };
    // A share is never below 0: of the two tests of equivalence only one can fail.
    let p_same = number.scaled(-1.0).p_above(-margin);
    Ok(Evidence::Measured { number, p: two_sided(number), p_same, detail })
}

/// Pairs of answers to one problem, sampled at the temperature of the recipe's rollouts.
fn varies(study: &Study, config: &Config) -> Result<Evidence> {
    let temperature = study.recipe.grpo.temperature;
    let sampled = pass_at_k::Config { samples: config.samples, temperature };
    let differ = |draws: &pass_at_k::Draws| {
        let pairs = draws.answers.iter().enumerate().flat_map(|(i, a)| draws.answers[..i].iter().map(move |b| a != b));
        let pairs: Vec<bool> = pairs.collect();
        pairs.iter().filter(|differ| **differ).count() as f64 / pairs.len() as f64
    };
    let shares: Vec<f64> = pass_at_k::drawn(study, &sampled)?.iter().map(differ).collect();
    let number = pass_at_k::mean(study.seed, &shares)?;
    let Config { samples, margin, .. } = *config;
    let detail = format!("{samples} samples a problem at temperature {temperature}; yes: more than {margin}");
    // A share is never below 0: of the two tests of equivalence only one can fail.
    let [p, p_same] = [number.p_above(margin), number.scaled(-1.0).p_above(-margin)];
    Ok(Evidence::Measured { number, p: (2.0 * p).min(1.0), p_same, detail })
}

/// Two-sided p-value against 0, from an interval.
fn two_sided(number: Estimate) -> f64 {
    (2.0 * number.p_above(0.0).min(number.scaled(-1.0).p_above(0.0))).min(1.0)
}

pub fn table(rows: &[CardRow]) -> String {
    let line = |row: &CardRow| {
        let effect =
            row.number.zip(row.p_holm).map(|(number, p)| format!(" {number:.3}, p {p:.1e}:")).unwrap_or_default();
        format!("- {}: {}{effect} {}.\n", row.answer, row.question.text(), row.explanation())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_failure_is_no_answer() {
        let few = || Err::<(), _>(TooFew("3 problems".into())).context("value probe");
        assert_eq!(caught(few()).expect("a reason"), Err("value probe: 3 problems".to_owned()));
        assert!(caught::<()>(Err(anyhow!("the disk is full"))).is_err());
        assert_eq!(caught(Ok(3)).expect("a result"), Ok(3));
    }
}
