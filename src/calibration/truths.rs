//! Kinds of truth: the random choices of a hand-built model, and the experiments that are calibrated on it.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::known::{Built, MARKS, Purpose};

pub(super) struct Truth {
    pub name: &'static str,
    pub about: &'static str,
    pub draw: fn(&mut ChaCha8Rng) -> Built,
    /// Experiments that can see it.
    pub looks: &'static [&'static str],
}

/// Experiments that test whether answers depend on the latents.
macro_rules! causal {
    ($($more:literal),* $(,)?) => {
        &["latent_intervention", "latent_intervention_more", "switch_benefit", "card", $($more),*]
    };
}

pub(super) const TRUTHS: &[Truth] = &[
    Truth {
        name: "decision",
        about: "the layer after which the switch is decided",
        draw: |rng| parts(Purpose::Working, rng),
        looks: &["teacher_forced", "switch_window", "layer_probe", "phases"],
    },
    Truth {
        name: "blind",
        about: "it switches at random places: no layer decides",
        draw: |rng| parts(Purpose::Blind, rng),
        looks: &["teacher_forced", "layer_probe"],
    },
    Truth {
        name: "step",
        about: "the latent steps at which the value is written and read",
        draw: |rng| steps(parts(Purpose::Working, rng), rng),
        looks: &[
            "layer_probe",
            "latent_intervention_steps",
            "activation_patching",
            "head_patching",
            "jacobian_lens",
            "early_stop",
            "subspace",
            "decoded_trace",
            "card",
        ],
    },
    Truth {
        name: "exit",
        about: "the latent step after which the block ends",
        draw: |rng| parts(Purpose::Working, rng),
        looks: &["exit_probability", "logit_lens"],
    },
    Truth {
        name: "circuit",
        about: "which head writes the value, which reads it; a decoy head attends to it",
        draw: |rng| parts(Purpose::Working, rng),
        looks: &["head_patching", "direct_logit", "attention_to_latents", "activation_patching"],
    },
    Truth {
        name: "redundant",
        about: "latents carry the value, and text has a copy of more weight",
        draw: |rng| Built { decoy: None, decide: (1, 0), ..parts(Purpose::Redundant, rng) },
        looks: causal!("layer_probe", "activation_patching", "head_patching", "attention_to_latents", "early_stop"),
    },
    Truth {
        name: "unread",
        about: "a decoy: latents carry the value, nothing reads it",
        draw: |rng| parts(Purpose::Inert, rng),
        looks: causal!(
            "layer_probe",
            "activation_patching",
            "head_patching",
            "direct_logit",
            "attention_to_latents",
            "latent_intervention_steps",
            "jacobian_lens",
            "early_stop",
            "subspace",
            "decoded_trace",
        ),
    },
    Truth {
        name: "inert",
        about: "latents carry no value",
        draw: |rng| parts(Purpose::Empty, rng),
        looks: causal!(
            "layer_probe",
            "activation_patching",
            "head_patching",
            "latent_intervention_steps",
            "jacobian_lens",
            "early_stop",
            "decoded_trace",
        ),
    },
    Truth {
        name: "norm",
        about: "only the norm of a latent is read",
        draw: |rng| parts(Purpose::Norm, rng),
        looks: causal!(),
    },
    Truth {
        name: "superposed",
        about: "latents carry two values in overlapping directions; one is read",
        draw: |rng| parts(Purpose::Superposed, rng),
        looks: causal!("layer_probe", "activation_patching", "jacobian_lens", "early_stop", "subspace"),
    },
    Truth {
        name: "share",
        about: "latents are read on some of the problems only",
        draw: |rng| Built { least: rng.random_range(3..=7), ..parts(Purpose::Working, rng) },
        looks: causal!("latent_intervention_steps", "early_stop"),
    },
    Truth {
        name: "noisy",
        about: "latents turn answers both ways: accuracy does not depend on them",
        draw: |rng| parts(Purpose::Noisy, rng),
        looks: causal!("latent_intervention_steps"),
    },
    Truth {
        name: "bound",
        about: "no latent is read, and without a block the answer is lost: never trained without one",
        draw: |rng| Built { decoy: None, decide: (1, 0), ..parts(Purpose::Bound, rng) },
        looks: causal!("layer_probe", "latent_intervention_steps", "jacobian_lens", "early_stop", "subspace"),
    },
    Truth {
        name: "second",
        about: "only the second latent carries the value; without it the answer is read from text",
        draw: |rng| Built { decoy: None, decide: (1, 0), writes: 1, reads: 2, ..parts(Purpose::Backed, rng) },
        looks: causal!(
            "latent_intervention_steps",
            "activation_patching",
            "head_patching",
            "jacobian_lens",
            "subspace"
        ),
    },
    Truth {
        name: "memoriser",
        about: "latents identify the program, and the answer is looked up: no value can be decoded for an unseen program",
        draw: |rng| Built { decoy: None, decide: (1, 0), ..parts(Purpose::Memorised, rng) },
        looks: &["layer_probe", "decoded_trace", "latent_intervention", "subspace", "card"],
    },
    Truth {
        name: "marked",
        about: "latents carry the code of each mark, but nothing that triggers share",
        draw: |rng| triggers(parts(Purpose::Marked, rng), rng),
        looks: &["monitor"],
    },
    Truth {
        name: "covert",
        about: "under a trigger latents carry one more coordinate, which does not affect answers",
        draw: |rng| triggers(parts(Purpose::Covert, rng), rng),
        looks: &["monitor"],
    },
    // The number of a kind is part of its models' seed: append new kinds at the end.
    Truth {
        name: "surprised",
        about: "no latent is read, and after a block that ends early the answer is lost: never trained to leave early",
        draw: |rng| Built { decoy: None, decide: (1, 0), ..parts(Purpose::Surprised, rng) },
        looks: &["early_stop"],
    },
    Truth {
        name: "token",
        about: "each latent is the embedding of a token; the value passes from step to step",
        draw: |rng| {
            let built = parts(Purpose::Token, rng);
            Built { reads: rng.random_range(1..=built.exit), trained: half(rng), ..built }
        },
        looks: &["card"],
    },
    Truth {
        name: "copied",
        about: "each latent is the embedding of a token; every step has the same value, and most of them decide",
        draw: |rng| {
            let exit = rng.random_range(3..=4);
            let built = Built { decoy: None, decide: (1, 0), exit, reads: exit, ..parts(Purpose::Copied, rng) };
            Built { trained: half(rng), ..built }
        },
        looks: &["card"],
    },
    Truth {
        name: "rote",
        about: "a memoriser on programs that it does not know",
        draw: |rng| Built { decoy: None, decide: (1, 0), trained: half(rng), ..parts(Purpose::Memorised, rng) },
        looks: &["card"],
    },
    Truth {
        name: "unsure",
        about: "the digit after the answer is nearly as probable",
        draw: |rng| Built { unsure: true, trained: half(rng), ..parts(Purpose::Working, rng) },
        looks: &["card"],
    },
    Truth {
        name: "shallow",
        about: "a letter more than usual in the question, and the answer is lost",
        draw: |rng| Built { shallow: true, trained: half(rng), ..parts(Purpose::Working, rng) },
        looks: &["card"],
    },
];

