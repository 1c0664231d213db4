//! tab:per-subject, fig:per-subject: accuracy by level and by subject; with and without latents if outcomes are available.

use super::sft_vs_rl::SOURCES;
use super::{Drawing, Exhibit, Layout, diamonds};
use crate::report::cells::Cells;
use crate::report::figures::{Axis, BarChart, BarSeries, Figure};
use crate::report::folder::{Folder, called, distinct};
use crate::report::paper::Paper;
use switchyard::schema::{AccuracyRow, OutcomeRow};
use switchyard::stats::{Estimate, LEVEL, wilson};

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit {
        per_checkpoint: true,
        cell,
        beside: Layout { extra, ..Layout::PLAIN },
        ..Exhibit::new("tab:per-subject", SOURCES)
    },
    Exhibit { draw, ..Exhibit::new("fig:per-subject", SOURCES) },
];

/// Level and subject groups; extra rows use the group's own name.
fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let rows = cells.folder.rows::<AccuracyRow>(cells.checkpoint).iter().filter(|_| column == "acc");
    rows.into_iter().find(|r| r.group == row || key(&r.group) == row).map(|r| r.accuracy)
}

/// Groups that the paper lacks.
fn extra(folder: &Folder) -> Vec<(String, String)> {
    let paper = Paper::embedded().ok();
    let block = paper.as_ref().and_then(|p| p.block("tab:per-subject").ok());
    let known = |group: &str| block.is_some_and(|b| b.rows.iter().any(|r| r.key == key(group)));
    let wanted = |group: &&str| (group.starts_with("subject:") || group.starts_with("level:")) && !known(group);
    let groups = folder.all::<AccuracyRow>().map(|(_, row)| row.group.as_str()).filter(wanted);
    distinct(groups).into_iter().map(|group| (group.to_owned(), group.replacen(':', " ", 1))).collect()
}

/// `level:1` → `level1`; `subject:Counting & Probability` → `counting_probability`, as the paper's rows are named here.
fn key(group: &str) -> String {
    match group.split_once(':') {
        Some(("level", level)) => format!("level{level}"),
        Some(("subject", subject)) => {
            let words = subject.to_lowercase();
            words.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect::<Vec<_>>().join("_")
        }
        _ => group.to_owned(),
    }
}

/// Name of a grouping, its title, and the group of a problem.
type Grouping = (&'static str, &'static str, fn(&OutcomeRow) -> Option<String>);

fn draw(exhibit: &Exhibit, paper: &Paper, folder: &Folder) -> Vec<Drawing> {
    let level: Grouping = ("level", "difficulty level", |r| r.level.map(|level| level.to_string()));
    let subject: Grouping = ("subject", "subject", |r| r.subject.clone());
    let mut panels = vec![];
    for checkpoint in folder.checkpoints_with::<OutcomeRow>().into_iter().rev() {
        panels.extend([level, subject].into_iter().filter_map(|grouping| panel(paper, folder, checkpoint, grouping)));
    }
    // Level and subject side by side, if every checkpoint has both.
    let columns = if panels.len() == 2 * folder.checkpoints_with::<OutcomeRow>().len() { 2 } else { 1 };
    let theirs = diamonds(&panels, "the paper's after Switch-GRPO, on MATH-500");
    let note = format!("Bars: 95 % Wilson intervals.{theirs}");
    exhibit.drawing("Accuracy by level and subject", columns, panels, &note)
}

/// Groups once each; levels as numbers, 2 before 10.
fn in_order(mut groups: Vec<String>) -> Vec<String> {
    groups.sort_by_key(|group| (group.parse::<u8>().ok(), group.clone()));
    groups.dedup();
    groups
}

fn panel(paper: &Paper, folder: &Folder, checkpoint: &str, (kind, title, group_of): Grouping) -> Option<Figure> {
    let rows = folder.rows::<OutcomeRow>(checkpoint);
    let groups = in_order(rows.iter().filter_map(group_of).collect());
    if groups.len() < 2 {
        return None;
    }
    let share = |group: &String, used: Option<bool>| {
        let of = rows.iter().filter(|r| group_of(r).as_ref() == Some(group));
        let of: Vec<_> = of.filter(|r| used.is_none_or(|used| r.switched == used)).collect();
        wilson(of.iter().filter(|r| r.correct).count(), of.len(), LEVEL).ok()
    };
    let series = |name: &str, used: Option<bool>, paper: Vec<Option<f64>>| {
        let values: Vec<_> = groups.iter().map(|g| share(g, used)).collect();
        let n: usize = values.iter().flatten().map(|e| e.n).sum();
        BarSeries { name: format!("{name} (n={n})"), values, paper }
    };
    let theirs = |group: &String| {
        let row = key(&format!("{kind}:{group}"));
        // Levels of other data sets are unrelated to MATH's.
        let math = rows.first().is_some_and(|row| row.identity.dataset.to_lowercase().contains("math"));
        let same = math && checkpoint == folder.grpo;
        let value = paper.cell(&format!("tab:per-subject/{row}/acc")).ok().filter(|_| same);
        value.map(|percent| percent / 100.0)
    };
    let series = vec![
        series("all", None, groups.iter().map(theirs).collect()),
        series("with latents", Some(true), vec![]),
        series("without latents", Some(false), vec![]),
    ];
    let seen = series.iter().flat_map(|s| s.values.iter().flatten()).any(|e| e.high > 0.0);
    let title = format!("Accuracy by {title}: {}", called(checkpoint));
    Figure::bars(BarChart { title, y: Axis::share("accuracy"), categories: groups, series }).filter(|_| seen)
}

#[cfg(test)]
mod tests {
    #[test]
    fn levels_are_in_the_order_of_numbers() {
        let groups = ["10", "2", "1", "2"].map(str::to_owned).to_vec();
        assert_eq!(super::in_order(groups), ["1", "2", "10"]);
        assert_eq!(super::in_order(vec!["b".into(), "a".into()]), ["a", "b"]);
    }

    #[test]
    fn groups_are_named_as_the_papers_rows() {
        assert_eq!(super::key("level:3"), "level3");
        assert_eq!(super::key("subject:Counting & Probability"), "counting_probability");
        assert_eq!(super::key("all"), "all");
    }
}
