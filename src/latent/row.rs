//! One row of a decode: its mode (text, inside a block, ended), what it feeds next, its trace.

use super::SwitchIds;
use super::controller::{BlockEnd, Exit, InBlock, InText};
use super::decode::{Decode, Request, Switching};
use super::reading::{PositionView, Reading, StepReader};
use super::sampling::{Key, log_softmax_and_entropy};
use super::stream::Piece;
use super::trace::{End, Position, PositionRole, Trace};
use crate::model::Step;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecodeMode {
    Text,
    /// Inside block `block`; `step` latents have been fed.
    Block {
        block: usize,
        step: usize,
    },
    /// Inside a block without markers, after a token that was fed instead of a latent. The next latent counts as a new block, as in a known
    /// sequence.
    Between,
}

#[derive(Clone)]
pub(super) struct DecodingRow {
    pub trace: Trace,
    mode: DecodeMode,
    pub switching: Switching,
    /// `<swi>` is emitted at this visible response position regardless of the model.
    pub force_at: Option<usize>,
    /// Stop before the first `<swi>`.
    pub hold: bool,
    pub held: bool,
    /// A token whose margin over every other is recorded at each text position.
    pub watch: Option<u32>,
    margins: Vec<Option<f64>>,
    /// Response positions so far that are not latent.
    visible: usize,
    limit: Option<usize>,
    blocks: usize,
    /// Tokens of text since the last block.
    since: usize,
    /// Entropy at the beginning of the current text or block; `None` before the first decision.
    reference: Option<f64>,
    /// Entropies of the current block.
    entropies: Vec<f64>,
    /// Number of changes from latents to text.
    switches: usize,
    /// The token that the rule writes next, regardless of the model.
    imposed: Option<u32>,
    /// Whether thinking has ended.
    answering: bool,
    /// Kind of the last fed position.
    pub at: Step,
    pub end: Option<End>,
}

/// Tokens that text mode never draws.
pub(super) fn text_masked(decoding: &Decode, draws_swi: bool) -> Vec<u32> {
    let mut masked = decoding.settings.masked.clone();
    for ids in decoding.switch.iter() {
        let markers = decoding.controller.masked_in_text(ids, draws_swi);
        // Without `mask_tags` a `</swi>` may be drawn in text.
        masked.extend(markers.into_iter().filter(|&id| decoding.settings.mask_tags || id != ids.swi_end));
    }
    masked
}

/// A finished row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FinishedRow {
    pub trace: Trace,
    /// Logit of the watched token minus that of the best other one, per position; `None` outside text.
    pub margins: Vec<Option<f64>>,
}

impl DecodingRow {
    pub fn new(request: &Request, rollout: usize, switching: Switching) -> Self {
        let trace = Trace {
            problem: request.problem,
            rollout,
            prompt: request.prompt.clone(),
            positions: vec![],
            end: End::Budget,
        };
        Self {
            trace,
            mode: DecodeMode::Text,
            switching,
            force_at: (switching == Switching::Forced).then_some(0),
            hold: false,
            held: false,
            watch: None,
            margins: vec![],
            visible: 0,
            limit: request.limit,
            blocks: 0,
            since: 0,
            reference: None,
            entropies: vec![],
            switches: 0,
            imposed: None,
            answering: false,
            at: Step::Prompt,
            end: None,
        }
    }

    /// Whether it continues.
    pub(crate) fn is_live(&self) -> bool {
        self.end.is_none() && !self.held
    }

    /// Whether the device can make all its further decisions: nothing is forced, watched or held, and it is past its first position, where
    /// rules open blocks.
    pub fn is_plain(&self) -> bool {
        let forced = self.force_at.is_some_and(|at| at >= self.visible) || self.switching == Switching::Empty;
        !forced && !self.hold && self.watch.is_none() && self.visible + self.blocks > 0
    }

    /// Latents fed in the current block; `None` in text.
    pub fn latents(&self) -> Option<usize> {
        match self.mode {
            DecodeMode::Text | DecodeMode::Between => None,
            DecodeMode::Block { step, .. } => Some(step),
        }
    }

    /// Visible positions left in its budget and in the model's context.
    pub fn left(&self, decoding: &Decode) -> usize {
        let most = decoding.settings.max_new_tokens;
        let budget = self.limit.map_or(most, |own| own.min(most)).saturating_sub(self.visible);
        budget.min(self.context_left(decoding))
    }

    /// Positions left in the model's context.
    fn context_left(&self, decoding: &Decode) -> usize {
        let there = decoding.model.config().max_position_embeddings;
        there.saturating_sub(self.trace.prompt.len() + self.trace.positions.len())
    }

    /// Uniform values in [0, 1) for the draws at its next positions.
    pub fn uniforms(&self, decoding: &Decode, steps: usize) -> impl Iterator<Item = f64> {
        let (key, seed) = (self.key(), decoding.settings.sampling.seed);
        (0..steps as u64).map(move |ahead| Key { position: key.position + ahead, ..key }.uniform(seed))
    }

