//! Helpers of all families: a keyed generator, a stable hash, weighted choice, and a writer that counts words.

use std::ops::Range;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Fact, Split, StepValue};
use crate::random::{fnv1a, keyed};

/// The generator of one problem, which does not depend on the problems drawn before it.
pub(crate) fn row_rng(family: &str, split: Split, seed: u64, index: u64) -> ChaCha8Rng {
    keyed([seed, index, stable_hash(family.bytes()), stable_hash(split.name().bytes())])
}

/// FNV-1a, then a mixer: with FNV alone the low three bits, which choose the split, depend only on the input's low three
/// bits. Implemented here because std's hasher may change between releases, and with it every split.
pub(crate) fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    mix(fnv1a(bytes))
}

/// The finaliser of SplitMix64.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Index drawn in proportion to the weights. The caller has checked that they are finite, not negative and not all zero.
pub fn weighted(rng: &mut ChaCha8Rng, weights: &[f64]) -> usize {
    let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
    let mut last = 0;
    for (index, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            last = index;
            if left < weight {
                return index;
            }
            left -= weight;
        }
    }
    last
}

/// `count` distinct names, drawn in random order.
pub fn distinct<'a>(rng: &mut ChaCha8Rng, names: &[&'a str], count: usize) -> Vec<&'a str> {
    let mut names = names.to_vec();
    for place in 0..count {
        let other = rng.random_range(place as u32..names.len() as u32) as usize;
        names.swap(place, other);
    }
    names.truncate(count);
    names
}

/// The words of a family that writes these marks and names, and the numbers 0..modulus.
pub(crate) fn vocabulary(marks: &[&str], names: &[&str], modulus: u32) -> Vec<String> {
    let digits = (0..modulus).map(|value| value.to_string());
    marks.iter().chain(names).map(|word| word.to_string()).chain(digits).collect()
}

/// Writes words separated by spaces, and counts them.
#[derive(Default)]
pub(crate) struct Pen {
    text: String,
    words: usize,
}

/// A position in the text, in words: the start of a clause or value.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    byte: usize,
    word: usize,
}

impl Pen {
    pub fn word(&mut self, word: &str) {
        if self.words > 0 {
            self.text.push(' ');
        }
        self.text.push_str(word);
        self.words += 1;
    }

    pub fn words(&mut self, words: &[&str]) {
        words.iter().for_each(|word| self.word(word));
    }

    pub fn number(&mut self, value: i64) {
        use std::fmt::Write;
        if self.words > 0 {
            self.text.push(' ');
        }
        // Writing to a String cannot fail.
        let _ = write!(self.text, "{value}");
        self.words += 1;
    }

    /// The position of the next word.
    pub fn mark(&self) -> Mark {
        Mark { byte: self.text.len(), word: self.words }
    }

    /// Words written since `mark`.
    pub(crate) fn since(&self, mark: Mark) -> Range<usize> {
        mark.word..self.words
    }

    /// The step whose clause starts at `clause` and whose value starts at `value`; both end here.
    pub fn step(&self, clause: Mark, value: Mark, known: Fact) -> StepValue {
        StepValue {
            value: known,
            clause: self.text[clause.byte..].trim_start().to_string(),
            words: self.since(clause),
            value_words: self.since(value),
            expression: None,
        }
    }

    pub fn finish(self) -> String {
        self.text
    }
}
