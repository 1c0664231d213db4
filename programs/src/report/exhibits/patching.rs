//! Effect of activation patching between two problems, by layer and step or position; and of patching a user's pairs.

use anyhow::Result;

use super::lens::grid;
use super::{Drawing, Exhibit, largest};
use crate::report::figures::{Figure, HeatMap};
use crate::report::folder::{Folder, called, sound};
use crate::report::paper::Paper;
use crate::report::render_table::number;
use crate::report::tables::{Cell, ColumnKind, Table};
use switchyard::schema::{
    Axis, Component, Form, HeadPatchRow, PatchMode, PatchRow, RowFile, place_name, place_number, place_order,
    stream_name,
};
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[
    Exhibit { covers: true, draw, ..Exhibit::new("fig:patching", &[PatchRow::NAME]) },
    Exhibit { draw: draw_pairs, ..Exhibit::new("fig:pair-patching", &[HeadPatchRow::PAIRS]) },
    Exhibit { covers: true, table: table_of_pairs, ..Exhibit::new("tab:pair-patching", &[HeadPatchRow::PAIRS]) },
];

fn draw(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.checkpoints_with::<PatchRow>() {
        // One scale for both axes: from no effect to the whole effect.
        let effects = folder.rows::<PatchRow>(checkpoint).iter().filter_map(|row| sound(row.effect)).map(|e| e.value);
        let range = effects.fold((0.0, 1.0), |(low, high): (f64, f64), e| (low.min(e), high.max(e)));
        let panel = |(axis, by, x): (Axis, &str, &str)| {
            let rows = folder.rows::<PatchRow>(checkpoint).iter().filter(|r| r.axis == axis);
            let cells: Vec<_> = rows.clone().map(|r| (r.layer, r.index, r.effect)).collect();
            let n = rows.map(|r| r.effect.n).max().unwrap_or_default();
            let title = format!("Activation patching by {by} (n={n} pairs): {}", called(checkpoint));
            grid(
                &cells,
                stream_name,
                HeatMap { title, x: x.into(), unit: "restored share".into(), range: Some(range), ..HeatMap::default() },
            )
        };
        let axes = [(Axis::Step, "step", "latent step"), (Axis::Position, "position", "position")];
        let panels = axes.into_iter().filter_map(panel).collect();
        let note = "Share of the logit difference between clean and corrupt prompts that a patch restores; means over pairs. Intervals are in the rows.";
        out.extend(exhibit.drawing_of(checkpoint, "Activation patching (ours)", 1, panels, note));
    }
    out
}

/// Layer by place, one panel per form and component; for heads, the layer's head with the largest effect.
fn draw_pairs(exhibit: &Exhibit, _: &Paper, folder: &Folder) -> Vec<Drawing> {
    let mut out = vec![];
    for checkpoint in folder.checkpoints(HeadPatchRow::PAIRS) {
        let rows = folder.rows_in::<HeadPatchRow>(HeadPatchRow::PAIRS, checkpoint);
        let modes = [PatchMode::Denoise, PatchMode::Noise, PatchMode::Mean];
        let Some(mode) = modes.into_iter().find(|mode| rows.iter().any(|row| row.mode == *mode)) else { continue };
        let rows: Vec<&HeadPatchRow> =
            rows.iter().filter(|row| row.mode == mode && sound(row.effect).is_some()).collect();
        let effects = rows.iter().map(|row| row.effect.value);
        let range = effects.fold((0.0, 1.0), |(low, high): (f64, f64), e| (low.min(e), high.max(e)));
        let mut panels = vec![];
        for form in Form::ALL {
            for (component, what) in
                [(Component::Resid, "stream"), (Component::Mlp, "MLP"), (Component::Head, "strongest head")]
            {
                let of: Vec<&HeadPatchRow> =
                    rows.iter().filter(|row| row.form == form && row.component == component).copied().collect();
                let title = format!("{what}, {mode} ({form}): {}", called(checkpoint));
                let name = if component == Component::Resid { stream_name } else { |layer| format!("blocks.{layer}") };
                panels.extend(by_place(
                    &of,
                    name,
                    HeatMap { title, unit: "effect (share)".into(), range: Some(range), ..HeatMap::default() },
                ));
            }
        }
        let note = "Effect: share of the difference between the clean and the corrupt run that one patch moves; means over pairs, \
                    intervals are in the rows. Stream: at the output of that layer.";
        out.extend(exhibit.drawing_of(checkpoint, "Your own pairs, layer by position (ours)", 1, panels, note));
    }
    out
}

