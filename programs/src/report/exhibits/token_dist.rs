//! fig:token-dist, fig:token-cdf: visible tokens per problem for each checkpoint, including the one with the brevity reward.

use super::{Exhibit, lacking};
use crate::report::figures::{Axis, Ecdf, Figure, Histogram};
use crate::report::folder::{Folder, called};
use switchyard::schema::{OutcomeRow, RowFile};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        covers: true,
        draw: |exhibit, _, folder| {
            let samples = samples(folder);
            let (title, x, of) = (X.replacen('v', "V", 1), Axis::new(X).whole(), "problems".into());
            let some = !samples.is_empty();
            let panel = some.then_some(Figure::Histogram(Histogram { title, x, of, samples, bins: 30 }));
            let shown = folder.checkpoints_with::<OutcomeRow>();
            let lacking = lacking(&[&folder.sft, &folder.grpo, "brevity"], |c| shown.contains(&c));
            let note = format!("Dashed uprights: means.{lacking}");
            exhibit.drawing("Distribution of visible tokens", 1, panel.into_iter().collect(), &note)
        },
        ..Exhibit::new("fig:token-dist", &[OutcomeRow::NAME])
    },
    Exhibit {
        draw: |exhibit, _, folder| {
            let samples = samples(folder);
            let title = "Visible tokens per problem, cumulative".into();
            let some = !samples.is_empty();
            let panel = some.then(|| Figure::Ecdf(Ecdf { title, x: Axis::new(X), of: "problems".into(), samples }));
            let note = "Bands: 95 %, simultaneous (Dvoretzky–Kiefer–Wolfowitz).";
            exhibit.drawing("Empirical CDF of visible tokens", 1, panel.into_iter().collect(), note)
        },
        ..Exhibit::new("fig:token-cdf", &[OutcomeRow::NAME])
    },
];

const X: &str = "visible tokens per problem";

/// Name and values of each checkpoint.
fn samples(folder: &Folder) -> Vec<(String, Vec<f64>)> {
    let of = |c: &str| folder.rows::<OutcomeRow>(c).iter().map(|r| r.visible_tokens as f64).collect::<Vec<_>>();
    let all = folder.checkpoints_with::<OutcomeRow>().into_iter().map(|c| (called(c), of(c)));
    all.filter(|(_, values)| !values.is_empty()).collect()
}
