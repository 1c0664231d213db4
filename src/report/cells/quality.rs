//! Cells about accuracy, length and switching: tab:main, tab:sft-vs-rl, tab:appendix-sweep, tab:per-subject,
//! tab:gen-analysis, fig:pareto, fig:calibration. Knows the rows of `accuracy`, `outcomes`, `summary` and `metrics`.

use super::Cells;
use crate::report::folder::{estimate, find, number, shown};
use crate::stats::{Bootstrap, Estimate};
use crate::store::Row;

impl Cells<'_> {
    /// A quality of a group of problems: from `accuracy-<checkpoint>`, else from the run's own `summary`.
    pub fn quality(&self, checkpoint: &str, group: &str, key: &str) -> Option<Estimate> {
        let rows = self.folder.rows("accuracy", checkpoint);
        if let Some(found) = find(rows, &[("group", group)]).and_then(|row| estimate(row, key)) {
            return Some(found);
        }
        let row = find(self.folder.rows("summary", ""), &[("phase", checkpoint)])?;
        match (group, key) {
            ("all", key) => estimate(row, key),
            ("switched", "accuracy") => estimate(row, "latent_accuracy"),
            ("text_only", "accuracy") => estimate(row, "text_only_accuracy"),
            _ => None,
        }
    }

    /// On whatever data the rows are of: the columns for MATH-500 and GSM8K get the same number.
    pub(super) fn main(&self, row: &str, column: &str) -> Option<Estimate> {
        let checkpoint = match row {
            "text_cot" => "base",
            "switch_sft" => &self.folder.sft,
            "switch_grpo" => &self.folder.grpo,
            other => other, // a method's own checkpoint: no_cot, coconut, fixed_embedding, …
        };
        if let Some(checkpoint) = row.strip_suffix("+text_only") {
            return column.ends_with("acc").then(|| self.quality(checkpoint, "text_only", "accuracy"))?;
        }
        self.quality(checkpoint, "all", if column.ends_with("acc") { "accuracy" } else { "visible_tokens" })
    }

    pub(super) fn sft_vs_rl(&self, row: &str, column: &str) -> Option<Estimate> {
        self.phase_quality(self.phase(row)?, column)
    }

    fn phase_quality(&self, checkpoint: &str, column: &str) -> Option<Estimate> {
        match column {
            "latent_acc" => self.quality(checkpoint, "switched", "accuracy"),
            "acc" => self.quality(checkpoint, "all", "accuracy"),
            "tokens" => self.quality(checkpoint, "all", "visible_tokens"),
            "truncated" | "switch_rate" | "latent_calls" => self.quality(checkpoint, "all", column),
            _ => None,
        }
    }

    /// The paper's two SFT rows differ in K_min; ours are one checkpoint under two K_min. Extra rows are `<checkpoint>:k_min:<k>`.
    pub(super) fn sweep(&self, row: &str, column: &str) -> Option<Estimate> {
        match row {
            "stage8" => self.k_min(&self.folder.sft, "k_min:0", column),
            "stage6" => self.phase_quality(&self.folder.sft, column),
            "step800" => self.phase_quality(&self.folder.grpo, column),
            "step1000" => self.phase_quality("brevity", column),
            other => match other.split_once(':') {
                Some((checkpoint, group)) => self.k_min(checkpoint, group, column),
                None => self.phase_quality(&format!("grpo_{other}"), column),
            },
        }
    }

    fn k_min(&self, checkpoint: &str, group: &str, column: &str) -> Option<Estimate> {
        let key = match column {
            "acc" => "accuracy",
            "latent_acc" => "latent_accuracy",
            "tokens" => "visible_tokens",
            other => other,
        };
        self.quality(checkpoint, group, key)
    }

    /// Level and subject groups; extra rows are asked by the group's own name.
    pub(super) fn per_subject(&self, row: &str, column: &str) -> Option<Estimate> {
        if column != "acc" {
            return None;
        }
        let rows = self.folder.rows("accuracy", self.checkpoint);
        let same = |group: &str| group == row || subject_key(group) == row;
        rows.iter().find(|r| same(&shown(r, "group"))).and_then(|r| estimate(r, "accuracy"))
    }

    pub(super) fn pareto(&self, row: &str, column: &str) -> Option<Estimate> {
        self.phase_quality(if row == "default" { &self.folder.grpo } else { row }, column)
    }

    /// Means over the problems of a group, `correct_swi` and so on.
    pub(super) fn generation(&self, row: &str, column: &str) -> Option<Estimate> {
        let (correct, switched) = row.split_once('_')?;
        let rows: Vec<&Row> = self
            .folder
            .rows("outcomes", self.checkpoint)
            .iter()
            .filter(|r| {
                flag(r, "correct") == Some(correct == "correct") && flag(r, "switched") == Some(switched == "swi")
            })
            .collect();
        mean(
            &rows,
            match column {
                "tokens" => "visible_tokens",
                "switches" => "blocks",
                _ => "latent_calls",
            },
        )
    }

    /// Ends of the GRPO trajectory: the mean of its first and of its last tenth of steps.
    pub(super) fn trajectory(&self, row: &str, column: &str) -> Option<Estimate> {
        let rows = self.folder.rows("metrics", "grpo");
        let tenth = rows.len().div_ceil(10);
        let early = matches!(column, "start" | "before");
        let part = if early { &rows[..tenth] } else { &rows[rows.len() - tenth..] };
        let key = if row == "tokens" { "visible_tokens" } else { row };
        let found = mean(&part.iter().collect::<Vec<_>>(), key)?;
        // The paper's figure gives this one in percent but the block in counts.
        Some(if row == "switch_rate" { found.scaled(100.0) } else { found })
    }
}

fn flag(row: &Row, key: &str) -> Option<bool> {
    row.get(key)?.as_bool()
}

/// Bootstrap mean of a column; of fewer than two rows there is no interval, hence no estimate.
fn mean(rows: &[&Row], key: &str) -> Option<Estimate> {
    let values: Vec<f64> = rows.iter().filter_map(|row| number(row, key)).collect();
    Bootstrap::default().mean(&values).ok()
}

/// `level:1` → `level1`; `subject:Counting & Probability` → `counting_probability`, as the paper's rows are named here.
pub fn subject_key(group: &str) -> String {
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
