//! The explained decisions, and every node's exact contribution to their logits. Works on solutions in one form; knows nothing of records
//! or intervals.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, ArrayView1, s};
use rayon::prelude::*;

use crate::latent::{Blocks, Controller, Sequence, SwitchIds};
use crate::model::{Decoder, HookPoint, PointKind};
use crate::schema::{Form, Target};
use crate::study::Study;
use crate::study::circuits::SolutionForms;
use crate::study::circuits::edges::{EdgeGraph, Sender};
use crate::study::readout::{LOGITS_HELD, Rivals, directions, host, logits, tensor, writes};
use crate::study::staging::capture::capture;

/// Relative error at which a latent's input counts as the state before it.
const SAME: f32 = 1e-4;
/// Relative error of the sum at which something is wrong with the model's precision or this code.
const OFF: f64 = 1e-3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub target: Target,
    /// Index of the latent step that predicts it; `None` at text.
    pub step: Option<usize>,
    pub token: u32,
    /// Tokens that cannot be drawn there.
    pub masked: Vec<u32>,
    /// The position whose state decides it and, at a latent, the positions before it down to the block's `<swi>`.
    pub chain: Vec<usize>,
}

/// The decisions of a solution in one form: at text with the decoder's masks, at latent steps over all tokens.
pub fn decisions(written: &SolutionForms, form: Form, ids: SwitchIds, blocks: &Blocks) -> Vec<Decision> {
    let masked = blocks.masked_in_text(&ids, true);
    let text = |target, token, at| Decision { target, step: None, token, masked: masked.clone(), chain: vec![at] };
    let mut out = vec![];
    let answer = written.answer.map(|said| said.token);
    out.extend(written.answer_decided(form).zip(answer).map(|(at, token)| text(Target::Answer, token, at)));
    for (number, block) in written.blocks.iter().enumerate() {
        if form == Form::Text {
            out.extend(block.value.map(|said| text(Target::Value, said.token, said.at - 1)));
            continue;
        }
        // A prompt is never empty: there is a position before `<swi>`.
        out.push(text(Target::Swi, ids.swi, block.swi - 1));
        let last = number + 1 == written.blocks.len();
        let tokens = [
            (Target::SwiEnd, Some(ids.swi_end)),
            (Target::Value, block.value.map(|said| said.token)),
            (Target::Answer, answer.filter(|_| last)),
        ];
        for (step, position) in block.latents.clone().enumerate() {
            for (target, token) in tokens.iter().filter_map(|(target, token)| Some((*target, (*token)?))) {
                let chain = (block.swi..=position).rev().collect();
                out.push(Decision { target, step: Some(step), token, masked: vec![], chain });
            }
        }
    }
    out
}

/// An explained decision. Lists follow [`EdgeGraph::senders`]; each entry is the node's contribution to `[logit, margin]`.
pub struct Explanation {
    pub rivals: Rivals,
    /// Nodes of the position itself: they sum to the logit and the lead.
    pub own: Vec<[f64; 2]>,
    /// Decomposition of the injected state (`own`'s embedding) through the recurrence: nodes of the block's earlier steps and of `<swi>`.
    /// They sum to `own`'s embedding. `None` at text, and if a latent's input is not the state before it.
    pub carried: Option<Vec<[f64; 2]>>,
}

/// One position of a decision's chain, and the direction on which its nodes are projected, `[logit, margin]`.
struct DirectionReading {
    decision: usize,
    place: usize,
    depth: usize,
    along: [Vec<f64>; 2],
}

/// The mean of all tokens' directions: subtracted from a token's, it centres its logit over the vocabulary.
pub fn centre(model: &Decoder) -> Result<Vec<f64>> {
    let (vocab, width) = (model.config().vocab_size, model.config().hidden_size);
    let mut mean = vec![0.0; width];
    let tokens: Vec<u32> = (0..vocab as u32).collect();
    for chunk in tokens.chunks((LOGITS_HELD / width).max(1)) {
        for direction in directions(model, chunk)? {
            mean.iter_mut().zip(direction).for_each(|(mean, x)| *mean += f64::from(x) / vocab as f64);
        }
    }
    Ok(mean)
}

