//! The rows of an intervention experiment: outcomes against normal's on the same problems, draws pooled, with intervals.
//! Knows outcomes, not how they came about.

use anyhow::Result;
use serde::Serialize;

use super::known_value::Hits;
use crate::interventions::{Firings, Later, Steps};
use crate::latent::Channel;
use crate::stats::{Bootstrap, Estimate, Flips, LEVEL, wilson};
use crate::study::modes::{Cell, NORMAL};
use crate::study::sweep::{BlockOrigin, Outcome};
use crate::study::{Identity, Study};

/// One mode at one dose on one choice of steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub identity: Identity,
    pub mode: String,
    pub dose: Option<f64>,
    /// `all`, a step, or `k..`.
    pub steps: Steps,
    pub later: Later,
    pub at: Channel,
    /// Whether the model opened its blocks itself.
    pub blocks: BlockOrigin,
    pub draws: usize,
    /// Problems × draws; intervals resample problems.
    pub accuracy: Estimate,
    /// Minus normal's, paired.
    pub accuracy_change: Estimate,
    /// Share of answers that differ from normal's.
    pub answer_changed: Estimate,
    /// On the problems where normal switched and was right.
    pub diagnostic_accuracy: Option<Estimate>,
    /// Share of normal's wrong answers that are right.
    pub wrong_to_right: Option<Estimate>,
    /// Right under normal, wrong in most draws; a tie counts for neither.
    pub lost: usize,
    pub gained: usize,
    /// Exact McNemar against normal, all problems.
    pub p_value: f64,
    /// The same, Holm-adjusted over the interventions of this run.
    pub p_holm: f64,
    /// Lead of the gold answer, in nats.
    pub logit_diff: Option<Estimate>,
    /// Minus normal's, on problems where both give an answer.
    pub logit_diff_change: Option<Estimate>,
    /// Of `known_value`; a row of its own in its own file.
    #[serde(skip)]
    pub hits: Option<Hits>,
    /// Latent inputs replaced.
    pub firings: usize,
    /// Mean ‖new − old‖ of a firing.
    pub mean_change: f64,
}

/// One row: `draws` of a mode against `before`.
///
/// # Errors
/// Outcomes of no problems.
pub(super) fn row(
    study: &Study,
    cell: &Cell,
    before: &[Outcome],
    draws: &[&[Outcome]],
    firings: Firings,
    hits: Option<Hits>,
) -> Result<Row> {
    let n = before.len();
    let number = |yes: bool| f64::from(u8::from(yes));
    let bootstrap = Bootstrap::seeded(study.seed);
    let pairs = || draws.iter().flat_map(|d| (0..n).map(move |i| (i, &d[i])));
    // Problems × draws, pooled; one draw is a plain share.
    let share = |keep: &dyn Fn(usize) -> bool, yes: &dyn Fn(usize, &Outcome) -> bool| -> Result<Option<Estimate>> {
        let (groups, values): (Vec<usize>, Vec<bool>) =
            pairs().filter(|(i, _)| keep(*i)).map(|(i, o)| (i, yes(i, o))).unzip();
        pooled(&bootstrap, &groups, &values, draws.len())
    };
    let all = |_: usize| true;
    let right = |_: usize, o: &Outcome| o.correct;
    let some = |estimate: Option<Estimate>| estimate.ok_or_else(|| anyhow::anyhow!("no problems"));
    // Most draws decide; a tie leaves a problem as it was.
    let majority: Vec<bool> = (0..n)
        .map(|i| {
            let correct = draws.iter().filter(|d| d[i].correct).count();
            if 2 * correct == draws.len() { before[i].correct } else { 2 * correct > draws.len() }
        })
        .collect();
    let flips = Flips::count(&before.iter().map(|o| o.correct).collect::<Vec<_>>(), &majority)?;
    let (groups, was, is): (Vec<usize>, Vec<f64>, Vec<f64>) =
        pairs().map(|(i, o)| (i, number(before[i].correct), number(o.correct))).collect();
    let p_value = if cell.is(NORMAL) { 1.0 } else { flips.p_value() };
    let (at, leads): (Vec<usize>, Vec<f64>) = pairs().filter_map(|(i, o)| Some((i, o.margin?))).unzip();
    let both: Vec<(usize, f64, f64)> = pairs().filter_map(|(i, o)| Some((i, before[i].margin?, o.margin?))).collect();
    let (both_at, margin_was, margin_is): (Vec<usize>, Vec<f64>, Vec<f64>) = both.into_iter().collect();
    Ok(Row {
        identity: study.identity(n),
        mode: cell.mode.clone(),
        dose: cell.dose,
        steps: cell.steps,
        later: Later::Recompute,
        at: Channel::Both,
        blocks: BlockOrigin::Own,
        draws: draws.len(),
        accuracy: some(share(&all, &right)?)?,
        accuracy_change: bootstrap.clustered_paired(&was, &is, &groups)?,
        answer_changed: some(share(&all, &|i, o| o.answer != before[i].answer)?)?,
        diagnostic_accuracy: share(&|i| before[i].switched && before[i].correct, &right)?,
        wrong_to_right: share(&|i| !before[i].correct, &right)?,
        lost: flips.lost,
        gained: flips.gained,
        p_value,
        p_holm: p_value,
        logit_diff: several(&at).then(|| bootstrap.clustered_mean(&leads, &at)).transpose()?,
        logit_diff_change: several(&both_at)
            .then(|| bootstrap.clustered_paired(&margin_was, &margin_is, &both_at))
            .transpose()?,
        hits,
        firings: firings.count,
        mean_change: firings.mean_norm(),
    })
}

