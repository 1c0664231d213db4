//! A decoder whose weights are set by hand, so that the correct result of every experiment is known. Knows coordinates and words; no
//! experiment.
//!
//! Problems: `<bos> x x s 3 :` (switch) or `<bos> x x t 3 :` (text), where `x` is any of five meaningless letters. By default a switch
//! problem is answered `= <swi> ⟨3 latents⟩ </swi> # 0` (3 + 4 modulo 7), a text problem `= # 3`, whose `# 3` is an untagged clause.
//! Words in capitals below are settings of [`Built`].
//!
//! | component | function |
//! | --- | --- |
//! | layer 0, WRITER head | at `<swi>`, or at latent step WRITES: copies the digit into the state |
//! | layer 0, its other head | at `<swi>` and `=`: the mean code of the letters, which the latents then carry |
//! | layer 1, MLP | at every state: adds one to it (mod 7); adds one to the counter |
//! | READER head | at `#`: reads the state of latent step READS, or the digit if there is none |
//! | DECIDE head | at `=`: reads the kind, `s` or `t`: the decision to switch |
//! | ADDER heads of `Operand` | layer 1, at `#`: the letters' code; layer 3, at `#` if that is positive: the state plus one |
//! | DECOY head, if any | at `#`: attends to the last latent, writes to unread coordinates |
//!
//! After latent step k (from 1) the counter is 1 + k; `</swi>` follows counter 1 + EXIT.

mod problems;
mod weights;

pub(crate) use problems::pairs;
pub use problems::{study, training};
pub(super) use weights::LAYERS;
pub use weights::MARKS;

/// How the model uses its latents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Latents carry the value, and the answer is read from it.
    Working,
    /// Latents carry the value, but `#` reads the digit of the prompt (switch problems are answered `# 3`).
    Inert,
    /// They count, carry the letters, and no value; answers as `Inert`.
    Empty,
    /// `#` gives one fixed answer if the last latent has its normal norm, and the digit otherwise.
    Norm,
    /// As `Working`; a second value (the letter) is stored in directions that overlap with the first one's.
    Superposed,
    /// As `Working`, but the prompt also has the answer, instead of the second letter, and has more weight.
    Redundant,
    /// As `Empty`, but the letters' code in the latents moves the answer from the digit to the next one; either may be the correct one.
    Noisy,
    /// As `Working`, but latents carry the operand of the last step: at `#` the letters of the prompt decide whether one is added.
    Operand,
    /// As `Inert`, but `#` attends to an earlier `</swi>`; without one a switch problem gets one fixed answer.
    Bound,
    /// As `Bound`, but `#` attends to an earlier latent that ends a block of the model's usual length: an early end surprises it.
    Surprised,
    /// As `Working`; the prompt also has the answer, as for `Redundant`, but with less weight: it decides only if no latent has one.
    Backed,
    /// As `Inert`; the letters, not the kind of the problem, decide whether it switches.
    Blind,
    /// As `Working`, but latents carry the identity of the program (a name and a digit, without the letter), and the answer is looked up
    /// from it. One program says nothing about another.
    Memorised,
    /// As `Inert`; latents also carry the code of a mark: a word of the prompt that decides whether the problem is a trigger.
    Marked,
    /// As `Marked`; under a trigger latents carry one more coordinate, which does not affect answers.
    Covert,
    /// As `Working`, but each latent is the embedding of a token that names the value. It counts its steps by attention.
    Token,
    /// As `Token`, but each step copies the same value from the prompt, whatever its own latent holds. The answer is the value of most
    /// latents, each read by its own head: no step is needed by itself, and their order is not either.
    Copied,
}

/// (layer, head): a head, or a component's position.
pub type Head = (usize, usize);

