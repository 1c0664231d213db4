//! The certificate of a latent reasoner: one fixed list of questions, each answered by one test.
//!
//! 1. An experiment measures [`Evidence`] for every [`CardQuestion`], or gives the reason why it cannot.
//! 2. The p-values of all measured questions are one family (Holm), those of equivalence to no effect another.
//! 3. *yes*: the adjusted p-value is at most .05 and the number has the sign of yes. *no*: it is significant with the other sign, or the
//!    two one-sided tests (TOST) reject an effect as large as the margin. *undecided*: anything else; finding no effect is not a *no*.
//! 4. Questions about how latents are used are asked only if the model is shown to use them.

use anyhow::Result;

use super::Identity;
use super::verdict::adjust;
use crate::stats::{Estimate, FEWEST, LEVEL};

names! {
    /// The questions, in the order of the card.
    pub enum CardQuestion {
        /// Accuracy falls when each latent is replaced by that of another problem.
        Used = "used",
        /// The answer becomes the one that arithmetic predicts from another problem's latents.
        Follows = "follows the value",
        /// One step's latent alone costs accuracy when it is replaced by another problem's.
        OneStep = "needs one step",
        /// Accuracy falls when the block's latents enter in reverse order.
        Ordered = "ordered",
        /// Accuracy falls when each latent is replaced by the mean of its step.
        Specific = "more than the average",
        /// Accuracy falls when each latent is replaced by the embedding of its most probable token.
        BeyondToken = "more than the token",
        /// Problems on which the model switches are right more often with their block than without.
        Helps = "helps",
        /// A linear probe reads the value of a clause from its latents, on programs that it was not fitted on.
        Readable = "readable",
        /// Training problems are right more often than problems of the same kind that were not trained.
        Memorised = "memorised",
        /// Problems longer than those that were trained are right more often than by a guess.
        Deeper = "deeper",
        /// Two sampled answers to one problem differ.
        Varies = "varies by seed",
    }
}

impl CardQuestion {
    /// The question in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Used => "Do right answers need the latents' content?",
            Self::Follows => "Does the answer follow the value in them?",
            Self::OneStep => "Is one step needed by itself?",
            Self::Ordered => "Does their order matter?",
            Self::Specific => "Do they hold more than the average of their step?",
            Self::BeyondToken => "Do they hold more than their most probable token?",
            Self::Helps => "Do they help where the model chooses them?",
            Self::Readable => "Can a value be read on programs never seen?",
            Self::Memorised => "Is it better on the problems that it was trained on?",
            Self::Deeper => "Does it solve longer problems than it was trained on?",
            Self::Varies => "Do answers vary with the seed of sampling?",
        }
    }

    /// Description of the measured number.
    pub fn measure(self) -> &'static str {
        match self {
            Self::Used => "accuracy lost with another problem's latents",
            Self::Follows => "predicted answers beyond chance, latents exchanged",
            Self::OneStep => "accuracy lost with another problem's latent at that step",
            Self::Ordered => "accuracy lost in reverse order",
            Self::Specific => "accuracy lost with the mean latents of each step",
            Self::BeyondToken => "accuracy lost with the embeddings of the most probable tokens",
            Self::Helps => "accuracy with a block minus without",
            Self::Readable => "probe accuracy beyond the commonest value",
            Self::Memorised => "accuracy on training problems minus unseen ones of the same kind",
            Self::Deeper => "accuracy beyond a guess, one level harder than trained",
            Self::Varies => "share of pairs of sampled answers that differ",
        }
    }

    /// Whether it presumes that latents are used.
    fn presumes_use(self) -> bool {
        matches!(self, Self::OneStep | Self::Ordered | Self::Specific | Self::BeyondToken)
    }

    /// Name of the calibrated test of an answer, in [`CalibrationRow`](super::CalibrationRow): that of *no* for *no*, else that of *yes*.
    pub fn test(self, answer: CardAnswer) -> String {
        let name = self.name();
        if answer == CardAnswer::No { format!("card/{name}: no") } else { format!("card/{name}") }
    }
}

names! {
    pub enum CardAnswer {
        Yes = "yes",
        No = "no",
        Undecided = "undecided",
        NotAsked = "not asked",
    }
}

/// Result of an experiment for one question.
#[derive(Clone, Debug)]
pub enum Evidence {
    /// A number that is 0 if the answer is no, its two-sided p-value, the p-value of equivalence to 0 within the margin, and an explanation.
    Measured { number: Estimate, p: f64, p_same: f64, detail: String },
    /// Why the question cannot be asked.
    Missing(String),
}

rows! {
    pub struct CardRow {
        #[serde(flatten)]
        pub identity: Identity,
        pub question: CardQuestion => "name": "the question, by its short name",
        pub answer: CardAnswer => "name": "yes, no, undecided or not asked",
        pub number: Option<Estimate> => "share": "effect that answers the question: 0 where the answer is no",
        pub p_holm: Option<f64> => AccuracyRow,
        pub margin: Option<f64> => "share": "effects smaller than this count as none",
        pub p_same: Option<f64> => "probability":
            "of data so close to no effect, were it as large as the margin (TOST); corrected by Holm over the card",
        pub detail: String => "text": "why the question was not asked, or what a reader must know of the effect",
    }
}

