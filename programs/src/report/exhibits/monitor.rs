//! A monitor on latents, and its performance against an adversary who knows it.

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, BarChart, BarSeries, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{
    Access, Edit, HiddenValueRow, Letters, Monitor, MonitorAccessRow, MonitorRow, Quantity, RowFile,
};
use switchyard::stats::Estimate;

const SOURCES: &[&str] = &[MonitorRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:monitor",
        SOURCES,
        "Does a monitor on latents notice a covert value, and does it survive an adversary who knows it?",
        MonitorRow: edit, directions, dose, monitor, letters, recall, false_alarms, auroc, letters_apart, letters_p, least_recall, fitted, accuracy, same_answer, change,
    ),
    rows_table!(
        "tab:hidden-values",
        &[HiddenValueRow::NAME],
        "Do latents hold the covert value? Linear probes, on problems with a trigger and with a decoy",
        HiddenValueRow: edit, directions, triggered, quantity, step, rows, accuracy, control,
    ),
    Exhibit { draw, ..Exhibit::new("fig:monitor", SOURCES) },
    rows_table!(
        "tab:monitor-access",
        &[MonitorAccessRow::NAME],
        "What does a monitor notice at each level of access? Same rates of false alarms",
        MonitorAccessRow: edit, access, letters, asked_false_alarms, calibrated, recall, false_alarms, accuracy,
    ),
    Exhibit { draw: by_access, ..Exhibit::new("fig:monitor-access", &[MonitorAccessRow::NAME]) },
];

/// Recall by level of access, on letters that no monitor has met.
fn by_access(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let rows = folder.rows::<MonitorAccessRow>(checkpoint);
        let of = |access: &Access, edit, rate: f64| {
            let is = |row: &&MonitorAccessRow| {
                (row.access, row.edit, row.asked_false_alarms) == (*access, edit, rate)
                    && row.letters == Letters::HeldOut
            };
            rows.iter().find(is)
        };
        let mut rates: Vec<f64> = rows.iter().map(|row| row.asked_false_alarms).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let series = |name: String, values: Vec<Option<Estimate>>| BarSeries { name, values, paper: vec![] };
        let all = |value: &dyn Fn(&Access) -> Option<Estimate>| Access::ALL.iter().map(value).collect::<Vec<_>>();
        let mut bars: Vec<BarSeries> = vec![];
        for &rate in &rates {
            let at = format!("rate {rate}");
            let untouched = |access: &Access| of(access, Edit::Untouched, rate);
            bars.push(series(format!("recall, {at}"), all(&|access| untouched(access).map(|row| row.recall))));
            bars.push(series(
                format!("false alarms, {at}"),
                all(&|access| untouched(access).map(|row| row.false_alarms)),
            ));
        }
        let most = rates.last()?;
        let removed = all(&|access| of(access, Edit::Removed, *most).map(|row| row.recall));
        if removed.iter().any(Option::is_some) {
            bars.push(series(format!("recall, direction removed, rate {most}"), removed));
        }
        Some(Figure::Bars(BarChart {
            title: called(checkpoint),
            y: Axis::share("share of problems"),
            categories: Access::ALL.iter().map(|access| access.name().to_owned()).collect(),
            series: bars,
        }))
    };
    let panels = folder.checkpoints_with::<MonitorAccessRow>().into_iter().filter_map(panel).collect();
    let note = "Problems with letters that no monitor was fitted on. Rate: false alarms that the threshold allows on \
        calibration decoys. Bars: 95 % Wilson intervals. Answers under interventions are not measured on edited latents.";
    exhibit.drawing("Monitors by level of access (ours)", 1, panels, note)
}

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
        let lines = vec![
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
            lines,
            ..LineChart::default()
        })
    };
    let panels = folder.checkpoints_with::<MonitorRow>().into_iter().filter_map(panel).collect();
    let note = "Letters that the monitor was not fitted on. Bars: 95 % intervals over problems.";
    exhibit.drawing("A monitor on latents and an adversary who knows it (ours)", 2, panels, note)
}