    pub fn decoded(self) -> FinishedRow {
        let Self { mut trace, margins, end, .. } = self;
        trace.end = end.unwrap_or(End::Budget);
        FinishedRow { trace, margins }
    }

    fn key(&self) -> Key {
        Key {
            problem: self.trace.problem as u64,
            rollout: self.trace.rollout as u64,
            position: (self.trace.prompt.len() + self.trace.positions.len()) as u64,
        }
    }

    /// Decides the next piece from the output at the last position. An empty piece means that the row has ended.
    pub fn choose(&mut self, seen: &PositionView, decoding: &Decode) -> Piece {
        if !seen.is_finite() {
            return self.not_finite();
        }
        match (self.mode, decoding.switch) {
            (DecodeMode::Block { .. } | DecodeMode::Between, Some(ids)) => self.in_block(seen, decoding, ids),
            _ => self.in_text(seen, decoding, false, None),
        }
    }

    fn not_finite(&mut self) -> Piece {
        self.end = Some(End::NonFinite);
        Piece::default()
    }

    /// Whether the model's own `<swi>` opens a block here.
    pub fn draws_swi(&self, decoding: &Decode) -> bool {
        self.switching != Switching::Suppressed && decoding.controller.model_opens()
    }

    /// The token of largest weight in the next mixture, if the rule uses it.
    fn top(&self, seen: &PositionView, decoding: &Decode) -> Option<u32> {
        let logits = seen.logits().filter(|_| decoding.controller.by_mixture())?;
        decoding.source.top(logits, self.key())
    }

    /// The entropy for the rule; `entropy` is the row's.
    fn judged(seen: &PositionView, decoding: &Decode, masked: &[u32], entropy: f64) -> f64 {
        match (decoding.controller.temperature(), seen.logits()) {
            (temperature, Some(logits)) if temperature != 1.0 => log_softmax_and_entropy(logits, temperature, masked).1,
            _ => entropy,
        }
    }

    /// Decides the next position of text. `after_block`: the output is a latent's whose block closed without a token, so that no block may
    /// open here. `taken`: the token that the rule writes.
    fn in_text(&mut self, seen: &PositionView, decoding: &Decode, after_block: bool, taken: Option<u32>) -> Piece {
        let settings = decoding.settings;
        let masked = text_masked(decoding, self.draws_swi(decoding));
        let marker = decoding.switch.map(|ids| ids.swi);
        let may_open = self.switching != Switching::Suppressed;
        let begins = may_open && !after_block && self.visible + self.blocks == 0;
        let top = begins.then(|| self.top(seen, decoding)).flatten();
        let imposed = self.imposed.take();
        let taken = taken.or(imposed).or(top.filter(|&top| decoding.controller.ends_thinking(top)));
        let reader = StepReader {
            sampling: &settings.sampling,
            greedy: false,
            masked: &masked,
            marker,
            watch: self.watch,
            key: self.key(),
            taken,
        };
        let Some(Reading { drawn, logprob, marker_logprob, p_marker, entropy, lead }) = seen.read(&reader) else {
            return self.not_finite();
        };
        self.answering |= decoding.controller.ends_thinking(top.unwrap_or(drawn));
        let at = InText {
            visible: self.visible,
            blocks: self.blocks,
            since: self.since,
            entropy,
            reference: *self.reference.get_or_insert(entropy),
            answering: self.answering,
        };
        let opens = self.force_at == Some(self.visible) || (may_open && decoding.controller.opens(&at));
        let marked = decoding.controller.marked();
        if let (Some(ids), true, false) = (decoding.switch, opens && !after_block, marked) {
            let judged = Self::judged(seen, decoding, &masked, entropy);
            if let Some(piece) = self.open_unmarked(ids, decoding, Position::text(drawn, logprob, entropy), judged) {
                return piece;
            }
        }
        let token = match decoding.switch {
            Some(ids) if opens && marked => ids.swi,
            _ => drawn,
        };
        let opened = opens || decoding.controller.model_opens();
        let is_swi = opened && decoding.switch.is_some_and(|ids| ids.swi == token);
        if is_swi && self.hold {
            self.held = true;
            return Piece::default();
        }
        let kind = match decoding.switch {
            _ if is_swi => PositionRole::Swi,
            // Only a rule that masks no marker draws it outside a block.
            Some(ids) if ids.swi_end == token => PositionRole::SwiEndSampled,
            _ => PositionRole::Text,
        };
        let logprob = if is_swi { marker_logprob } else { logprob };
        let logprob = Some(logprob).filter(|p| p.is_finite() && imposed.is_none());
        let p_swi = decoding.switch.map(|_| p_marker);
        let position = Position { entropy: Some(entropy), p_swi, ..Position::bare(token, kind, logprob) };
        self.margins.resize(self.trace.positions.len(), None);
        self.margins.push(lead);
        if is_swi {
            self.mode = DecodeMode::Block { block: self.blocks, step: 0 };
            self.blocks += 1;
        }
        self.push_visible(position, decoding)
    }

