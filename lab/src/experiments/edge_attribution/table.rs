//! Circuits for a terminal.

use crate::experiments::markdown::titled;
use crate::schema::{CircuitRow, EdgeRow, Form};
use crate::stats::by_problem::cell;

/// Edges of a circuit that are shown.
const SHOWN: usize = 20;

/// Markdown: what every circuit does alone, and the largest edges of the found ones.
pub fn table(edges: &[EdgeRow], circuits: &[CircuitRow]) -> String {
    let mut out = titled(
        "Share of the difference that some edges bring alone, the corrupt value on all others [95 %].",
        "form | circuit | edges | of | circuits | effect | extreme | edges needed",
    );
    for c in circuits {
        let extreme = c.extreme.map_or_else(String::new, |extreme| format!("{extreme:.2}"));
        let (form, circuit) = (c.form.name(), c.circuit.name());
        out += &format!(
            "| {form} | {circuit} | {} | {} | {} | {:.2} | {extreme} | {} |\n",
            c.edges,
            c.of,
            c.circuits,
            c.effect,
            cell(c.needed, 2)
        );
    }
    out += &titled("\nThe largest edges of the circuits [95 %].", "form | from | to | place | score | needed");
    for form in Form::ALL {
        for e in edges.iter().filter(|e| e.form == form && e.in_circuit).take(SHOWN) {
            let back = e.back.filter(|b| *b > 0).map_or_else(String::new, |b| format!(", {b} back"));
            let (form, needed) = (form.name(), cell(e.needed, 2));
            let EdgeRow { sender, receiver, place, score, .. } = e;
            out += &format!("| {form} | {sender} | {receiver} | {place}{back} | {score:.2} | {needed} |\n");
        }
    }
    out
}
