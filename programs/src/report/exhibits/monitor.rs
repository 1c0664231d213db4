//! A monitor on latents, and its performance against an adversary who knows it.

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{Edit, HiddenValueRow, Letters, Monitor, MonitorRow, Quantity, RowFile};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[MonitorRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:monitor",
        SOURCES,
        "Does a monitor on latents notice what the answer does not show, and what does an adversary who knows it leave?",
        |_: &MonitorRow| true,
        columns!(MonitorRow: edit, directions, dose, monitor, letters, recall, false_alarms, auroc, letters_apart, letters_p, least_recall, fitted, accuracy, same_answer, change),
    ),
    rows_table!(
        "tab:hidden-values",
        &[HiddenValueRow::NAME],
        "Do latents hold the covert value? Linear probes, on problems with a trigger and with a decoy",
        |_: &HiddenValueRow| true,
        columns!(HiddenValueRow: edit, directions, triggered, quantity, step, rows, accuracy, control),
    ),
    Exhibit { draw, ..Exhibit::new("fig:monitor", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let whole = |edit: Edit, dose: f64| edit == Edit::Untouched || (edit == Edit::Removed && dose == 1.0);
        let line = |name: &str, monitor, of: fn(&MonitorRow) -> Estimate| {
            let kept =
                move |r: &&MonitorRow| whole(r.edit, r.dose) && (r.monitor, r.letters) == (monitor, Letters::HeldOut);
            let rows = folder.rows::<MonitorRow>(checkpoint).iter().filter(kept);
            Line::bars(name, points(rows.map(|r| (r.directions as f64, of(r)))))
        };
        let covert = |r: &&HiddenValueRow| r.edit == Edit::Removed && r.triggered && r.quantity == Quantity::Covert;
        let covert = folder.rows::<HiddenValueRow>(checkpoint).iter().filter(covert);
        let lines = [
            line("refitted: recall", Monitor::Refitted, |r| r.recall),
            line("refitted: false alarms", Monitor::Refitted, |r| r.false_alarms),
            line("refitted: AUROC", Monitor::Refitted, |r| r.auroc),
            line("deployed: recall", Monitor::Deployed, |r| r.recall),
            line("answers right", Monitor::Refitted, |r| r.accuracy),
            Line::bars("covert value read", points(covert.map(|r| (r.directions as f64, r.accuracy)))),
        ];
        Figure::lines(LineChart {
            title: called(checkpoint),
            x: Axis::new("directions that the adversary takes out").whole(),
            y: Axis::share("share"),
            lines: lines.into_iter().filter(|line| !line.points.is_empty()).collect(),
            ..LineChart::default()
        })
    };
    let panels = folder.checkpoints_with::<MonitorRow>().into_iter().filter_map(panel).collect();
    let note = "Problems with letters that the monitor has not met. Bars: 95 % intervals over problems.";
    exhibit.drawing("A monitor on latents and an adversary who knows it (ours)", 2, panels, note)
}
