//! tab:tf: entropy and p(`<swi>`) at annotated positions and elsewhere, teacher-forced.

use super::{Exhibit, Layout};
use crate::report::cells::Cells;
use crate::report::folder::Folder;
use switchyard::schema::{Event, RowFile, TeacherForcedRow};
use switchyard::stats::Estimate;

pub(super) const EXHIBITS: &[Exhibit] = &[Exhibit {
    cell,
    beside: Layout {
        extra,
        note: |_, _| {
            "Random: of any token type, outside blocks; where rows have no random sample, every other position.".into()
        },
        ..Layout::PLAIN
    },
    ..Exhibit::new("tab:tf", &[TeacherForcedRow::NAME])
}];

/// Our rows that the paper's table does not have, by keys `<checkpoint>:<event>`.
fn extra(folder: &Folder) -> Vec<(String, String)> {
    let in_paper = |checkpoint: &str, row: &TeacherForcedRow| {
        [&folder.sft, &folder.grpo].iter().any(|c| *c == checkpoint)
            && [Event::SwiStart, random_event(folder, checkpoint)].contains(&row.event)
    };
    let others = folder.all::<TeacherForcedRow>().filter(|(checkpoint, row)| !in_paper(checkpoint, row));
    let named = |(checkpoint, row): (&str, &TeacherForcedRow)| {
        let event = row.event.name();
        (format!("{checkpoint}:{event}"), format!("{checkpoint}, {}", event.replace('_', " ")))
    };
    others.map(named).collect()
}

fn cell(cells: &Cells<'_>, row: &str, column: &str) -> Option<Estimate> {
    let (checkpoint, event) = match row.split_once(':') {
        Some((checkpoint, event)) => (checkpoint, Event::ALL.into_iter().find(|e| e.name() == event)?),
        None => {
            let checkpoint = cells.phase(row)?;
            let start = row.ends_with("start");
            (checkpoint, if start { Event::SwiStart } else { random_event(cells.folder, checkpoint) })
        }
    };
    let row = cells.folder.rows::<TeacherForcedRow>(checkpoint).iter().find(|r| r.event == event)?;
    match column {
        "entropy" => Some(row.entropy),
        "p_swi" => Some(row.p_swi),
        "rank" => Some(row.rank),
        "margin" => Some(row.margin),
        _ => None,
    }
}

/// The paper's random positions: the random sample, or all others in records without one.
fn random_event(folder: &Folder, checkpoint: &str) -> Event {
    let sampled = folder.rows::<TeacherForcedRow>(checkpoint).iter().any(|r| r.event == Event::Random);
    if sampled { Event::Random } else { Event::Other }
}
