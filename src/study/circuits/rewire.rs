//! Edge patching: every edge carries its own mixture of two runs, this run's value and the sender's output in another run. With the
//! other run's value on all edges but a few, only the circuit of those few runs.
//!
//! Hooks recompute the input of every reader at `hook_q`, `hook_k`, `hook_v`, before the MLP and before the head:
//! `x_v = Σ_u (own_u + share_{uv} · (other_u − own_u))` over all senders u that write before v. The final norm feeds the next latent,
//! so that edges into latent inputs are included.

use std::cell::RefCell;
use std::collections::HashMap;

use anyhow::{Context, Result};
use ndarray::{Array1, Array2, ArrayView1, aview1};

use super::edges::{EdgeNorm, EdgeWeights, Receiver, Sender};
use crate::latent::Sequence;
use crate::model::hooks::{Place, Site};
use crate::model::{Activation, HookPoint, HookSpec, Hooks, PointKind};
use crate::study::Study;
use crate::study::readout::{at_ends, lead};

#[derive(Clone, Copy)]
pub struct RewiredRun<'a> {
    pub row: &'a Sequence,
    /// Every sender's output in the other run: `[senders, D]` per position.
    pub other: &'a [Array2<f32>],
    /// Index into `shares` for each position.
    pub places: &'a [usize],
    /// `[receivers, senders]`: share of the other run's value on an edge, 0 to 1.
    pub shares: &'a [Array2<f32>],
    /// The logit difference: first token minus second, at the sequence's end.
    pub says: [u32; 2],
}

/// Every sender's output in some sequences: `[senders, D]` per position.
pub fn outputs(study: &Study, weights: &EdgeWeights, rows: &[Sequence]) -> Result<Vec<Vec<Array2<f32>>>> {
    let wires = Wires { weights, runs: &[], own: RefCell::default() };
    let mut hooks = Hooks::none();
    wires.listen(&mut hooks)?;
    study.unroll(rows, &mut hooks)?;
    drop(hooks);
    let mut own = wires.own.into_inner();
    let of_row = |(batch, row): (usize, &Sequence)| {
        (0..row.ids.len()).map(|p| own.remove(&(batch, p)).context("a position that was not run")).collect()
    };
    rows.iter().enumerate().map(of_row).collect()
}

/// The logit difference at the end of each run, in one batch.
pub fn leads(study: &Study, weights: &EdgeWeights, runs: &[RewiredRun]) -> Result<Vec<f64>> {
    let wires = &Wires { weights, runs, own: RefCell::default() };
    let layers = weights.graph.layers;
    let mut hooks = Hooks::none();
    hooks.observe(&HookSpec::all(HookPoint::new(PointKind::Embed)), layers, move |_, _| {
        // A new call: outputs of the previous call's positions are not read again.
        wires.own.borrow_mut().clear();
        Ok(())
    })?;
    wires.listen(&mut hooks)?;
    for layer in 0..layers {
        for kind in [PointKind::Q, PointKind::K, PointKind::V] {
            let at = HookPoint::at(layer, kind);
            hooks.edit(&HookSpec::all(at), layers, move |site, heads| wires.projected(site, heads, layer))?;
        }
        let before_mlp = HookPoint::at(layer, PointKind::Ln2Normalized);
        hooks.edit(&HookSpec::all(before_mlp), layers, move |site, value| {
            wires.normalised(site, value, |_| Receiver::Mlp(layer), &weights.before_mlp[layer])
        })?;
    }
    hooks.edit(&HookSpec::all(HookPoint::new(PointKind::LnFinalNormalized)), layers, move |site, value| {
        let hands_on = |place: &Place| runs[place.batch].row.is_latent(place.position + 1);
        let receiver = |place: &Place| if hands_on(place) { Receiver::Latent } else { Receiver::Logits };
        wires.normalised(site, value, receiver, &weights.last)
    })?;
    let rows: Vec<Sequence> = runs.iter().map(|run| run.row.clone()).collect();
    let logits = at_ends(study, &rows, hooks)?;
    Ok(runs.iter().zip(&logits).map(|(run, logits)| lead(logits, run.says)).collect())
}

