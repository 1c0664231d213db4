//! Compares checkpoints of several folders, one row each: results of interventions and probes of their latents. Knows which records are
//! compared; measures nothing.

use anyhow::{Result, ensure};

use super::cells::single_step;
use super::exhibits;
use super::folder::{Folder, distinct, once};
use super::paper::Paper;
use super::tables::{Cell, ColumnKind, Table};
use super::verdicts::{self, TestedClaim, Verdict};
use switchyard::nth::Nth;
use switchyard::schema::{
    AccuracyRow, At, ExitGroup, ExitRow, Features, Holds, InterventionRow, KnownValueRow, Later, ProbeRow, RowFile,
    stream_name,
};
use switchyard::stats::Estimate;

/// Modes that replace all latent inputs.
const MODES: [&str; 5] = ["zero", "random_norm", "resample", "mean", "embedding_argmax"];

/// Explanation of the columns, printed below them.
const READING: &str = "zero … embedding_argmax: accuracy on the problems where the unchanged model switched and was right (1 \
    without an intervention), all latents replaced. known value: answers that arithmetic predicts from a donor's \
    value, beyond chance; known operand: answers predicted from a donor's first operand, where that answer differs. \
    One latent carries: the same with the donor's latent at one step alone, for the step and reading followed most; \
    none if no interval is above chance. Decisive step: the latent step whose resampling costs most, of how many, \
    and the accuracy left; others may cost nearly as much (tab:intervention-steps). K_min: the change of accuracy \
    under the tested K_min that costs most. Value probe: the best layer and step for the result of the block's own \
    clause; the best of many is biased upwards. Latents a token: latents over the tokens that they stand in for (those missing from the text against the same \
    problems with <swi> masked, the two markers not counted), a ratio of means. Claims: reproduced / not reproduced / \
    undecided.";

/// Cards side by side; `None` if no folder has one.
pub fn cards(folders: &[Folder]) -> Result<Option<Table>> {
    exhibits::side_by_side(folders)
}

/// Every checkpoint of the folders that interventions or accuracies were measured of.
pub fn table(folders: &[Folder]) -> Result<Table> {
    once(folders)?;
    let mut table = Table::new("tab:compare", "Organisms side by side", headings());
    table.note = READING.to_owned();
    let paper = Paper::embedded()?;
    for folder in folders {
        let claims = verdicts::test(&paper, folder, |_| None);
        for checkpoint in checkpoints(folder) {
            table.push(ComparedCheckpoint { folder, checkpoint, claims: &claims }.cells())?;
        }
    }
    let names: Vec<String> = folders.iter().map(|f| f.path.display().to_string()).collect();
    for folder in folders {
        for why in folder.mixed.iter().chain(&folder.unreadable).cloned().chain(missing(folder)) {
            table.note += &format!(" {}: {why}.", folder.name);
        }
    }
    ensure!(
        !table.rows().is_empty(),
        "{}: no rows of `probe` or `intervene` to compare; run them with --out into these folders",
        names.join(", ")
    );
    Ok(table)
}

fn headings() -> Vec<(&'static str, ColumnKind)> {
    use ColumnKind::{Measured, Text};
    let modes = MODES.map(|mode| (mode, Measured(3)));
    let columns =
        [("organism", Text), ("accuracy", Measured(3)), ("switch rate", Measured(3)), ("latents a token", Text)]
            .into_iter()
            .chain(modes)
            .chain([
                ("known value", Measured(3)),
                ("known operand", Measured(3)),
                ("one latent carries", Text),
                ("followed there", Measured(3)),
                ("decisive step", Text),
                ("resampled there", Measured(3)),
                ("p(</swi>) first step", Measured(3)),
                ("p(</swi>) last step", Measured(3)),
                ("K_min", Measured(3)),
                ("value probe", Measured(3)),
                ("probe at", Text),
                ("claims", Text),
            ]);
    columns.collect()
}

fn checkpoints(folder: &Folder) -> Vec<&str> {
    distinct(folder.checkpoints_with::<InterventionRow>().into_iter().chain(folder.checkpoints_with::<AccuracyRow>()))
}