/// Explains the decisions of each sequence, in their order. With a [`centre`], logits are centred over the vocabulary.
///
/// # Errors
/// Contributions that do not sum to the model's logit; failures of the model.
pub fn explain(
    study: &Study,
    sequences: &[Sequence],
    decisions: &[Vec<Decision>],
    centre: Option<&[f64]>,
) -> Result<Vec<Vec<Explanation>>> {
    let flat = decisions.iter().enumerate().flat_map(|(i, all)| all.iter().map(move |d| (i, d)));
    let places: BTreeSet<(usize, usize)> =
        flat.clone().flat_map(|(i, d)| d.chain.iter().map(move |&p| (i, p))).collect();
    let places = Vec::from_iter(places);
    let at: BTreeMap<(usize, usize), usize> = places.iter().enumerate().map(|(slot, &place)| (place, slot)).collect();
    let model = &study.model;
    let layers = model.config().num_hidden_layers;
    let ends = [PointKind::Embed, PointKind::LnFinalScale, PointKind::LnFinalNormalized].map(HookPoint::new);
    let inner = (0..layers).flat_map(|l| [PointKind::Z, PointKind::MlpOut].map(|kind| HookPoint::at(l, kind)));
    let points: Vec<HookPoint> = ends.into_iter().chain(inner).collect();
    let held = capture(model, &study.reasoning.source, sequences, &points, &places, study.threads)?;
    let weight = host(model.norm.gain())?;
    let hidden = &held[2] * &ArrayView1::from(&weight);
    let run = CapturedRun { model, decisions: flat.collect(), at, held, hidden, weight, centre };
    let rivals = run.rivals()?;
    let readings = run.readings(&rivals)?;
    let mut explained = run.add_up(&readings, rivals)?;
    check(&explained)?;
    Ok(decisions.iter().map(|all| explained.drain(..all.len()).collect()).collect())
}

/// Captured activations at the places, one row each.
struct CapturedRun<'a> {
    model: &'a Decoder,
    /// Each with the number of its sequence.
    decisions: Vec<(usize, &'a Decision)>,
    at: BTreeMap<(usize, usize), usize>,
    /// Embedding, scale and output of the final norm, then `z` and MLP of every layer.
    held: Vec<Array2<f32>>,
    /// The head's input.
    hidden: Array2<f32>,
    weight: Vec<f32>,
    centre: Option<&'a [f64]>,
}