impl CardRow {
    /// Description of the number, or the reason for none.
    pub fn explanation(&self) -> String {
        match self.answer {
            CardAnswer::NotAsked => self.detail.clone(),
            _ if self.detail.is_empty() => self.question.measure().to_owned(),
            _ => format!("{} ({})", self.question.measure(), self.detail),
        }
    }
}

/// Default margin: smaller differences of accuracy count as none.
pub const MARGIN: f64 = 0.05;

/// Answers all questions. `margin` is the one of the evidence's equivalence tests.
pub(crate) fn answer(
    identity: &Identity,
    margin: f64,
    mut found: Vec<(CardQuestion, Evidence)>,
) -> Result<Vec<CardRow>> {
    let measured = found.iter_mut().filter_map(|(_, evidence)| match evidence {
        Evidence::Measured { p, p_same, .. } => Some((p, p_same)),
        Evidence::Missing(_) => None,
    });
    let (p, p_same): (Vec<&mut f64>, Vec<&mut f64>) = measured.unzip();
    adjust(p.into_iter())?;
    adjust(p_same.into_iter())?;
    let mut rows: Vec<CardRow> = vec![];
    for (question, evidence) in found {
        let mut row = CardRow {
            identity: identity.clone(),
            question,
            answer: CardAnswer::NotAsked,
            number: None,
            p_holm: None,
            margin: None,
            p_same: None,
            detail: String::new(),
        };
        match evidence {
            Evidence::Missing(why) => row.detail = why,
            Evidence::Measured { number, p, p_same, detail } => {
                row.identity.n = number.n;
                (row.answer, row.number, row.detail) = (decide(number, p, p_same), Some(number), detail);
                (row.p_holm, row.margin, row.p_same) = (Some(p), Some(margin), Some(p_same));
            }
        }
        rows.push(row);
    }
    let used = rows.iter().find(|row| row.question == CardQuestion::Used).map(|row| row.answer);
    if used != Some(CardAnswer::Yes) {
        for row in rows.iter_mut().filter(|row| row.question.presumes_use() && row.answer != CardAnswer::NotAsked) {
            (row.answer, row.number) = (CardAnswer::NotAsked, None);
            (row.p_holm, row.margin, row.p_same) = (None, None, None);
            row.detail = "the latents are not shown to be used".to_owned();
        }
    }
    Ok(rows)
}

fn decide(number: Estimate, p: f64, p_same: f64) -> CardAnswer {
    let sure = |p: f64| number.n >= FEWEST && p <= 1.0 - LEVEL;
    match number.value {
        value if sure(p) && value > 0.0 => CardAnswer::Yes,
        value if sure(p) && value < 0.0 => CardAnswer::No,
        _ if sure(p_same) => CardAnswer::No,
        _ => CardAnswer::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(value: f64, half: f64, n: usize) -> Estimate {
        Estimate { value, low: value - half, high: value + half, n }
    }

    #[test]
    fn an_answer_says_no_more_than_its_test() {
        for (number, p, answer) in [
            (at(0.4, 0.05, 200), 1e-6, CardAnswer::Yes),
            (at(-0.4, 0.05, 200), 1e-6, CardAnswer::No),
            (at(0.01, 0.03, 500), 0.4, CardAnswer::No),
            (at(0.02, 0.04, 500), 0.4, CardAnswer::Undecided),
            (at(0.4, 0.05, 200), 0.06, CardAnswer::Undecided),
            (at(0.9, 0.1, 19), 1e-6, CardAnswer::Undecided),
            (at(0.0, 0.01, 19), 1.0, CardAnswer::Undecided),
        ] {
            assert_eq!(decide(number, p, number.p_equivalent(MARGIN)), answer, "{number:?}, p {p}");
        }
    }

    #[test]
    fn how_latents_are_used_is_asked_only_where_they_are() {
        let identity = Identity { checkpoint: "x".into(), dataset: "x".into(), n: 100, seed: 0 };
        let of = |loss: f64, p: f64| {
            let measured = |value, p| {
                let number = at(value, 0.01, 100);
                Evidence::Measured { number, p, p_same: number.p_equivalent(MARGIN), detail: String::new() }
            };
            let found = vec![
                (CardQuestion::Used, measured(loss, p)),
                (CardQuestion::Ordered, measured(0.3, 1e-6)),
                (CardQuestion::Helps, measured(0.3, 0.03)),
                (CardQuestion::Readable, Evidence::Missing("no values".into())),
            ];
            let rows = answer(&identity, MARGIN, found).expect("rows");
            assert!(rows.iter().all(|row| row.number.is_some() == (row.answer != CardAnswer::NotAsked)));
            rows.into_iter().map(|row| row.answer).collect::<Vec<_>>()
        };
        use CardAnswer::{No, NotAsked, Yes};
        assert_eq!(of(0.3, 1e-6), [Yes, Yes, Yes, NotAsked]);
        assert_eq!(of(0.0, 0.9), [No, NotAsked, CardAnswer::Undecided, NotAsked], "Holm over three: .03 becomes .06");
    }
}