/// Records that a column needs and a checkpoint lacks; one line for all checkpoints that lack the same.
fn missing(folder: &Folder) -> Vec<String> {
    let wanted = [AccuracyRow::NAME, InterventionRow::NAME, KnownValueRow::NAME, ExitRow::NAME, ProbeRow::NAME];
    let lacking = |rows: &str| checkpoints(folder).into_iter().filter(|c| !folder.has(rows, c)).collect::<Vec<_>>();
    let files = wanted.map(|rows| (format!("`{rows}` rows"), lacking(rows))).into_iter();
    // A mode that could not run does not affect the records of others.
    let intervened = || checkpoints(folder).into_iter().filter(|c| folder.has(InterventionRow::NAME, c));
    let modes = MODES.into_iter().map(|mode| {
        let without = |checkpoint: &&str| {
            let organism = ComparedCheckpoint { folder, checkpoint, claims: &[] };
            !organism.interventions().any(|row| row.mode == mode && row.is_plain())
        };
        (format!("row of `{mode}`"), intervened().filter(without).collect::<Vec<_>>())
    });
    let said = files.chain(modes).filter(|(_, of)| !of.is_empty());
    said.map(|(rows, of)| format!("no {rows} of {}", of.join(", "))).collect()
}

/// One row of the table.
struct ComparedCheckpoint<'a> {
    folder: &'a Folder,
    checkpoint: &'a str,
    /// Claims of the whole folder.
    claims: &'a [TestedClaim<'a>],
}

