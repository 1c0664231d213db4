//! The rows for a terminal: probes for the switch one per line, probes for values one per line with latent steps as columns. Control rows
//! are only in the files; selectivity summarises them.

use std::collections::BTreeMap;

use super::Config;
use crate::experiments::markdown::{by_step, or_dash, table_of, titled};
use crate::schema::{Features, ProbeRow, stream_name};

pub fn tables(rows: &[ProbeRow], config: &Config) -> String {
    let shown: Vec<&ProbeRow> = rows.iter().filter(|r| r.features != Features::Shuffled).collect();
    let columns = "protocol | features | layer | balanced accuracy | AUROC | selectivity";
    let out = table_of(columns, shown.iter().filter(|r| r.is_switch()), |r| {
        let ProbeRow { protocol, features, layer, balanced_accuracy, .. } = r;
        let [auroc, selectivity] = [r.auroc, r.selectivity].map(|e| or_dash(e.map(|e| format!("{:.3}", e.value))));
        let star = if r.is_readable() { " *" } else { "" };
        format!(
            "{protocol:?} | {features:?} | {} | {balanced_accuracy}{star} | {auroc} | {selectivity}",
            stream_name(*layer)
        )
    });
    let switch = titled("Probes of the switch: does <swi> come next? * above chance.", &out);
    let switch = if shown.iter().any(|r| r.is_switch()) { switch } else { String::new() };
    values(&shown) + &switch + &ends(&shown, config)
}

/// A note if the chosen C is at an end of its grid, so that another grid might give a higher score.
fn ends(rows: &[&ProbeRow], config: &Config) -> String {
    let (mut splits, mut at, mut probes) = (0, [0, 0], 0);
    for row in rows {
        let is_value = row.value().is_some_and(|value| !value.starts_with("frontier"));
        let grid = if is_value { &config.value.c_grid } else { &config.grouped.c_grid };
        let [low, high] = [f64::min, f64::max].map(|most| grid.iter().copied().reduce(most).unwrap_or(f64::NAN));
        let chosen = row.chosen_c.iter().filter(|_| low < high).flat_map(|chosen| chosen.split(' '));
        let mut ended = false;
        for c in chosen.filter_map(|c| c.parse::<f64>().ok()) {
            splits += 1;
            at[0] += usize::from(c == low);
            at[1] += usize::from(c == high);
            ended |= c == high;
        }
        probes += usize::from(ended);
    }
    match at {
        [0, 0] => String::new(),
        [low, high] => format!(
            "\nOf {splits} splits {high} chose the largest C of the grid (in {probes} probes) and {low} the smallest, as ties do \
             (column chosen_c).\n"
        ),
    }
}

/// Accuracies by latent step.
fn values(rows: &[&ProbeRow]) -> String {
    // (value, layer) → step → row
    let mut lines: BTreeMap<(&str, usize), BTreeMap<usize, &ProbeRow>> = BTreeMap::new();
    for row in rows {
        let Some((value, step)) = row.target.strip_prefix("value:").and_then(|t| t.split_once('@')) else { continue };
        if let Ok(step) = step.parse() {
            lines.entry((value, row.layer)).or_default().insert(step, row);
        }
    }
    let steps = lines.values().flat_map(|line| line.keys().copied()).max().unwrap_or(0);
    if steps == 0 {
        return String::new();
    }
    let columns = by_step("value | layer | n | chance".into(), steps, |step| format!("step {step}"));
    let cell = |r: &&ProbeRow| {
        let accuracy = r.accuracy.unwrap_or(r.balanced_accuracy).value;
        format!("{accuracy:.3}{}", if r.is_readable() { " *" } else { "" })
    };
    let table = table_of(&columns, lines, |((value, layer), line)| {
        let first = line.values().next();
        let n = or_dash(first.map(|first| first.accuracy.unwrap_or(first.balanced_accuracy).n));
        let chance = or_dash(first.map(|first| format!("{:.3}", first.chance)));
        by_step(format!("{value} | {} | {n} | {chance}", stream_name(layer)), steps, |step| {
            or_dash(line.get(&step).map(cell))
        })
    });
    titled(
        "Probes of values: accuracy at each latent step (of frontiers balanced accuracy); * above chance; intervals, bits and the same \
         probe with shuffled labels are in the row file. s_j is the result of the step that the block replaces, s_j-1 of the step before it; \
         s1, s2, … of step 1, 2, ….",
        &table,
    ) + "\n"
}