/// Wilson's interval where rows are problems, a bootstrap over problems where each has several draws.
fn pooled(bootstrap: &Bootstrap, groups: &[usize], values: &[bool], draws: usize) -> Result<Option<Estimate>> {
    if values.is_empty() {
        return Ok(None);
    }
    let problems = values.len() / draws.max(1);
    let agree = values.iter().all(|v| *v == values[0]);
    if draws == 1 || agree || problems < 2 {
        let successes = values.iter().filter(|v| **v).count() / draws.max(1);
        return wilson(successes, problems.max(1), LEVEL).map(Some);
    }
    let values: Vec<f64> = values.iter().map(|v| f64::from(u8::from(*v))).collect();
    bootstrap.clustered_mean(&values, groups).map(Some)
}

/// Whether a bootstrap has at least two units.
fn several(groups: &[usize]) -> bool {
    groups.iter().any(|g| *g != groups[0])
}

/// As it stands in the rows.
fn written(setting: &impl Serialize) -> String {
    serde_json::to_value(setting).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Markdown, one row a mode.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| mode | steps | later, at | draws | accuracy [95 %] | change | answer changed | diagnostic accuracy | lost / gained | p (Holm) | lead of gold (nats) | firings | mean ‖Δ‖ |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let or_dash = |e: Option<Estimate>, p: usize| e.map_or_else(|| "—".into(), |e| format!("{e:.p$}"));
    for r in rows {
        let dose = r.dose.map(|d| format!(":{d}")).unwrap_or_default();
        out += &format!(
            "| {}{dose} | {} | {}, {} | {} | {:.3} | {:.3} | {:.3} | {} | {} / {} | {:.1e} | {} | {} | {:.2} |\n",
            r.mode,
            r.steps,
            written(&r.later),
            written(&r.at),
            r.draws,
            r.accuracy,
            r.accuracy_change,
            r.answer_changed,
            or_dash(r.diagnostic_accuracy, 3),
            r.lost,
            r.gained,
            r.p_holm,
            or_dash(r.logit_diff, 2),
            r.firings,
            r.mean_change
        );
    }
    for r in rows {
        if let Some(Hits { hit_rate, chance, above_chance, kept }) = r.hits {
            out += &format!(
                "\n{} ({}): the answer became the predicted one in {hit_rate:.3}; chance {chance:.3}; above it \
                 {above_chance:.3}; it stayed in {kept:.3}\n",
                r.mode, r.steps
            );
        }
    }
    out
}

/// How often the answer followed the exchanged value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnownRow {
    /// `n` counts problems with a block that could be exchanged.
    #[serde(flatten)]
    pub identity: Identity,
    pub steps: Steps,
    pub later: Later,
    pub at: Channel,
    pub draws: usize,
    #[serde(flatten)]
    pub hits: Hits,
    pub firings: usize,
}

/// The rows of `known_value` among those of a run.
pub fn known_rows(rows: &[Row]) -> Vec<KnownRow> {
    let of = |row: &Row| {
        let hits = row.hits?;
        let identity = Identity { n: hits.hit_rate.n, ..row.identity.clone() };
        let Row { steps, later, at, draws, firings, .. } = *row;
        Some(KnownRow { identity, steps, later, at, draws, hits, firings })
    };
    rows.iter().filter_map(of).collect()
}
