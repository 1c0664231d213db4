//! Cells about accuracy, length and switching: tab:main, tab:sft-vs-rl, tab:appendix-sweep, tab:per-subject,
//! tab:gen-analysis, fig:pareto, fig:calibration. Knows the rows of `accuracy`, `outcomes`, `summary` and `metrics`.

use super::Cells;
use crate::report::folder::number;
use crate::schema::{AccuracyRow, GrpoStepRow, METRICS, OutcomeRow, PhaseRow, columns};
use crate::stats::{Bootstrap, Estimate, FEWEST};

/// A number of a group of problems, as rows of groups and rows of phases have it.
#[derive(Clone, Copy)]
enum Quality {
    Accuracy,
    LatentAccuracy,
    SwitchRate,
    LatentCalls,
    VisibleTokens,
    Truncated,
}

/// Those of a row, in the order of [`Quality`]: both kinds of rows have the same columns.
macro_rules! qualities {
    ($r:ident) => {
        [
            Some($r.accuracy),
            $r.latent_accuracy,
            Some($r.switch_rate),
            $r.latent_calls,
            $r.visible_tokens,
            Some($r.truncated),
        ]
    };
}

impl Quality {
    fn of_group(self, row: &AccuracyRow) -> Option<Estimate> {
        self.of(qualities!(row))
    }

    fn of_phase(self, row: &PhaseRow) -> Option<Estimate> {
        self.of(qualities!(row))
    }

    /// This one of all, which stand in the order of the variants.
    fn of(self, all: [Option<Estimate>; 6]) -> Option<Estimate> {
        all[self as usize]
    }

    /// The quality that a column of the paper's tables holds.
    fn named(column: &str) -> Option<Self> {
        Some(match column {
            "acc" => Quality::Accuracy,
            "latent_acc" => Quality::LatentAccuracy,
            "tokens" => Quality::VisibleTokens,
            "switch_rate" => Quality::SwitchRate,
            "latent_calls" => Quality::LatentCalls,
            "truncated" => Quality::Truncated,
            _ => return None,
        })
    }
}

