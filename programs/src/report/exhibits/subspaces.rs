//! The number of dimensions of a latent that carry a value: exchanged subspaces by rank.

use super::{Drawing, Exhibit, points};
use crate::report::figures::{Axis, Figure, Line, LineChart};
use crate::report::folder::{Folder, called};
use crate::report::paper::Paper;
use switchyard::schema::{Donors, Rotation, RowFile, SubspaceRow, Variable};

const SOURCES: &[&str] = &[SubspaceRow::NAME];

pub(super) const EXHIBITS: &[Exhibit] = &[
    rows_table!(
        "tab:subspaces",
        SOURCES,
        "How many dimensions of a latent carry the value? Subspaces exchanged between problems",
        SubspaceRow: variable, layer, step, rotation, rank, donors, trained_on, fitted, hit_rate, chance, kept, erased, p_holm,
    ),
    Exhibit { draw, ..Exhibit::new("fig:subspaces", SOURCES) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let panel = |checkpoint: &str| {
        let line = |name: &str, variable, rotation, donors| {
            let of = move |r: &&SubspaceRow| (r.variable, r.rotation, r.donors) == (variable, rotation, donors);
            let rows = folder.rows::<SubspaceRow>(checkpoint).iter().filter(of);
            Line::bars(name, points(rows.map(|r| (r.rank as f64, r.hit_rate))))
        };
        let lines = vec![
            line("learnt, values seen", Variable::Value, Rotation::Trained, Donors::Seen),
            line("learnt, values unseen", Variable::Value, Rotation::Trained, Donors::Unseen),
            line("learnt from shuffled predictions", Variable::Value, Rotation::Shuffled, Donors::Seen),
            line("random", Variable::Value, Rotation::Random, Donors::Seen),
            line("learnt for the operand", Variable::Operand, Rotation::Trained, Donors::Seen),
        ];
        let whole = folder.rows::<SubspaceRow>(checkpoint).iter().filter(|r| r.rotation == Rotation::Whole);
        let best =
            whole.filter(|r| (r.variable, r.donors) == (Variable::Value, Donors::Seen)).map(|r| r.hit_rate.value);
        Figure::lines(LineChart {
            title: called(checkpoint),
            x: Axis::new("dimensions exchanged").log(),
            y: Axis::share("predicted answer comes"),
            lines,
            levels: best.reduce(f64::max).into_iter().collect(),
            level: "the whole state, at its best place".into(),
            ..LineChart::default()
        })
    };
    let panels = folder.checkpoints_with::<SubspaceRow>().into_iter().filter_map(panel).collect();
    let note = "Held-out pairs. Bars: 95 % intervals over problems.";
    exhibit.drawing("Exchanged subspaces (ours)", 2, panels, note)
}
