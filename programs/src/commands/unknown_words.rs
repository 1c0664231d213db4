//! Warns about texts that a model reads otherwise than they are meant: words without a token, which become `<unk>`, and a missing `<bos>`.
//! Both would otherwise show only in the answers.

use anyhow::Result;

use switchyard::progress::say;
use switchyard::text::{BOS, Vocabulary, cut};

/// Words named in a warning.
const NAMED: usize = 3;

/// Prints the warning of [`unknown_words`] to standard error.
pub(super) fn warn_of_unknown<'a>(
    vocabulary: &Vocabulary,
    what: &str,
    texts: impl Iterator<Item = &'a str>,
) -> Result<()> {
    unknown_words(vocabulary, what, texts)?.iter().for_each(|warning| say(warning));
    Ok(())
}

/// Warns about prompts without `<bos>`, for models whose training began every text with it and whose tokenizer does not add it.
pub(super) fn warn_of_missing_start<'a>(vocabulary: &Vocabulary, prompts: impl Iterator<Item = &'a str>) {
    let written = vocabulary.bos().and_then(|bos| vocabulary.token(bos)).filter(|bos| bos == BOS);
    let Some(bos) = written.filter(|_| vocabulary.leading_bos().is_empty()) else { return };
    let (all, without) = prompts.fold((0, 0), |(all, without), prompt| {
        (all + 1, without + usize::from(!prompt.trim_start().starts_with(&bos)))
    });
    if without > 0 {
        say(&format!(
            "warning: {without} of {all} prompts do not begin with {bos}, as every text in this model's training did"
        ));
    }
}

/// A warning about words of texts that are not in the vocabulary, if there are any. `what`: kind of the texts, e.g. `prompts`.
pub(super) fn unknown_words<'a>(
    vocabulary: &Vocabulary,
    what: &str,
    texts: impl Iterator<Item = &'a str>,
) -> Result<Option<String>> {
    let (mut words, mut holding, mut all): (Vec<String>, usize, usize) = (vec![], 0, 0);
    for text in texts {
        let unknown = vocabulary.unknown(text)?;
        all += 1;
        holding += usize::from(!unknown.is_empty());
        for word in unknown {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    let Some(unk) = vocabulary.unk().filter(|_| !words.is_empty()) else { return Ok(None) };
    let named: Vec<String> = words.iter().take(NAMED).map(|word| format!("`{}`", cut(word))).collect();
    let more = words.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Ok(Some(format!(
        "warning: {holding} of {all} {what} have words without a token in this model, which become {} instead: {}{more}",
        vocabulary.token(unk).unwrap_or_default(),
        named.join(", ")
    )))
}
