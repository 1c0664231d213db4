//! The layer × step grid of the lenses. Knows the rows of `logit_lens`; the switch between lenses is CSS.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::escape::{text, token};
use super::trace::pairs;
use crate::report::exhibits::lens_rows;
use crate::report::folder::{Folder, called, sound};
use switchyard::schema::{Lens, LensRow, stream_name};

const INTRODUCTION: &str = "<p class=\"note\">Each layer’s next token at each latent step: the most probable token \
    of the mean distribution and its probability. Values differ between problems, so a mean of sure distributions \
    looks unsure: \
    “own” is the share of blocks whose own most probable token begins the value of the block’s own step. The stronger the colour, the lower the entropy. The top row is the model’s own prediction. \
    Hover or focus a cell for the top five.</p>\n";

pub(super) fn html(folder: &Folder, id: &str) -> String {
    let mut out = String::new();
    for checkpoint in folder.checkpoints_with::<LensRow>() {
        let of = |lens: Lens| lens_rows(folder, checkpoint, lens);
        let lenses: Vec<(&str, Vec<(usize, &LensRow)>)> = [Lens::Logit, Lens::Tuned]
            .into_iter()
            .map(|l| (l.name(), of(l)))
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        let mut choice = String::new();
        let mut grids = String::new();
        for (at, (lens, rows)) in lenses.iter().enumerate() {
            let checked = if at == 0 { " checked" } else { "" };
            let _ = write!(
                choice,
                "<label><input type=\"radio\" name=\"{id}-{}\" value=\"{lens}\"{checked}> {lens} lens</label>",
                text(checkpoint)
            );
            grids += &grid(lens, rows);
        }
        let _ = writeln!(
            out,
            "<div class=\"lens\"><h3>{}</h3><fieldset><legend>Lens</legend>{choice}</fieldset>{grids}\
             <output class=\"tip\" aria-live=\"polite\" hidden></output></div>",
            text(&called(checkpoint))
        );
    }
    if out.is_empty() { out } else { format!("{INTRODUCTION}{out}") }
}

fn grid(lens: &str, rows: &[(usize, &LensRow)]) -> String {
    let axis = |of: fn(&(usize, &LensRow)) -> usize| rows.iter().map(of).collect::<BTreeSet<usize>>();
    let (layers, steps) = (axis(|(_, r)| r.layer), axis(|(step, _)| *step));
    let highest = rows.iter().map(|(_, r)| r.entropy.value).fold(1e-9, f64::max);
    let head: String = steps.iter().map(|s| format!("<th scope=\"col\">step {s}</th>")).collect();
    let mut body = String::new();
    for layer in layers.iter().rev() {
        let _ = write!(body, "<tr><th scope=\"row\">{}</th>", stream_name(*layer));
        for step in &steps {
            let there = rows.iter().find(|(s, r)| r.layer == *layer && s == step);
            body += &there.map_or("<td></td>".into(), |(step, r)| cell(*step, r, highest));
        }
        body += "</tr>\n";
    }
    format!(
        "<div class=\"scroll {lens}\"><table class=\"grid\"><caption>The {lens} lens, layer by latent step</caption><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
}

fn cell(step: usize, row: &LensRow, highest: f64) -> String {
    let top = pairs(&row.top);
    let (word, p) = top.first().cloned().unwrap_or_default();
    let sure = 1.0 - (row.entropy.value / highest).clamp(0.0, 1.0);
    let mut tip = vec![format!("{}, step {step}", stream_name(row.layer))];
    for (e, name) in [
        (row.entropy, "entropy"),
        (row.p_exit, "p(</swi>)"),
        (row.exit_rank, "rank of </swi>"),
        (row.kl, "KL to the last layer"),
        (row.agreement, "agrees with the last layer"),
    ] {
        tip.extend(sound(e).map(|e| format!("{name} {e:.3}")));
    }
    let own = row.own_value.and_then(sound);
    tip.extend(own.map(|e| format!("top-1 is the own value {e:.3}")));
    let own = own.map_or_else(String::new, |e| format!(" <small>own {:.2}</small>", e.value));
    let said: Vec<String> = top.iter().map(|(t, p)| format!("{} {p:.3}", t.trim())).collect();
    tip.push(format!("top: {}", said.join(", ")));
    format!(
        "<td class=\"p\" tabindex=\"0\" style=\"--s:{sure:.3}\" title=\"{}\">{}<small>{p:.2}</small>{own}</td>",
        text(&tip.join(" · ")),
        token(&word)
    )
}
