//! Differences on the same problems: sharper than two intervals side by side. Knows the columns `lost` and `gained` of
//! interventions and the rows of `outcomes`; nothing of claims.

use std::collections::BTreeMap;

use super::cells::{Cells, intervention_row};
use super::claims::Term;
use super::folder::{Folder, sound};
use super::paper::{Paper, parts};
use crate::schema::OutcomeRow;
use crate::stats::{Bootstrap, Estimate, Flips};

/// left − right over the same problems, in the paper's unit, and how it was tested.
pub struct Paired {
    pub difference: Estimate,
    pub test: String,
}

/// The paired difference of two cells, where the rows carry the pairs.
pub fn difference(paper: &Paper, cells: Cells<'_>, left: &Term, right: &Term) -> Option<Paired> {
    let (Term::Cell(left), Term::Cell(right)) = (left, right) else { return None };
    let ([l, lr, lc], [r, rr, rc]) = (parts(left).ok()?, parts(right).ok()?);
    if l != r || lc != rc {
        return None;
    }
    let scale = paper.unit(left).ok()?.per_share();
    let found = match (l, rr, lc) {
        ("tab:intervention", "normal", "all_acc") => against_normal(cells, lr),
        ("tab:main", "switch_sft", _) if lr == "switch_grpo" => between_phases(cells.folder, lc),
        ("tab:appendix-sweep", "stage6", "acc" | "tokens") if lr == "step800" => between_phases(cells.folder, lc),
        ("tab:sft-vs-rl", "sft", "switch_rate" | "tokens") if lr == "grpo" => between_phases(cells.folder, lc),
        _ => None,
    }?;
    Some(Paired { difference: found.difference.scaled(scale), test: found.test })
}

fn against_normal(cells: Cells<'_>, mode: &str) -> Option<Paired> {
    let row = intervention_row(cells.folder, cells.checkpoint, mode)?;
    let (gained, lost, p) = (row.gained, row.lost, row.p_value);
    let test = format!("paired bootstrap; gained {gained}, lost {lost}, exact McNemar p = {p:.1e}");
    Some(Paired { difference: sound(row.accuracy_change)?, test })
}

/// GRPO − SFT, problem by problem.
fn between_phases(folder: &Folder, column: &str) -> Option<Paired> {
    let truth = |yes: bool| f64::from(u8::from(yes));
    let value = |row: &OutcomeRow| match column {
        "tokens" | "math500_tokens" | "gsm8k_tokens" => row.visible_tokens as f64,
        "switch_rate" => truth(row.switched),
        _ => truth(row.correct),
    };
    let values = |checkpoint: &str| -> BTreeMap<usize, f64> {
        folder.rows::<OutcomeRow>(checkpoint).iter().map(|row| (row.problem, value(row))).collect()
    };
    let (before, after) = (values(&folder.sft), values(&folder.grpo));
    let pairs: Vec<(f64, f64)> = before.iter().filter_map(|(p, b)| Some((*b, *after.get(p)?))).collect();
    let (b, a): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let difference = Bootstrap::default().paired(&b, &a).ok()?;
    let test = if column.ends_with("tokens") {
        "paired bootstrap over the same problems".to_owned()
    } else {
        let truth = |v: &[f64]| v.iter().map(|x| *x > 0.5).collect::<Vec<_>>();
        let flips = Flips::count(&truth(&b), &truth(&a)).ok()?;
        format!("gained {}, lost {}, exact McNemar p = {:.1e}", flips.gained, flips.lost, flips.p_value())
    };
    Some(Paired { difference, test })
}
