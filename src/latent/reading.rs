//! The quantities by which a row is decided, computed from the logits at its last position: on the host here, on the device in
//! [`super::ahead`].

use super::sampling::{self, Key, Sampling};

/// Statistics of a row's next-token distribution that a decision needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    /// The drawn token.
    pub drawn: u32,
    /// Its log-probability (nats) at the sampling's temperature.
    pub logprob: f64,
    /// Log-probability of the marker: `<swi>` in text, `</swi>` in a block.
    pub marker_logprob: f64,
    /// Probability of the marker at temperature 1; 0 without one.
    pub p_marker: f64,
    /// Entropy (nats) at temperature 1.
    pub entropy: f64,
    /// Margin of a watched token over the best other one, in logits.
    pub lead: Option<f64>,
}

/// Settings of a [`Reading`].
#[derive(Clone, Copy)]
pub(super) struct StepReader<'a> {
    pub sampling: &'a Sampling,
    /// Draw the most probable token at any temperature; log-probabilities are those of `sampling`.
    pub greedy: bool,
    /// Tokens that are not drawn.
    pub masked: &'a [u32],
    pub marker: Option<u32>,
    pub watch: Option<u32>,
    pub key: Key,
    /// The token to use instead of a drawn one.
    pub taken: Option<u32>,
}

/// Model output at a row's last position.
#[derive(Clone, Copy, Debug)]
pub(super) enum PositionView<'a> {
    /// Logits `[V]`.
    Logits(&'a [f32]),
    /// A reading that the device computed.
    Read(Reading),
    /// The device found values that are not finite.
    NotFinite,
}

impl PositionView<'_> {
    pub fn is_finite(&self) -> bool {
        match self {
            PositionView::Logits(logits) => logits.iter().all(|x| x.is_finite()),
            PositionView::Read(_) => true,
            PositionView::NotFinite => false,
        }
    }

    /// `[V]`; `None` if the device computed the reading.
    pub fn logits(&self) -> Option<&[f32]> {
        match self {
            PositionView::Logits(logits) => Some(logits),
            PositionView::Read(_) | PositionView::NotFinite => None,
        }
    }

    /// `None` if the logits are not finite.
    pub fn read(&self, how: &StepReader) -> Option<Reading> {
        match self {
            PositionView::Logits(logits) => Some(how.read(logits)),
            PositionView::Read(reading) => Some(*reading),
            PositionView::NotFinite => None,
        }
    }
}

impl StepReader<'_> {
    fn read(&self, logits: &[f32]) -> Reading {
        let (plain, entropy) = sampling::log_softmax_and_entropy(logits, 1.0, self.masked);
        let scaled;
        let at_temperature = if self.sampling.scale() == 1.0 {
            &plain
        } else {
            scaled = sampling::log_softmax(logits, self.sampling.scale(), self.masked);
            &scaled
        };
        let drawn = self.taken.unwrap_or_else(|| match self.greedy {
            true => sampling::argmax(at_temperature),
            false => sampling::draw(at_temperature, self.sampling, self.key),
        });
        let of_marker = |log_probs: &[f64]| self.marker.map_or(f64::NEG_INFINITY, |marker| log_probs[marker as usize]);
        Reading {
            drawn,
            logprob: at_temperature[drawn as usize],
            marker_logprob: of_marker(at_temperature),
            p_marker: of_marker(&plain).exp(),
            entropy,
            lead: self.watch.and_then(|watched| sampling::lead(&plain, watched)),
        }
    }
}