/// Heads and MLPs by |effect|; the stream where nothing else was patched.
fn table_of_pairs(exhibit: &Exhibit, folder: &Folder) -> Result<Option<Table>> {
    use ColumnKind::{Measured, Text};
    let columns = [
        ("checkpoint", Text),
        ("form", Text),
        ("mode", Text),
        ("place", Text),
        ("layer", Text),
        ("component", Text),
        ("effect", Measured(3)),
        ("p (Holm)", Text),
    ];
    let mut table =
        Table::new(exhibit.label, "Your own pairs: which heads and MLPs carry the answer, and where?", columns);
    table.note = "Effect: share of the difference between the clean and the corrupt run that one patch moves; n counts pairs; largest \
        absolute effect first."
        .to_owned();
    for checkpoint in folder.checkpoints(HeadPatchRow::PAIRS) {
        let rows = folder.rows_in::<HeadPatchRow>(HeadPatchRow::PAIRS, checkpoint);
        let stream = rows.iter().all(|row| row.component == Component::Resid);
        let shown = rows.iter().filter(|row| stream || row.component != Component::Resid);
        let effect = |row: &HeadPatchRow| row.effect;
        let (rows, others) = largest(shown, effect, (HeadPatchRow::PAIRS, checkpoint));
        table.note += &others;
        for row in rows {
            let layer = if stream { stream_name(row.layer) } else { format!("blocks.{}", row.layer) };
            let component = match (row.component, row.head) {
                (Component::Head, Some(head)) => format!("head {head}"),
                (Component::Resid, _) => "stream".to_owned(),
                (component, _) => component.name().to_owned(),
            };
            table.push(vec![
                Cell::Text(checkpoint.to_owned()),
                Cell::Text(row.form.name().to_owned()),
                Cell::Text(row.mode.name().to_owned()),
                Cell::Text(place_name(&row.place, row.back)),
                Cell::Text(layer),
                Cell::Text(component),
                Cell::measured(Some(row.effect)),
                Cell::Text(number(row.p_holm, 3)),
            ])?;
        }
    }
    Ok((!table.rows().is_empty()).then_some(table))
}

fn by_place(rows: &[&HeadPatchRow], name: fn(usize) -> String, map: HeatMap) -> Option<Figure> {
    let mut columns: Vec<(&str, Option<usize>)> = rows.iter().map(|row| (row.place.as_str(), row.back)).collect();
    columns.sort_by_key(|(place, back)| place_order(place, *back));
    columns.dedup();
    let mut cells: Vec<(usize, usize, Estimate)> = vec![];
    for row in rows {
        let column = columns.iter().position(|place| *place == (row.place.as_str(), row.back))?;
        match cells.iter_mut().find(|cell| (cell.0, cell.1) == (row.layer, column)) {
            Some(cell) if row.effect.value.abs() > cell.2.value.abs() => cell.2 = row.effect,
            Some(_) => {}
            None => cells.push((row.layer, column, row.effect)),
        }
    }
    let numbered = columns.iter().all(|(place, _)| place.starts_with("position["));
    let named = |(place, back): &(&str, Option<usize>)| match place_number(place).filter(|_| numbered) {
        Some(number) => number.to_string(),
        None => place_name(place, *back),
    };
    let x = if numbered { "position" } else { "place" };
    match grid(&cells, name, HeatMap { x: x.into(), ..map })? {
        Figure::HeatMap(map) => Some(Figure::HeatMap(HeatMap { columns: columns.iter().map(named).collect(), ..map })),
        other => Some(other),
    }
}
