//! Attention of heads: head × class of keys, for each class of queries. Knows the records of `attention_to_latents`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::escape::text;
use crate::report::folder::{Folder, called, distinct};
use switchyard::schema::{AttentionRow, Form};

const INTRODUCTION: &str = "<p class=\"note\">Mean share of a head’s attention that goes to each class of positions; the \
    stronger the colour, the more. “answer” is the position that decides the answer; “earlier blocks” sums the \
    blocks before the last one. Blocks and latent steps count from 1. Hover or focus a cell for the interval.</p>\n";

pub(super) fn html(folder: &Folder, id: &str) -> String {
    let mut out = String::new();
    for checkpoint in folder.checkpoints_with::<AttentionRow>() {
        let rows: Vec<&AttentionRow> =
            folder.rows::<AttentionRow>(checkpoint).iter().filter(|row| row.form == Form::Latents).collect();
        // The position that decides the answer first, then in the order of the rows.
        let from = distinct(["answer"].into_iter().chain(rows.iter().map(|row| row.from.as_str())));
        let looks = |from: &&str| rows.iter().any(|row| row.from == *from);
        let mut grids = String::new();
        for (at, from) in from.into_iter().filter(looks).enumerate() {
            let these: Vec<&AttentionRow> = rows.iter().copied().filter(|row| row.from == from).collect();
            let _ = write!(
                grids,
                "<details name=\"{id}-attention-{0}\"{1}><summary>from <code>{2}</code></summary>{3}</details>",
                text(checkpoint),
                if at == 0 { " open" } else { "" },
                text(from),
                grid(from, &these)
            );
        }
        if !grids.is_empty() {
            let _ = writeln!(
                out,
                "<div class=\"lens\"><h3>{}</h3>{grids}<output class=\"tip\" aria-live=\"polite\" hidden></output></div>",
                text(&called(checkpoint))
            );
        }
    }
    if out.is_empty() { out } else { format!("{INTRODUCTION}{out}") }
}

/// The column of a record: the class of its keys, with earlier blocks joined.
fn column(row: &AttentionRow) -> String {
    if row.back.is_some_and(|back| back > 0) { "earlier blocks".into() } else { row.to.clone() }
}

fn grid(from: &str, rows: &[&AttentionRow]) -> String {
    let mut columns: Vec<String> = vec![];
    let mut heads: BTreeMap<(usize, usize), BTreeMap<String, Vec<&AttentionRow>>> = BTreeMap::new();
    for row in rows {
        let column = column(row);
        if !columns.contains(&column) {
            columns.push(column.clone());
        }
        heads.entry((row.layer, row.head)).or_default().entry(column).or_default().push(row);
    }
    let head: String = columns.iter().map(|column| format!("<th scope=\"col\">{}</th>", text(column))).collect();
    let mut body = String::new();
    for ((layer, head), cells) in &heads {
        let _ = write!(body, "<tr><th scope=\"row\">blocks.{layer}, head {head}</th>");
        for column in &columns {
            body += &cells.get(column).map_or_else(|| "<td></td>".into(), |rows| cell(column, rows));
        }
        body += "</tr>\n";
    }
    format!(
        "<div class=\"scroll\"><table class=\"grid\"><caption>Where the heads look from {}</caption><thead><tr><td></td>{head}</tr></thead>\
         <tbody>{body}</tbody></table></div>",
        text(from)
    )
}

fn cell(column: &str, rows: &[&AttentionRow]) -> String {
    let mass: f64 = rows.iter().map(|row| row.mass.value).sum();
    let mut tip: Vec<String> = vec![column.to_owned()];
    for row in rows {
        let class =
            if rows.len() > 1 { format!("{}, {} back: ", row.to, row.back.unwrap_or(0)) } else { String::new() };
        let direct = row.direct.map_or_else(String::new, |nats| format!(", adds {nats:.2} nats to the answer’s lead"));
        tip.push(format!("{class}{:.3}{direct}", row.mass));
    }
    format!(
        "<td class=\"p\" tabindex=\"0\" style=\"--s:{:.3}\" title=\"{}\">{mass:.2}</td>",
        mass.clamp(0.0, 1.0),
        text(&tip.join(" · "))
    )
}