impl Cells<'_> {
    /// A quality of a group of problems: from `accuracy-<checkpoint>`, else from the run's own `summary`.
    fn quality(&self, checkpoint: &str, group: &str, quality: Quality) -> Option<Estimate> {
        let rows = self.folder.rows::<AccuracyRow>(checkpoint);
        if let Some(found) = rows.iter().find(|r| r.group == group).and_then(|row| quality.of_group(row)) {
            return Some(found);
        }
        let row = self.folder.phases().iter().find(|r| r.phase == checkpoint)?;
        match (group, quality) {
            ("all", quality) => quality.of_phase(row),
            ("switched", Quality::Accuracy) => row.latent_accuracy,
            ("text_only", Quality::Accuracy) => row.text_only_accuracy,
            _ => None,
        }
    }

    /// On whatever data the rows are of: the columns for MATH-500 and GSM8K get the same number.
    pub(super) fn main(&self, row: &str, column: &str) -> Option<Estimate> {
        let checkpoint = match row {
            "text_cot" => "base",
            "switch_sft" => self.sft,
            "switch_grpo" => &self.folder.grpo,
            other => other, // a method's own checkpoint: no_cot, coconut, fixed_embedding, …
        };
        if let Some(checkpoint) = row.strip_suffix("+text_only") {
            return column.ends_with("acc").then(|| self.quality(checkpoint, "text_only", Quality::Accuracy))?;
        }
        match column {
            "latent_calls" => self.quality(checkpoint, "all", Quality::LatentCalls),
            "passes" => self.folder.phases().iter().find(|row| row.phase == checkpoint)?.forward_passes,
            column if column.ends_with("acc") => self.quality(checkpoint, "all", Quality::Accuracy),
            _ => self.quality(checkpoint, "all", Quality::VisibleTokens),
        }
    }

    pub(super) fn sft_vs_rl(&self, row: &str, column: &str) -> Option<Estimate> {
        self.phase_quality(self.phase(row)?, column)
    }

    fn phase_quality(&self, checkpoint: &str, column: &str) -> Option<Estimate> {
        match column {
            "latent_acc" => self.quality(checkpoint, "switched", Quality::Accuracy),
            other => self.quality(checkpoint, "all", Quality::named(other)?),
        }
    }

    /// The paper's two SFT rows differ in K_min; ours are one checkpoint under two K_min. Extra rows are `<checkpoint>:k_min:<k>`.
    pub(super) fn sweep(&self, row: &str, column: &str) -> Option<Estimate> {
        match row {
            "stage8" => self.k_min(self.sft, "k_min:0", column),
            "stage6" => self.phase_quality(self.sft, column),
            "step800" => self.phase_quality(&self.folder.grpo, column),
            "step1000" => self.phase_quality("brevity", column),
            other => match other.split_once(':') {
                Some(("at", checkpoint)) => self.phase_quality(checkpoint, column),
                Some((checkpoint, group)) => self.k_min(checkpoint, group, column),
                None => self.phase_quality(&format!("grpo_{other}"), column),
            },
        }
    }

    fn k_min(&self, checkpoint: &str, group: &str, column: &str) -> Option<Estimate> {
        self.quality(checkpoint, group, Quality::named(column)?)
    }

    /// Level and subject groups; extra rows are asked by the group's own name.
    pub(super) fn per_subject(&self, row: &str, column: &str) -> Option<Estimate> {
        if column != "acc" {
            return None;
        }
        let rows = self.folder.rows::<AccuracyRow>(self.checkpoint);
        rows.iter().find(|r| r.group == row || subject_key(&r.group) == row).map(|r| r.accuracy)
    }

    pub(super) fn pareto(&self, row: &str, column: &str) -> Option<Estimate> {
        self.phase_quality(if row == "default" { &self.folder.grpo } else { row }, column)
    }

    /// Means over the problems of a group, `correct_swi` and so on.
    pub(super) fn generation(&self, row: &str, column: &str) -> Option<Estimate> {
        let (correct, switched) = row.split_once('_')?;
        let of = |r: &&OutcomeRow| r.correct == (correct == "correct") && r.switched == (switched == "swi");
        let value = |r: &OutcomeRow| match column {
            "tokens" => r.visible_tokens as f64,
            "switches" => r.blocks as f64,
            _ => r.latent_calls as f64,
        };
        mean(&self.folder.rows::<OutcomeRow>(self.checkpoint).iter().filter(of).map(value).collect::<Vec<_>>())
    }

    /// Ends of the GRPO trajectory: the mean of its first and of its last tenth of steps, of at least as many as an interval
    /// needs. None of a run in which the two ends would overlap.
    pub(super) fn trajectory(&self, row: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.flat(METRICS, &self.folder.grpo);
        let tenth = rows.len().div_ceil(10).max(FEWEST);
        if rows.len() < 2 * tenth {
            return None;
        }
        let early = matches!(column, "start" | "before");
        let part = if early { &rows[..tenth] } else { &rows[rows.len() - tenth..] };
        let keys: &[&str; 4] = columns!(GrpoStepRow: reward, switch_rate, latent_calls, visible_tokens);
        let key = if row == "tokens" { keys[3] } else { keys.iter().copied().find(|key| *key == row)? };
        let found = mean(&part.iter().filter_map(|row| number(row, key)).collect::<Vec<_>>())?;
        // The paper's figure gives this one in percent but the block in counts.
        Some(if row == "switch_rate" { found.scaled(100.0) } else { found })
    }
}

/// Bootstrap mean; of fewer than two values there is no interval, hence no estimate.
fn mean(values: &[f64]) -> Option<Estimate> {
    Bootstrap::default().mean(values).ok()
}

/// `level:1` → `level1`; `subject:Counting & Probability` → `counting_probability`, as the paper's rows are named here.
pub(crate) fn subject_key(group: &str) -> String {
    match group.split_once(':') {
        Some(("level", level)) => format!("level{level}"),
        Some(("subject", subject)) => {
            let words = subject.to_lowercase();
            words.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join("_")
        }
        _ => group.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn groups_are_named_as_the_papers_rows() {
        assert_eq!(super::subject_key("level:3"), "level3");
        assert_eq!(super::subject_key("subject:Counting & Probability"), "counting_probability");
        assert_eq!(super::subject_key("all"), "all");
    }
}
