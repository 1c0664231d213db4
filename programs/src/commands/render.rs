//! A trace as a reader sees it: text, and a chip for every latent block. Knows colours, not models.

use std::fmt::Write;

use anyhow::Result;

use switchyard::latent::Trace;
use switchyard::latent::trace::PositionRole;
use switchyard::progress::plain;
use switchyard::text::Vocabulary;

/// Text without control characters, with `⟨swi 4⟩` for four latent steps, and p(exit) after each. Without a vocabulary, ids. `thinks`: a
/// word per latent step, to show in its block.
pub fn render(trace: &Trace, vocabulary: Option<&Vocabulary>, thinks: Option<&[&str]>, colour: bool) -> Result<String> {
    let mut thinks = thinks.map(<[&str]>::iter);
    let mut out = String::new();
    let mut text: Vec<u32> = vec![];
    let mut blocks = trace.blocks().into_iter();
    let mut open = false;
    for position in &trace.positions {
        let inside = matches!(position.kind, PositionRole::Swi | PositionRole::Latent);
        if position.kind == PositionRole::Text {
            text.push(position.token);
        } else if inside && !open {
            append(&mut out, &plain(&decode(&text, vocabulary)?));
            text.clear();
            if let Some(block) = blocks.next() {
                let words = thinks.iter_mut().flat_map(|words| words.by_ref().take(block.p_exit.len()));
                let words: Vec<&str> = words.map(|word| word.trim()).collect();
                append(&mut out, &chip(&block.p_exit, &plain(&words.join(" ")), block.forced, colour));
            }
        }
        open = inside;
    }
    append(&mut out, &plain(&decode(&text, vocabulary)?));
    Ok(out)
}

/// Decoded visible text.
pub fn decode(ids: &[u32], vocabulary: Option<&Vocabulary>) -> Result<String> {
    match vocabulary {
        Some(vocabulary) => vocabulary.decode_visible(ids),
        None => Ok(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
    }
}

fn chip(p_exit: &[f64], words: &str, forced: bool, colour: bool) -> String {
    let colon = if words.is_empty() { "" } else { ": " };
    let mut chip = format!("⟨swi {}{colon}{words}⟩", p_exit.len());
    let steps: Vec<String> = p_exit.iter().map(|p| format!("{p:.2}")).collect();
    let mut exits = format!("[{}", steps.join(" "));
    exits.push_str(if forced { " forced]" } else { "]" });
    if colour {
        chip = format!("\x1b[35;1m{chip}\x1b[0m");
        exits = format!("\x1b[2m{exits}\x1b[0m");
    }
    // Writing to a String cannot fail.
    let _ = write!(chip, "{exits}");
    chip
}

/// Joins two pieces, with a space where they would run together.
fn append(out: &mut String, piece: &str) {
    let apart = out.is_empty() || out.ends_with(char::is_whitespace) || piece.starts_with(char::is_whitespace);
    if !piece.is_empty() {
        out.push_str(if apart { "" } else { " " });
        out.push_str(piece);
    }
}