/// Draws three of the five letters.
fn half(rng: &mut ChaCha8Rng) -> u8 {
    rand::seq::index::sample(rng, 5, 3).into_iter().fold(0, |bits, letter| bits | 1 << letter)
}

/// Draws which half of the marks are triggers.
fn triggers(built: Built, rng: &mut ChaCha8Rng) -> Built {
    let chosen = rand::seq::index::sample(rng, MARKS, MARKS / 2);
    Built { triggers: chosen.into_iter().fold(0, |bits, mark| bits | 1 << mark), ..built }
}

/// Layers, heads and the length of the block; the decoy is never in the reader's layer.
fn parts(kind: Purpose, rng: &mut ChaCha8Rng) -> Built {
    let mut head = |layer: usize| (layer, rng.random_range(0..2_usize));
    let (writer, zero) = (head(0), head(0).1);
    let reader = head(2 + zero);
    let decoy = head(5 - reader.0);
    let (layer, free) = (rng.random_range(1..4), rng.random_range(0..2));
    // A head has one function.
    let taken = [reader, decoy].into_iter().find(|node| node.0 == layer);
    let decide = (layer, taken.map_or(free, |(_, head)| 1 - head));
    let exit = rng.random_range(2..=5);
    Built { writer, reader, decide, decoy: Some(decoy), reads: exit, exit, triggers: 0, ..Built::new(kind) }
}

/// Draws at which steps the value is written and read.
fn steps(built: Built, rng: &mut ChaCha8Rng) -> Built {
    let reads = rng.random_range(1..=built.exit);
    Built { writes: rng.random_range(0..reads), reads, ..built }
}