/// The runs of one batch, and their senders' outputs at the positions of the current call.
struct Wires<'a> {
    weights: &'a EdgeWeights,
    runs: &'a [RewiredRun<'a>],
    /// By row and position, `[senders, D]`.
    own: RefCell<HashMap<(usize, usize), Array2<f32>>>,
}

impl Wires<'_> {
    /// Hooks that store every sender's output.
    fn listen<'h>(&'h self, hooks: &mut Hooks<'h>) -> Result<()> {
        for points in ["hook_embed", "blocks.*.attn.hook_z", "blocks.*.hook_mlp_out"] {
            let layers = self.weights.graph.layers;
            hooks.observe(&HookSpec::all(points), layers, move |site, value| self.store_outputs(site, value))?;
        }
        Ok(())
    }

    fn store_outputs(&self, site: &Site, value: &Activation) -> Result<()> {
        let (EdgeWeights { graph, width, head_dim, .. }, layer) = (self.weights, site.point.layer.unwrap_or_default());
        for (place, out) in site.values(value, |_| true)? {
            match site.point.kind {
                PointKind::Z => out.chunks(*head_dim).enumerate().try_for_each(|(head, z)| {
                    self.keep(place, Sender::Head(layer, head), self.weights.head_output(layer, head, z).view())
                })?,
                PointKind::MlpOut => self.keep(place, Sender::Mlp(layer), aview1(&out))?,
                _ => {
                    let empty = Array2::zeros((graph.senders().len(), *width));
                    self.own.borrow_mut().insert((place.batch, place.position), empty);
                    self.keep(place, Sender::Input, aview1(&out))?;
                }
            }
        }
        Ok(())
    }

    fn keep(&self, place: &Place, sender: Sender, out: ArrayView1<f32>) -> Result<()> {
        let mut own = self.own.borrow_mut();
        let own = own.get_mut(&(place.batch, place.position)).context("a position without embedding")?;
        own.row_mut(self.weights.graph.sender(sender)).assign(&out);
        Ok(())
    }

    /// A receiver's input at a place, `[D]`.
    fn input(&self, place: &Place, receiver: Receiver) -> Result<Array1<f32>> {
        let own = self.own.borrow();
        let own = own.get(&(place.batch, place.position)).context("a position without embedding")?;
        let run = &self.runs[place.batch];
        let other = &run.other[place.position];
        let shares = run.shares[run.places[place.position]].row(self.weights.graph.receiver(receiver));
        let mut x = Array1::zeros(self.weights.width);
        for sender in 0..self.weights.graph.reads(receiver) {
            let share = shares[sender];
            x += &own.row(sender);
            if share != 0.0 {
                x.scaled_add(share, &(&other.row(sender) - &own.row(sender)));
            }
        }
        Ok(x)
    }

    /// `hook_q`, `hook_k` or `hook_v`, each head from its own input.
    fn projected(&self, site: &Site, heads: &mut [f32], layer: usize) -> Result<()> {
        let (projection, receiver): (_, fn(usize, usize) -> Receiver) = match site.point.kind {
            PointKind::Q => (&self.weights.query[layer], Receiver::Query),
            PointKind::K => (&self.weights.key[layer], Receiver::Key),
            _ => (&self.weights.value[layer], Receiver::Value),
        };
        for place in site.places {
            for (head, own) in heads.chunks_mut(self.weights.head_dim).enumerate() {
                let x = self.input(place, receiver(layer, head))?;
                let normed = self.weights.before_attention[layer].forward(x.view());
                let new = projection.project_head(head, own.len(), normed.view());
                own.iter_mut().zip(new).for_each(|(old, new)| *old = new);
            }
        }
        Ok(())
    }

    /// A norm's output before its weight.
    fn normalised(
        &self,
        site: &Site,
        value: &mut [f32],
        receiver: impl Fn(&Place) -> Receiver,
        norm: &EdgeNorm,
    ) -> Result<()> {
        for place in site.places {
            let new = norm.unit(self.input(place, receiver(place))?.view());
            value.iter_mut().zip(new).for_each(|(old, new)| *old = new);
        }
        Ok(())
    }
}
