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
    /// As `Working`; the prompt holds the answer too, as for `Redundant`, but counts less: it is the answer only where no latent holds one.
    Backed,
    /// As `Inert`; whether it switches follows from the letters, not from the kind of the problem.
    Blind,
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
}

/// Layer of the MLP that counts.
pub const COUNTS: usize = 1;
/// Values of a digit and of the state.
pub const VALUES: usize = 7;

impl Built {
    pub fn new(kind: Purpose) -> Self {
        let (writer, reader, decide) = ((0, 0), (2, 0), (2, 1));
        Self { kind, writer, reader, decide, decoy: None, writes: 0, reads: 3, exit: 3, least: 0 }
    }

    /// Whether latents hold the digit's value.
    pub fn has_state(&self) -> bool {
        !matches!(self.kind, Purpose::Empty | Purpose::Norm | Purpose::Noisy)
    }

    /// Whether answers are read from what latents hold of the digit.
    pub fn is_read(&self) -> bool {
        matches!(self.kind, Purpose::Working | Purpose::Superposed | Purpose::Operand | Purpose::Backed)
    }

    /// Whether the stream of layer `layer` (0: the input) holds the digit's value at latent step `step`.
    pub fn holds(&self, step: usize, layer: usize) -> bool {
        self.has_state() && (step > self.writes || (step == self.writes && layer > 0))
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
            _ => digit,
        }
    }
}