impl ComparedCheckpoint<'_> {
    fn cells(&self) -> Vec<Cell> {
        let free = self.group("all");
        let name = if self.checkpoint.is_empty() { "model" } else { self.checkpoint };
        let mut cells = vec![
            Cell::Text(format!("{}/{name}", self.folder.name)),
            Cell::measured(free.map(|row| row.accuracy)),
            Cell::measured(free.map(|row| row.switch_rate)),
            self.latents_a_token().map_or_else(Cell::nothing, Cell::Text),
        ];
        cells.extend(MODES.map(|mode| Cell::measured(self.mode(mode))));
        cells.extend([Holds::Value, Holds::Operand].map(|holds| Cell::measured(self.known_value(holds))));
        let (held, followed) = self.one_latent();
        let (step, there) = self.decisive_step();
        cells.extend([held, followed, step, there]);
        let exits: Vec<&ExitRow> = self.rows::<ExitRow>().iter().filter(|row| row.group == ExitGroup::All).collect();
        cells.push(Cell::measured(exits.iter().min_by_key(|row| row.step).map(|row| row.p_exit)));
        cells.push(Cell::measured(exits.iter().max_by_key(|row| row.step).map(|row| row.p_exit)));
        cells.push(Cell::measured(self.k_min()));
        let (score, at) = self.value_probe();
        cells.extend([score, at, Cell::Text(self.verdicts())]);
        cells
    }

    fn rows<R: RowFile>(&self) -> &[R] {
        self.folder.rows(self.checkpoint)
    }

    fn group(&self, group: &str) -> Option<&AccuracyRow> {
        self.rows::<AccuracyRow>().iter().find(|row| row.group == group)
    }

    /// Records over all steps and over single ones, from all files.
    fn interventions(&self) -> impl Iterator<Item = &InterventionRow> {
        let steps = self.folder.rows_in::<InterventionRow>(InterventionRow::STEPS, self.checkpoint);
        self.rows::<InterventionRow>().iter().chain(steps)
    }

    fn mode(&self, mode: &str) -> Option<Estimate> {
        self.interventions().find(|row| row.mode == mode && row.is_plain())?.diagnostic_accuracy
    }

    fn known_value(&self, holds: Holds) -> Option<Estimate> {
        KnownValueRow::of_all_steps(self.rows(), holds).map(|row| row.above_chance)
    }

    /// The rate of answers that follow a single exchanged latent, and its excess over chance.
    fn one_latent(&self) -> (Cell, Cell) {
        let rows = self.folder.rows_in::<KnownValueRow>(KnownValueRow::STEPS, self.checkpoint);
        let plain = |row: &&KnownValueRow| row.later == Later::Recompute && row.at == At::Both;
        let rows = self.rows::<KnownValueRow>().iter().chain(rows).filter(plain);
        let single: Vec<_> = rows.filter_map(|row| Some((single_step(row.steps)?, row))).collect();
        let steps = single.iter().map(|(step, _)| step + 1).max().unwrap_or(0);
        let above = |row: &KnownValueRow| row.above_chance.low > 0.0;
        let best = single.iter().max_by(|(_, a), (_, b)| {
            above(a).cmp(&above(b)).then(a.above_chance.value.total_cmp(&b.above_chance.value))
        });
        match best {
            None => (Cell::nothing(), Cell::nothing()),
            Some((_, row)) if !above(row) => (Cell::Missing("none".into()), Cell::nothing()),
            Some((step, row)) => {
                let held = format!("{}, {} of {steps}", row.holds, Nth::new(*step));
                (Cell::Text(held), Cell::measured(Some(row.above_chance)))
            }
        }
    }

    /// The latent step at which resampling costs most accuracy, and the remaining accuracy.
    fn decisive_step(&self) -> (Cell, Cell) {
        let plain = |row: &&InterventionRow| {
            row.mode == "resample" && row.later == Later::Recompute && row.at == At::Both && row.dose.is_none()
        };
        let rows = self.interventions().filter(plain);
        let single: Vec<_> = rows.filter_map(|row| Some((single_step(row.steps)?, row))).collect();
        let steps = single.iter().map(|(step, _)| step + 1).max().unwrap_or(0);
        let worst = single.iter().min_by(|(_, a), (_, b)| {
            b.lowers().cmp(&a.lowers()).then(a.accuracy_change.value.total_cmp(&b.accuracy_change.value))
        });
        match worst {
            None => (Cell::nothing(), Cell::nothing()),
            Some((_, row)) if !row.lowers() => (Cell::Missing("none".into()), Cell::measured(row.diagnostic_accuracy)),
            Some((step, row)) => {
                (Cell::Text(format!("{} of {steps}", Nth::new(*step))), Cell::measured(row.diagnostic_accuracy))
            }
        }
    }

    /// The most negative change under another K_min than the checkpoint's own.
    fn k_min(&self) -> Option<Estimate> {
        let swept = self.rows::<AccuracyRow>().iter().filter(|row| row.group.starts_with("k_min:"));
        swept.filter_map(|row| row.difference).min_by(|a, b| a.value.total_cmp(&b.value))
    }

    fn value_probe(&self) -> (Cell, Cell) {
        let read = self.rows::<ProbeRow>().iter().filter(|row| row.features == Features::ResidPost);
        let own = read.filter_map(|row| Some((row, row.value()?.strip_prefix("s_j@")?)));
        let score = |row: &ProbeRow| row.score().value;
        match own.max_by(|(a, _), (b, _)| score(a).total_cmp(&score(b))) {
            None => (Cell::nothing(), Cell::nothing()),
            Some((row, step)) => {
                let at = format!("{}, step {step} (chance {:.2})", stream_name(row.layer), row.chance);
                (Cell::measured(Some(row.score())), Cell::Text(at))
            }
        }
    }

    /// `0.20 (1.0 a block)`.
    fn latents_a_token(&self) -> Option<String> {
        let (free, text) = (self.group("all")?, self.group("text_only")?);
        let [latents, blocks] = [free.latent_calls?.value, free.blocks?.value];
        let replaced = text.visible_tokens?.value - (free.visible_tokens?.value - 2.0 * blocks);
        (blocks > 0.0 && replaced > 0.0).then(|| format!("{:.2} ({:.1} a block)", latents / replaced, latents / blocks))
    }

    fn verdicts(&self) -> String {
        let here = |tested: &&TestedClaim<'_>| tested.on.split(['→', ',']).any(|name| name.trim() == self.checkpoint);
        let count = |verdict| self.claims.iter().filter(here).filter(|tested| tested.verdict == verdict).count();
        let [reproduced, not, open] = [Verdict::Reproduced, Verdict::NotReproduced, Verdict::Undecided].map(count);
        format!("{reproduced} / {not} / {open}")
    }
}
