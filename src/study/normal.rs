//! The normal run of some problems as records for other processes: outcomes, traces and latent states, bit for bit.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::sweep::SweepOutcome;
use crate::interventions::Bank;
use crate::latent::Trace;
use crate::schema::{BlockOrigin, Identity, NormalRunRow};
use crate::store::json;

/// Outcome of one problem.
#[derive(Clone, Debug)]
pub(crate) struct Normal {
    pub outcome: SweepOutcome,
    pub trace: Trace,
    pub ended: bool,
    pub force_at: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct NormalRun {
    pub(crate) blocks: BlockOrigin,
    pub(crate) problems: Vec<Normal>,
    pub(crate) bank: Bank,
}

pub(crate) fn row(identity: &Identity, blocks: BlockOrigin, normal: &Normal, bank: &Bank) -> Result<NormalRunRow> {
    let Normal { outcome, trace, ended, force_at } = normal;
    let states: Vec<(usize, usize, String)> =
        bank.states_of_problem(trace.problem).map(|(block, step, state)| (block, step, digits(state))).collect();
    Ok(NormalRunRow {
        identity: identity.clone(),
        blocks,
        problem: trace.problem,
        correct: outcome.correct,
        answer: outcome.answer.clone(),
        margin: outcome.margin,
        ended: *ended,
        force_at: *force_at,
        trace: serde_json::to_string(trace)?,
        states: serde_json::to_string(&states)?,
    })
}

impl NormalRun {
    /// Restores the run from the records of all `problems`.
    pub fn new(rows: &[NormalRunRow], problems: usize) -> Result<Self> {
        let blocks = rows.first().context("the normal run has no rows")?.blocks;
        let (mut of, mut bank) = (BTreeMap::new(), Bank::default());
        for row in rows {
            let at = row.problem;
            ensure!(row.blocks == blocks, "problem {at}: blocks {:?}, other problems have {blocks:?}", row.blocks);
            let trace: Trace = json::from_str(&row.trace).with_context(|| format!("problem {at}: malformed trace"))?;
            let states: Vec<(usize, usize, String)> =
                json::from_str(&row.states).with_context(|| format!("problem {at}: malformed states"))?;
            for (block, step, digits) in states {
                bank.insert(
                    (at, block, step),
                    values(&digits).with_context(|| format!("problem {at}: malformed states"))?,
                );
            }
            let outcome = SweepOutcome {
                correct: row.correct,
                answer: row.answer.clone(),
                margin: row.margin,
                switched: trace.switched(),
                latent_calls: trace.latent_calls(),
                identical: true,
            };
            let normal = Normal { outcome, trace, ended: row.ended, force_at: row.force_at };
            ensure!(of.insert(at, normal).is_none(), "the normal run has problem {at} twice");
        }
        let missing = (0..problems).find(|problem| !of.contains_key(problem));
        ensure!(missing.is_none(), "the normal run lacks problem {}", missing.unwrap_or_default());
        ensure!(of.len() == problems, "the normal run has {} problems, expected {problems}", of.len());
        Ok(Self { blocks, problems: of.into_values().collect(), bank })
    }
}

fn digits(state: &[f32]) -> String {
    state.iter().flat_map(|x| x.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
}

fn values(digits: &str) -> Result<Vec<f32>> {
    ensure!(
        digits.is_ascii() && digits.len().is_multiple_of(8),
        "{} hex digits are not a whole number of f32 values",
        digits.len()
    );
    let value = |at: usize| {
        let byte = |i: usize| u8::from_str_radix(&digits[at + 2 * i..at + 2 * i + 2], 16);
        Ok(f32::from_le_bytes([byte(0)?, byte(1)?, byte(2)?, byte(3)?]))
    };
    (0..digits.len()).step_by(8).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_back_bit_for_bit() {
        let state = [1.0_f32, -0.0, f32::MIN_POSITIVE, 0.1, f32::NAN];
        let back = values(&digits(&state)).expect("values");
        assert!(state.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()) && back.len() == 5);
        assert!(values("0123").is_err() && values("0123456x").is_err());
    }
}
