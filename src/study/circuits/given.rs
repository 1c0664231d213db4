//! Reads a user's pairs of prompts with the two tokens to compare: `{"clean": …, "corrupt": …, "answer": …, "wrong": …}` per line.
//! Nothing is decoded: the readout is the prompt's last position. `<latent>` tokens in a prompt are latent steps.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::pairs::Pair;
use crate::latent::Sequence;
use crate::progress::say;
use crate::study::Study;
use crate::text::{cut, lines};

/// A pair and its origin, `file:line`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPair {
    pub pair: Pair,
    pub place: String,
}

/// `answer` is the next token of the clean prompt, `wrong` that of the corrupt one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptPairLine {
    clean: String,
    corrupt: String,
    answer: String,
    wrong: String,
}

/// The distinct pairs of a file, numbered from 0.
///
/// # Errors
/// By file and line: a malformed object, prompts that differ in length or in the positions of their latent steps, two equal prompts,
/// words without a token, an answer that is not exactly one token.
pub fn read(study: &Study, path: &Path) -> Result<Vec<PlacedPair>> {
    let (mut out, mut repeated) = (vec![], vec![]);
    let mut seen = HashSet::new();
    for (place, line) in lines(path)? {
        let line: PromptPairLine = serde_json::from_str(&line).with_context(|| {
            format!("{place}: expected {{\"clean\": …, \"corrupt\": …, \"answer\": …, \"wrong\": …}}")
        })?;
        let pair = pair(study, out.len(), &line).with_context(|| place.clone())?;
        if seen.insert((pair.clean.ids.clone(), pair.corrupt.ids.clone(), pair.says)) {
            out.push(PlacedPair { pair, place });
        } else {
            repeated.push(place);
        }
    }
    if let Some(first) = repeated.first() {
        let what = format!("{} pairs repeat an earlier pair (the first is {first})", repeated.len());
        say(&format!("warning: {what} and are left out, so that n counts distinct pairs"));
    }
    ensure!(!out.is_empty(), "{}: contains no pair", path.display());
    Ok(out)
}

fn pair(study: &Study, number: usize, line: &PromptPairLine) -> Result<Pair> {
    let clean = row(study, &line.clean).context("clean")?;
    let corrupt = row(study, &line.corrupt).context("corrupt")?;
    let (has, other) = (clean.ids.len(), corrupt.ids.len());
    ensure!(
        has == other,
        "the clean prompt has {has} tokens, the corrupt one {other}: activations are patched at the same position, so both need the \
        same number of tokens"
    );
    ensure!(clean.ids != corrupt.ids, "the two prompts are the same: there is nothing to patch");
    ensure!(clean.steps == corrupt.steps, "the two prompts have their latent steps at different positions");
    let says = [token(study, &line.answer).context("answer")?, token(study, &line.wrong).context("wrong")?];
    ensure!(says[0] != says[1], "answer and wrong are the same token: there is no logit difference to measure");
    Ok(Pair { number, group: number, clean, corrupt, says, clauses: vec![] })
}

/// A sequence of prompt positions and latent steps.
fn row(study: &Study, text: &str) -> Result<Sequence> {
    let vocabulary = &study.corpus.vocabulary;
    ensure!(!text.trim().is_empty(), "the prompt is empty");
    let unknown = vocabulary.unknown(text)?;
    let named: Vec<String> = unknown.iter().take(5).map(|word| cut(word)).collect();
    ensure!(unknown.is_empty(), "words without a token in this model: {}", named.join(", "));
    let ids = vocabulary.encode_row(text)?;
    let rows = study.model.config().vocab_size;
    if let Some(id) = ids.iter().find(|id| **id as usize >= rows) {
        let token = vocabulary.token(*id).unwrap_or_else(|| id.to_string());
        anyhow::bail!("{token} is not a token of this model, which has no latent steps");
    }
    let prompt = ids.len();
    Sequence::new(0, ids, prompt, Some(study.corpus.switch.latent))
}

fn token(study: &Study, text: &str) -> Result<u32> {
    let vocabulary = &study.corpus.vocabulary;
    let ids = vocabulary.encode(text)?;
    match ids[..] {
        [id] if Some(id) != vocabulary.unk() => Ok(id),
        [_] => anyhow::bail!("the model has no token for {text:?}"),
        _ => {
            let parts: Vec<String> = ids.iter().filter_map(|id| vocabulary.token(*id)).collect();
            let (n, parts) = (ids.len(), parts.join(", "));
            let advice = "where tokens begin with a space, write it too: \" Mary\"";
            anyhow::bail!("{text:?} is {n} tokens ({parts}), expected exactly one; {advice}")
        }
    }
}
