//! Circuits: contributions of heads, MLPs and embeddings to a logit, attention of heads, and effects of patches. Latent steps and
//! tokens of a clause count from 1, as in hook names.

mod attribution;
mod edges;
mod patching;
mod places;
mod steering;

use super::Identity;
use crate::nth::Nth;
use crate::stats::{Estimate, FEWEST};

pub(crate) use attribution::attributions;
pub use attribution::{AttributedNodeRow, AttributionAgreementRow, AttributionRow, GradientAt};
pub(crate) use edges::circuits;
pub use edges::{Circuit, CircuitRow, EdgePairRow, EdgeRow};
pub use patching::{FormsRow, HeadPatchRow, PatchMode, PatchedNodeRow, agreement};
pub(crate) use patching::{shares, too_few};
pub use places::{place_name, place_number, place_order};
pub(crate) use steering::steerings;
pub use steering::{SteeringRow, SteeringTrialRow};

names! {
    /// Form of a solution.
    #[derive(Default)]
    pub enum Form {
        /// `<swi>`, latents, `</swi>` in place of each tagged clause.
        #[default]
        Latents = "latents",
        /// The clause itself, untagged.
        Text = "text",
    }

    /// The token whose logit is explained.
    pub enum Target {
        /// The first token of the gold answer.
        Answer = "answer",
        /// The value that a tagged clause states (generated tasks).
        Value = "value",
        /// `<swi>`, where a clause is tagged.
        Swi = "swi",
        SwiEnd = "swi_end",
    }

    /// Kind of a node.
    pub enum Component {
        /// The sum of all contributions: the logit itself.
        Total = "total",
        /// The token's embedding or, at a latent step, the injected state.
        Embed = "embed",
        Head = "head",
        Mlp = "mlp",
        /// The residual stream: layer 0 is the embedding, l the output of `blocks.{l-1}`.
        Resid = "resid",
    }

    /// A node's place along the recurrence.
    pub enum Part {
        /// At the position that decides.
        Own = "own",
        /// At earlier steps of the block and at `<swi>`, summed: contributions that the injected state carries.
        Carried = "carried",
    }
}

/// Name of the residual stream after this many layers: `embedding`, then the layer that wrote it (`blocks.0`, …).
pub fn stream_name(layers_passed: usize) -> String {
    layers_passed.checked_sub(1).map_or_else(|| "embedding".into(), |layer| format!("blocks.{layer}"))
}

impl Component {
    /// Name of a node in tables: `L2H0`, `MLP 1`, `blocks.2` (the stream), `input`.
    pub fn label(self, layer: Option<usize>, head: Option<usize>) -> String {
        let number = layer.map_or_else(String::new, |layer| layer.to_string());
        match (self, head) {
            (Component::Head, Some(head)) => format!("L{number}H{head}"),
            (Component::Head, None) => format!("heads of {number}"),
            (Component::Mlp, _) => format!("MLP {number}"),
            (Component::Resid, _) => layer.map_or_else(String::new, stream_name),
            (Component::Embed, _) => "input".into(),
            (Component::Total, _) => "total".into(),
        }
    }
}

rows! {
    /// A node's contribution to one kind of decision; intervals are cluster bootstraps over problems.
    pub struct DirectLogitRow {
        /// `n` counts problems.
        #[serde(flatten)]
        pub identity: Identity,
        pub form: Form => "name": "latents, or the same problem as plain text",
        pub target: Target => "name": "the token whose logit is explained",
        pub step: Option<Nth> => LensRow,
        pub component: Component => "name": "attention head, MLP, embedding, residual or total",
        pub layer: Option<usize> => LensRow,
        pub head: Option<usize> => PatternRow,
        pub part: Part => "name": "own: at the deciding position; carried: what the injected state brought along",
        /// Number of decisions.
        pub positions: usize => EntropyRow,
        pub logit: Estimate => "logits":
            "what the component adds to the target's logit; with direct_logit.centred minus the mean over the vocabulary \
                (TransformerLens' default)",
        /// Contribution to the target's logit minus that to the logit of the best other token allowed there.
        pub lead: Estimate => "logits": "the same minus what it adds to the best other token",
        pub top: Option<Estimate> => "share": "decisions where the target is the most probable token",
    }
}

/// Contributions up to this many nats count as none.
const LEAST_NATS: f64 = 0.1;

fn adds(nats: Estimate) -> bool {
    nats.n >= FEWEST && nats.low > LEAST_NATS
}

impl DirectLogitRow {
    /// The verdict that the node adds to the target's lead: its interval lies above `LEAST_NATS`.
    pub fn adds(&self) -> bool {
        adds(self.lead)
    }
}

rows! {
    /// One head from one class of positions to one class of keys; intervals are cluster bootstraps over problems.
    pub struct AttentionRow {
        /// `n` counts problems.
        #[serde(flatten)]
        pub identity: Identity,
        pub form: Form => DirectLogitRow,
        pub layer: usize => LensRow,
        pub head: usize => PatternRow,
        /// `swi`, `latent[k]` (of the text form `clause[k]`), `swi_end`, `text`, `answer` (the position that decides it).
        pub from: String => "name": "class of positions that attend; k of `latent[k]` and `clause[k]` counts from 1",
        /// A class as in `from` but for `answer`, or `prompt`.
        pub to: String => "name": "class of positions attended to",
        /// Blocks between them: 0 for the query's own or, from text, the last one before it; 2 stands for two or more. Absent
        /// where `to` is `prompt` or `text`.
        pub back: Option<usize> => "blocks": "back from the attending position's block, or in text from the last one before it, which is 0; 2 is two or more",
        pub queries: usize => "count": "positions that see such a key",
        pub mass: Estimate => "share":
            "of the head's attention that goes there, mean over `queries`; weighted with them all classes make 1",
        pub direct: Option<Estimate> => "nats": "what the head adds to the answer's lead from these keys",
    }
}

impl AttentionRow {
    /// The verdict that the head's output from there adds to the answer's lead.
    pub fn brings(&self) -> bool {
        self.direct.is_some_and(adds)
    }
}
