//! The layer × step grid of the lenses. Knows the rows of `logit_lens`; the switch between lenses is CSS.

use std::fmt::Write;

use super::escape::{text, token};
use super::trace::pairs;
use crate::report::drawings::lens_rows;
use crate::report::folder::{Folder, estimate, number, shown};
use crate::store::Row;

pub(super) const INTRODUCTION: &str = "<p class=\"note\">What each layer would say next at each latent step: the most probable token of the \
    mean distribution and its probability. Darker: lower entropy. Layer 0 is the embedding, the topmost what the model itself \
    predicts. Hover or focus a cell for the top five.</p>\n";

pub(super) fn html(folder: &Folder, id: &str) -> String {
    let mut out = String::new();
    for checkpoint in folder.checkpoints("logit_lens") {
        let of = |lens: &str| lens_rows(folder, checkpoint, lens);
        let lenses: Vec<(&str, Vec<&Row>)> =
            ["logit", "tuned"].into_iter().map(|l| (l, of(l))).filter(|(_, rows)| !rows.is_empty()).collect();
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
            text(checkpoint)
        );
    }
    out
}

fn grid(lens: &str, rows: &[&Row]) -> String {
    let axis = |key: &str| {
        let mut all: Vec<i64> = rows.iter().filter_map(|r| number(r, key)).map(|x| x as i64).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (layers, steps) = (axis("layer"), axis("step"));
    let highest = rows.iter().filter_map(|r| number(r, "entropy.value")).fold(1e-9, f64::max);
    let head: String = steps.iter().map(|s| format!("<th scope=\"col\">step {s}</th>")).collect();
    let mut body = String::new();
    for layer in layers.iter().rev() {
        let _ = write!(body, "<tr><th scope=\"row\">layer {layer}</th>");
        for step in &steps {
            let there =
                |r: &&&Row| number(r, "layer") == Some(*layer as f64) && number(r, "step") == Some(*step as f64);
            body += &rows.iter().find(there).map_or("<td></td>".into(), |r| cell(r, highest));
        }
        body += "</tr>\n";
    }
    format!(
        "<div class=\"scroll {lens}\"><table class=\"grid\"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
}

fn cell(row: &Row, highest: f64) -> String {
    let top = pairs(&shown(row, "top"));
    let (word, p) = top.first().cloned().unwrap_or_default();
    let sure = 1.0 - (number(row, "entropy.value").unwrap_or(highest) / highest).clamp(0.0, 1.0);
    let mut tip = vec![format!("layer {}, step {}", shown(row, "layer"), shown(row, "step"))];
    for (key, name) in [
        ("entropy", "entropy"),
        ("p_exit", "p(</swi>)"),
        ("exit_rank", "rank of </swi>"),
        ("kl", "KL to the last layer"),
        ("agreement", "agrees with the last layer"),
    ] {
        if let Some(e) = estimate(row, key) {
            tip.push(format!("{name} {e:.3}"));
        }
    }
    let said: Vec<String> = top.iter().map(|(t, p)| format!("{} {p:.3}", t.trim())).collect();
    tip.push(format!("top: {}", said.join(", ")));
    format!(
        "<td class=\"p\" tabindex=\"0\" style=\"--s:{sure:.3}\" title=\"{}\">{}<small>{p:.2}</small></td>",
        text(&tip.join(" · ")),
        token(&word)
    )
}
