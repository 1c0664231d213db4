//! A trace's latent steps: the most probable next tokens, p(`</swi>`), entropy. Knows the records of `positions`.

use std::fmt::Write;

use super::escape::token;
use super::trace::pairs;
use crate::report::render_table::number;
use switchyard::nth::Nth;
use switchyard::schema::{PositionKind, PositionRow};

/// Tokens shown per step.
const TOP: usize = 3;

/// A folded table of all blocks; empty for a trace without latents.
pub(super) fn html(rows: &[&PositionRow]) -> String {
    let (mut block, mut step, mut inside) = (0, 0, false);
    let mut body = String::new();
    for row in rows {
        let latent = row.kind == PositionKind::Latent;
        if latent && !inside {
            (block, step) = (block + 1, 0);
        }
        inside = latent;
        if latent {
            let top = pairs(row.lens.as_deref().unwrap_or_default());
            let predictions = (0..TOP).map(|at| match top.get(at) {
                Some((word, p)) => format!("<td>{} <small>{p:.2}</small></td>", token(word)),
                None => "<td></td>".into(),
            });
            let shown = |value: Option<f64>| value.map_or_else(String::new, |value| number(value, 3));
            let _ = write!(
                body,
                "<tr><th scope=\"row\">{block}, {}</th>{}<td class=\"num\">{}</td><td class=\"num\">{}</td></tr>",
                Nth::new(step),
                predictions.collect::<String>(),
                shown(row.p_exit),
                shown(row.entropy)
            );
            step += 1;
        }
    }
    if body.is_empty() {
        return body;
    }
    format!(
        "<details class=\"how\"><summary>Latent steps</summary><div class=\"scroll\" tabindex=\"0\"><table>\
         <caption>What the model would say at each latent step</caption><thead><tr><th scope=\"col\">block, step</th>\
         <th scope=\"col\">1st</th><th scope=\"col\">2nd</th><th scope=\"col\">3rd</th><th scope=\"col\">p(&lt;/swi&gt;)</th>\
         <th scope=\"col\">entropy</th></tr></thead><tbody>{body}</tbody></table></div></details>"
    )
}