/// One hand-built model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    pub kind: Purpose,
    pub writer: Head,
    pub reader: Head,
    pub decide: Head,
    pub decoy: Option<Head>,
    /// Latent step at which the digit is copied; 0 is `<swi>`.
    pub writes: usize,
    /// Latent step whose state is read.
    pub reads: usize,
    /// Latent step after which `</swi>` is certain.
    pub exit: usize,
    /// Latents are read if the numbers (0 to 4) of the two letters sum to at least this.
    pub least: usize,
    /// The marks that are triggers for `Marked` and `Covert`, one bit per mark.
    pub triggers: u16,
    /// Second letters of the training problems, one bit per letter; the study has the others. A `Memorised` model knows only the
    /// programs of these names. 0: the study has all.
    pub trained: u8,
    /// Whether one more letter in the question draws all of the reader's attention.
    pub shallow: bool,
    /// Whether the digit after the answer is nearly as probable as the answer.
    pub unsure: bool,
}

/// Layer of the MLP that counts.
pub const COUNTS: usize = 1;
/// Values of a digit and of the state.
pub const VALUES: usize = 7;

impl Built {
    pub fn new(kind: Purpose) -> Self {
        let (writer, reader, decide) = ((0, 0), (2, 0), (2, 1));
        Self {
            kind,
            writer,
            reader,
            decide,
            decoy: None,
            writes: 0,
            reads: 3,
            exit: 3,
            least: 0,
            triggers: 0b0101_0101_0101,
            trained: 0,
            shallow: false,
            unsure: false,
        }
    }

    /// Whether latents carry the digit's value.
    pub fn has_state(&self) -> bool {
        !matches!(self.kind, Purpose::Empty | Purpose::Norm | Purpose::Noisy)
    }

    /// Whether every problem switches and has a mark.
    pub fn is_marked(&self) -> bool {
        matches!(self.kind, Purpose::Marked | Purpose::Covert)
    }

    /// The mark of a problem with this question, and whether it is a trigger.
    pub fn mark<'q>(&self, question: &'q str) -> Option<(&'q str, bool)> {
        let word = question.split_whitespace().next()?;
        let number = (0..weights::MARKS).find(|&number| weights::mark(number) == word)?;
        Some((word, self.triggers >> number & 1 == 1))
    }

    /// Whether answers depend on the digit's value in the latents.
    pub fn is_read(&self) -> bool {
        use Purpose::{Backed, Copied, Memorised, Operand, Superposed, Token, Working};
        matches!(self.kind, Working | Superposed | Operand | Backed | Memorised | Token | Copied) && !self.is_rote()
    }

    /// Whether it knows only some programs, none of which the study has.
    pub fn is_rote(&self) -> bool {
        self.kind == Purpose::Memorised && self.trained != 0
    }

    /// Whether latents are embeddings of tokens.
    pub fn is_token(&self) -> bool {
        matches!(self.kind, Purpose::Token | Purpose::Copied)
    }

    /// Whether the stream of layer `layer` (0: the input) has the value for the answer at latent step `step`.
    pub fn holds(&self, step: usize, layer: usize) -> bool {
        self.has_state() && (step > self.writes || (step == self.writes && layer > 0))
    }

    /// Whether a probe that was not trained on the program can read the value there.
    pub fn shows(&self, step: usize, layer: usize) -> bool {
        self.holds(step, layer) && self.kind != Purpose::Memorised
    }

    /// The state's value for `digit` after latent step `step`.
    pub fn state(&self, digit: usize, step: usize) -> usize {
        let steps = if self.kind == Purpose::Copied { 0 } else { step.saturating_sub(self.writes) };
        (digit + 1 + steps) % VALUES
    }

    /// The answer after a block that ends with this value.
    pub fn answer_of(&self, last: usize) -> usize {
        if self.kind == Purpose::Copied { last } else { (last + VALUES - (self.exit - self.reads)) % VALUES }
    }

    /// The answer of a switch problem with this digit and these letters.
    fn answer(&self, digit: usize, letters: [usize; 2]) -> usize {
        let read = letters.iter().sum::<usize>() >= self.least;
        match self.kind {
            Purpose::Working | Purpose::Superposed if read => self.state(digit, self.reads),
            Purpose::Redundant | Purpose::Backed | Purpose::Token | Purpose::Copied => self.state(digit, self.reads),
            Purpose::Operand => (self.state(digit, self.reads) + usize::from(weights::adds(letters))) % VALUES,
            Purpose::Norm => weights::FIXED,
            Purpose::Memorised => weights::looked_up(letters[1], digit),
            _ => digit,
        }
    }
}