    /// Opens a block without `<swi>`, with its first latent or `drawn` instead. `None` if every block is closed at once.
    fn open_unmarked(&mut self, ids: SwitchIds, decoding: &Decode, drawn: Position, entropy: f64) -> Option<Piece> {
        if self.hold {
            self.held = true;
            return Some(Piece::default());
        }
        self.force_at = None;
        self.reference = Some(entropy);
        if self.switching == Switching::Empty {
            self.blocks += 1;
            return None;
        }
        Some(self.think(ids, decoding, drawn))
    }

    /// Decides the next position of a block without markers.
    fn think(&mut self, ids: SwitchIds, decoding: &Decode, drawn: Position) -> Piece {
        if decoding.controller.feeds(drawn.token) {
            self.mode = DecodeMode::Between;
            return self.push_visible(drawn, decoding);
        }
        if let DecodeMode::Block { block, step } = self.mode {
            return self.latent(ids, decoding, block, step);
        }
        self.blocks += 1;
        self.latent(ids, decoding, self.blocks - 1, 0)
    }

    fn in_block(&mut self, seen: &PositionView, decoding: &Decode, ids: SwitchIds) -> Piece {
        let settings = decoding.settings;
        if self.switching == Switching::Empty {
            self.mode = DecodeMode::Text;
            return self.push_visible(Position::bare(ids.swi_end, PositionRole::SwiEndForced, None), decoding);
        }
        if let DecodeMode::Block { block, step: 0 } = self.mode {
            return self.latent(ids, decoding, block, 0);
        }
        let marked = decoding.controller.marked();
        // If no marker closes the block, text may come next: tokens that text never draws are masked.
        let masked = if marked { vec![] } else { text_masked(decoding, false) };
        let marker = Some(ids.swi_end);
        let (key, rule) = (self.key(), decoding.controller.learnt());
        let (sampling, greedy) = (&settings.sampling, rule.exit == Exit::Argmax);
        let reader = StepReader { sampling, greedy, masked: &masked, marker, watch: None, key, taken: None };
        let Some(Reading { drawn, logprob, marker_logprob, p_marker, entropy, .. }) = seen.read(&reader) else {
            return self.not_finite();
        };
        if let (DecodeMode::Block { .. }, Some(last)) = (self.mode, self.trace.positions.last_mut()) {
            last.p_exit = Some(p_marker);
            last.entropy = Some(entropy);
        }
        self.entropies.push(Self::judged(seen, decoding, &masked, entropy));
        let top = self.top(seen, decoding);
        let next = top.unwrap_or(drawn);
        let at = InBlock {
            step: self.entropies.len(),
            entropies: &self.entropies,
            reference: self.reference.unwrap_or(entropy),
            drawn: next,
            exit_drawn: next == ids.swi_end,
            k_min: settings.k_min,
            k_cap: settings.k_cap,
        };
        // If the text has ended, the block ends too.
        let ended = !marked && settings.stop.contains(&at.drawn);
        let (kind, exit, says) = match decoding.controller.closes(&at) {
            BlockEnd::Drawn => (PositionRole::SwiEndSampled, Some(marker_logprob).filter(|_| rule.exit_in_loss), None),
            BlockEnd::Forced => (PositionRole::SwiEndForced, None, None),
            BlockEnd::Says(token) => (PositionRole::SwiEndForced, None, Some(token)),
            BlockEnd::Stay if ended => (PositionRole::SwiEndForced, None, top),
            BlockEnd::Stay => match self.mode {
                DecodeMode::Block { block, step } if marked => return self.latent(ids, decoding, block, step),
                _ => return self.think(ids, decoding, Position::text(drawn, logprob, entropy)),
            },
        };
        self.mode = DecodeMode::Text;
        (self.since, self.reference) = (0, Some(entropy));
        self.entropies.clear();
        self.switches += 1;
        if marked {
            return self.push_visible(Position::bare(ids.swi_end, kind, exit), decoding);
        }
        let piece = self.in_text(seen, decoding, true, says);
        self.imposed = decoding.controller.imposes(self.switches).filter(|_| !self.answering);
        piece
    }

    fn latent(&mut self, ids: SwitchIds, decoding: &Decode, block: usize, step: usize) -> Piece {
        if self.context_left(decoding) == 0 {
            self.end = Some(End::Budget);
            return Piece::default();
        }
        let latent = Position::bare(ids.latent, PositionRole::Latent, None);
        self.trace.positions.push(latent);
        self.mode = DecodeMode::Block { block, step: step + 1 };
        self.at = Step::Latent { block, step };
        Piece::one(ids.latent, self.at)
    }

    fn push_visible(&mut self, position: Position, decoding: &Decode) -> Piece {
        let token = position.token;
        self.trace.positions.push(position);
        self.at = Step::Text(self.visible);
        self.visible += 1;
        self.since += 1;
        if decoding.settings.stop.contains(&token) {
            self.end = Some(End::Stop);
            return Piece::default();
        }
        if self.left(decoding) == 0 {
            self.end = Some(End::Budget);
            return Piece::default();
        }
        Piece::one(token, self.at)
    }
}
