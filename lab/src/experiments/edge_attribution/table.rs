//! Circuits for a terminal.

use crate::experiments::markdown::{place, table_of, titled};
use crate::schema::{CircuitRow, EdgeRow, Form};
use crate::stats::by_problem::cell;

/// Edges of a circuit that are shown.
const SHOWN: usize = 20;

/// Markdown: what every circuit does alone, and the largest edges of the found ones.
pub fn table(edges: &[EdgeRow], circuits: &[CircuitRow]) -> String {
    let columns = "form | circuit | edges | of | circuits | effect | extreme | edges needed";
    let circuits = table_of(columns, circuits, |c| {
        let extreme = c.extreme.map_or_else(String::new, |extreme| format!("{extreme:.2}"));
        let CircuitRow { form, circuit, edges, of, circuits, effect, .. } = c;
        format!("{form} | {circuit} | {edges} | {of} | {circuits} | {effect:.2} | {extreme} | {}", cell(c.needed, 2))
    });
    let of_form = |form| edges.iter().filter(move |e| e.form == form && e.in_circuit).take(SHOWN);
    let shown = Form::ALL.into_iter().flat_map(of_form);
    let edges = table_of("form | from | to | place | score | needed", shown, |e| {
        let EdgeRow { form, sender, receiver, score, .. } = e;
        format!("{form} | {sender} | {receiver} | {} | {score:.2} | {}", place(&e.place, e.back), cell(e.needed, 2))
    });
    titled("Share of the difference that some edges bring alone, the corrupt value on all others [95 %].", &circuits)
        + &titled("\nThe largest edges of the circuits [95 %].", &edges)
}
