//! SwiReasoning (Shi et al. 2026): the text checkpoint as it is, decoded with mixtures of the vocabulary where its entropy
//! rises. Training-free; also the source of SWITCH's idea of where to switch.
//!
//! As in the public code (sdc17/SwiReasoning): the mixture is of the whole vocabulary at temperature 1; where the token drawn is a
//! digit, a letter or an operator (`swireasoning.symbols`, on in the public runs) it is fed itself, and the block goes on behind it;
//! `swireasoning.switches` counts changes from latents to text and is unbounded by default.
//!
//! It differs in this: nothing of `<think>`, `</think>` and the line break is mixed in at a change (theirs: α = 1, β = .7, .1), because
//! text checkpoints trained here do not know these tokens; with a bound on changes the token that ends thinking is imposed once and
//! all is text from there on (theirs is imposed at each change from the bound to twice the bound, then `The final answer is` with 32
//! tokens to go); a block has at most `max_new_tokens` positions; tokens are drawn as `[evaluation]` says (theirs: temperature .6,
//! top-p .95, top-k 20). `swireasoning.budget` is ours.

use std::collections::BTreeSet;

use anyhow::Result;

use super::phase::{Panel, Phase, TableRow, Work, as_it_is};
use super::soft_thinking::end_of_thinking;
use super::text_cot::BASE;
use super::{Method, Recipe};
use crate::corpus::Corpus;
use crate::latent::{Blocks, Reasoning, Source, rules};
use crate::recipe::POSITIONS;
use crate::recipe::Range::{Count, Typed};
use crate::text::Vocabulary;

settings! {
    /// SwiReasoning (Shi et al. 2026), training-free: on the checkpoint of `base`.
    pub struct Settings {
        /// Tokens of text before a block may open again.
        pub window: usize = 512 => Count(0, POSITIONS),
        /// Blocks of a response at most (ours); 0: any number.
        pub budget: usize = 0 => Count(0, POSITIONS),
        /// After so many changes from latents to text thinking is ended (`max_switch_count` of the public code); 0: never.
        pub switches: usize = 0 => Count(0, POSITIONS),
        /// Where the token drawn is a digit, a letter or an operator it is fed itself (`math_ids_tensor` of the public runs).
        pub symbols: bool = true => Typed,
    }
}

pub(super) const METHODS: &[Method] = &[Method {
    name: "swireasoning",
    about: "training-free: mixtures of the vocabulary while entropy is high (Shi et al. 2026)",
    phases: &[BASE, SWIREASONING],
    ..Method::PLAIN
}];

pub(super) const SWIREASONING: Phase = Phase {
    name: "swireasoning",
    from: Some(BASE.name),
    reads: &["swireasoning", "evaluation"],
    row: TableRow::Ours("SwiReasoning (training-free)"),
    panel: Panel::Text,
    work: Work::Decode { model: as_it_is, reasoning },
};

/// The mixture is of the whole vocabulary, at temperature 1.
fn reasoning(recipe: &Recipe, corpus: &Corpus) -> Result<Reasoning> {
    let Settings { window, budget, switches, symbols } = recipe.swireasoning;
    let (limit, end) = (recipe.evaluation.max_new_tokens, end_of_thinking(corpus)?);
    let symbols = if symbols { symbols_of(&corpus.vocabulary)? } else { vec![] };
    Ok(Reasoning {
        source: Source::VocabularyMixture { top_k: corpus.vocabulary.size(), top_p: 1.0, temperature: 1.0 },
        blocks: Blocks::SwiReasoning(rules::SwiReasoning { window, budget, switches, limit, end, symbols }),
        ..Reasoning::text("swireasoning")
    })
}

/// Operators, relations and brackets of one character.
const SIGNS: &str = "+ - * / ^ _ = < > | ( ) [ ] { }";

/// Operators, functions, letters and layout as LaTeX writes them, each behind a backslash.
const COMMANDS: &str = "alpha angle approx arccos arcsin arctan arg ast because begin{pmatrix} beta binom boxed cap cdot cdots choose \
    circ cos cot cotg csc cup ddots deg delta dfrac dots emptyset end{pmatrix} epsilon equiv exists exp forall frac gamma gcd geq iff \
    implies in infty int lambda lceil ldots left left( left[ left\\{ leq lfloor lim ln log mathbb mathbf mathrm max mbox mid min mu neg \
    neq notin nu operatorname overline parallel perp pi prime prod rceil rfloor right right) right] right\\} sec sim sin sqrt sqrt[] \
    star subset subseteq sum supset supseteq text therefore theta to triangle triangleleft triangleright underline varnothing vdots vee \
    vert Vert wedge zeta";

/// The tokens of digits, letters and operators, ascending.
///
/// # Errors
/// A tokenizer that cannot encode them.
fn symbols_of(vocabulary: &Vocabulary) -> Result<Vec<u32>> {
    let characters = ('0'..='9').chain('a'..='z').chain('A'..='Z').map(String::from);
    let signs = SIGNS.split_whitespace().map(str::to_owned);
    let commands = COMMANDS.split_whitespace().map(|name| format!("\\{name}"));
    let mut ids = BTreeSet::new();
    for symbol in characters.chain(signs).chain(commands) {
        if vocabulary.unknown(&symbol)?.is_empty() {
            ids.extend(vocabulary.encode(&symbol)?);
        }
    }
    Ok(ids.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_digits_letters_and_operators_that_the_vocabulary_has() {
        let words = ["3", "#", ";", "a", "+", "then", "="].map(str::to_owned);
        let vocabulary = Vocabulary::from_words(words).expect("a vocabulary");
        let mut expected: Vec<u32> = ["3", "a", "+", "="].iter().filter_map(|word| vocabulary.id(word)).collect();
        expected.sort_unstable();
        assert_eq!((symbols_of(&vocabulary).expect("ids"), expected.len()), (expected, 4));
    }
}