impl CapturedRun<'_> {
    /// The rival of every decision's token.
    fn rivals(&self) -> Result<Vec<Rivals>> {
        let mut out = vec![];
        for chunk in self.decisions.chunks((LOGITS_HELD / self.model.config().vocab_size).max(1)) {
            let state = |(i, d): &(usize, &Decision)| self.hidden.row(self.at[&(*i, d.chain[0])]).to_vec();
            let states = tensor(self.model, chunk.iter().flat_map(state).collect());
            for ((_, decision), logits) in chunk.iter().zip(logits(self.model, states)?) {
                let rivals = Rivals::new(&logits, decision.token, &decision.masked);
                let mut rivals = rivals.with_context(|| format!("token {} is outside the head", decision.token))?;
                if self.centre.is_some() {
                    rivals.logit -= logits.iter().map(|&x| f64::from(x)).sum::<f64>() / logits.len() as f64;
                }
                out.push(rivals);
            }
        }
        Ok(out)
    }

    /// The directions of every decision: `(w ⊙ W_v) / s` at its position, times `w / s` for each position before it that passed the state on.
    fn readings(&self, rivals: &[Rivals]) -> Result<Vec<DirectionReading>> {
        let tokens: BTreeSet<u32> = rivals.iter().flat_map(|r| [r.token, r.rival]).collect();
        let tokens = Vec::from_iter(tokens);
        let of_token: BTreeMap<u32, Vec<f32>> = tokens.iter().copied().zip(directions(self.model, &tokens)?).collect();
        let mut out = vec![];
        for (decision, ((i, d), rivals)) in self.decisions.iter().zip(rivals).enumerate() {
            let (token, rival) = (&of_token[&rivals.token], &of_token[&rivals.rival]);
            let mut along = [
                token.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(),
                token.iter().zip(rival).map(|(&a, &b)| f64::from(a) - f64::from(b)).collect(),
            ];
            if let Some(centre) = self.centre {
                along[0].iter_mut().zip(centre).for_each(|(g, mean)| *g -= mean);
            }
            let mut after: Option<usize> = None;
            for (depth, &position) in d.chain.iter().enumerate() {
                let place = self.at[&(*i, position)];
                if let Some(after) = after {
                    if !self.is_handed_on(place, after) {
                        break;
                    }
                    for g in &mut along {
                        g.iter_mut().zip(&self.weight).for_each(|(g, &w)| *g *= f64::from(w));
                    }
                }
                let scale = f64::from(self.held[1][[place, 0]]);
                along.iter_mut().flatten().for_each(|g| *g /= scale);
                out.push(DirectionReading { decision, place, depth, along: along.clone() });
                after = Some(place);
            }
        }
        Ok(out)
    }

    /// Whether the input at a latent's place is the state at the place before it.
    fn is_handed_on(&self, before: usize, latent: usize) -> bool {
        let (state, input) = (self.hidden.row(before), self.held[0].row(latent));
        let size = state.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        state.iter().zip(input).all(|(a, b)| (a - b).abs() <= SAME * size)
    }
    /// Projects every node's output on every direction.
    fn add_up(&self, readings: &[DirectionReading], rivals: Vec<Rivals>) -> Result<Vec<Explanation>> {
        let nodes = EdgeGraph::new(self.model.config()).senders();
        let unread = |rivals| Explanation { rivals, own: vec![[0.0; 2]; nodes.len()], carried: None };
        let mut explained: Vec<Explanation> = rivals.into_iter().map(unread).collect();
        // How far back each decision's state can be decomposed.
        let mut deepest = vec![0; explained.len()];
        readings.iter().for_each(|r| deepest[r.decision] = r.depth);
        for (node, &which) in nodes.iter().enumerate() {
            let output = self.output(which)?;
            let values: Vec<[f64; 2]> =
                readings.par_iter().map(|r| [0, 1].map(|way| dot(output.row(r.place), &r.along[way]))).collect();
            for (reading, value) in readings.iter().zip(values) {
                let of = &mut explained[reading.decision];
                if reading.depth == 0 {
                    of.own[node] = value;
                    continue;
                }
                let carried = of.carried.get_or_insert_with(|| vec![[0.0; 2]; nodes.len()]);
                // An injected state in between is itself decomposed.
                if which != Sender::Input || reading.depth == deepest[reading.decision] {
                    carried[node].iter_mut().zip(value).for_each(|(sum, x)| *sum += x);
                }
            }
        }
        Ok(explained)
    }

    /// A node's output to the stream at every place, `[places, D]`.
    fn output(&self, node: Sender) -> Result<Array2<f32>> {
        let (held, dh) = (&self.held, self.model.config().head_dim);
        Ok(match node {
            Sender::Input => held[0].clone(),
            Sender::Mlp(layer) => held[4 + 2 * layer].clone(),
            Sender::Head(layer, head) => {
                let written = writes(self.model, layer)?;
                let part = s![head * dh..(head + 1) * dh, ..];
                held[3 + 2 * layer].slice(s![.., head * dh..(head + 1) * dh]).dot(&written.slice(part))
            }
        })
    }
}

fn dot(x: ArrayView1<f32>, g: &[f64]) -> f64 {
    x.iter().zip(g).map(|(&x, g)| f64::from(x) * g).sum()
}

fn check(explained: &[Explanation]) -> Result<()> {
    for e in explained {
        for (way, whole) in [e.rivals.logit, e.rivals.lead].into_iter().enumerate() {
            let sum: f64 = e.own.iter().map(|x| x[way]).sum();
            let token = e.rivals.token;
            ensure!(
                (sum - whole).abs() <= OFF * (1.0 + e.rivals.logit.abs()),
                "token {token}: contributions sum to {sum}, the model's logit is {whole}; direct attribution needs f32"
            );
        }
    }
    Ok(())
}
