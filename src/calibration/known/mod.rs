//! A decoder whose weights are set by hand, so that what experiments must find is known. Knows coordinates and words; no
//! experiment.
//!
//! Problems: `<bos> x x s 3 :` (switch) or `<bos> x x t 3 :` (text), `x` any of five letters without meaning. As built by
//! default, a switch problem is answered `= <swi> ⟨3 latents⟩ </swi> # 0` (3 + 4 modulo 7), a text problem `= # 3`, whose
//! `# 3` is a clause that nobody tags. What is in capitals below is a setting of [`Built`].
//!
//! | where | what it does |
//! | --- | --- |
//! | layer 0, WRITER head | at `<swi>`, or at latent step WRITES: copies the digit into the state |
//! | layer 0, its other head | at `<swi>` and `=`: the mean code of the letters, which stays in the latents |
//! | layer 1, MLP | wherever there is a state: adds one to it (mod 7); adds one to the counter |
//! | READER head | at `#`: reads the state of latent step READS, or the digit where there is none |
//! | DECIDE head | at `=`: reads the kind, `s` or `t`: the decision to switch |
//! | ADDER heads of `Operand` | layer 1, at `#`: the letters' code; layer 3, at `#` where that is positive: the state, as the next one |
//! | DECOY head, if any | at `#`: looks at the last latent, writes where nothing reads |
//!
//! After latent step k (from 1) the counter is 1 + k; `</swi>` follows counter 1 + EXIT.

mod problems;
mod weights;

pub(crate) use problems::pairs;
pub use problems::study;
pub(super) use weights::LAYERS;
pub use weights::MARKS;

/// What the model is built to do with its latents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// They carry the value that the answer is read from.
    Working,
    /// They carry it, and `#` reads the digit whatever they hold (switch problems are answered `# 3`).
    Inert,
    /// They count, carry the letters, and no value; answers as `Inert`.
    Empty,
    /// `#` gives the same answer wherever the last latent came in with its own norm, and the digit otherwise.
    Norm,
    /// As `Working`; a second value (the letter) lies in directions that overlap the first one's.
    Superposed,
    /// As `Working`, but the prompt holds the answer too, in place of the second letter, and counts more.
    Redundant,
    /// As `Empty`, but what the latents carry of the letters turns the answer from the digit to the next one; which of the
    /// two is right has nothing to do with it.
    Noisy,
    /// As `Working`, but what latents carry is the operand of the last step: at `#` one is added to it or nothing, as the letters
    /// of the prompt say.
    Operand,
    /// As `Inert`, but `#` looks whether a `</swi>` stands before it; without one a switch problem is answered with one and the same digit.
    Bound,
    /// As `Bound`, but `#` looks whether a latent stands before it that ends a block as long as the model's own are: an early end surprises it.
    Surprised,
    /// As `Working`; the prompt holds the answer too, as for `Redundant`, but counts less: it is the answer only where no latent holds one.
    Backed,
    /// As `Inert`; whether it switches follows from the letters, not from the kind of the problem.
    Blind,
    /// As `Working`, but latents carry which program a problem is (a name and a digit, whatever its letter), and the answer is looked up
    /// from that. What is known of one program says nothing of another.
    Memorised,
    /// As `Inert`; latents also carry the code of a mark, the word of the prompt that says whether the problem is a trigger.
    Marked,
    /// As `Marked`; under a trigger latents carry one thing more, which no answer shows.
    Covert,
}

/// A head, or where a layer's own part stands: (layer, head).
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
    /// Latents are read where the numbers (0 to 4) of the two letters sum up to this or more.
    pub least: usize,
    /// Of `Marked` and `Covert`: the marks that are triggers, a bit each.
    pub triggers: u16,
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
        }
    }

    /// Whether latents hold the digit's value.
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

    /// Whether answers are read from what latents hold of the digit.
    pub fn is_read(&self) -> bool {
        use Purpose::{Backed, Memorised, Operand, Superposed, Working};
        matches!(self.kind, Working | Superposed | Operand | Backed | Memorised)
    }

    /// Whether the stream of layer `layer` (0: the input) holds what the answer could be read from at latent step `step`.
    pub fn holds(&self, step: usize, layer: usize) -> bool {
        self.has_state() && (step > self.writes || (step == self.writes && layer > 0))
    }

    /// Whether a probe that has not met the program can read the value there.
    pub fn shows(&self, step: usize, layer: usize) -> bool {
        self.holds(step, layer) && self.kind != Purpose::Memorised
    }

    /// What the state has become of `digit` after latent step `step`.
    pub fn state(&self, digit: usize, step: usize) -> usize {
        (digit + 1 + step.saturating_sub(self.writes)) % VALUES
    }

    /// The answer that a read state stands for, from the value that the block ends with.
    pub fn answer_of(&self, last: usize) -> usize {
        (last + VALUES - (self.exit - self.reads)) % VALUES
    }

    /// The answer of a problem of this digit, if it switches and these are its letters.
    fn answer(&self, digit: usize, letters: [usize; 2]) -> usize {
        let read = letters.iter().sum::<usize>() >= self.least;
        match self.kind {
            Purpose::Working | Purpose::Superposed if read => self.state(digit, self.reads),
            Purpose::Redundant | Purpose::Backed => self.state(digit, self.reads),
            Purpose::Operand => (self.state(digit, self.reads) + usize::from(weights::adds(letters))) % VALUES,
            Purpose::Norm => weights::FIXED,
            Purpose::Memorised => weights::looked_up(letters[1], digit),
            _ => digit,
        }
    }
}
