//! What the columns of rows mean: unit and description by name, for manifests. Knows names only.
//!
//! A name means the same in all rows; where it does not, `<rows>.<column>` stands before the plain name. Columns
//! `x.value`, `x.low`, `x.high`, `x.n` are one estimate: value, 95 % interval, number of independent units behind it; they are
//! described once, as `x`. Rows that nobody here has heard of (a new experiment) have columns without a description.

use serde_json::{Map, Value, json};

/// Column, unit, description.
pub type Column = (&'static str, &'static str, &'static str);

/// Of which checkpoint and problems.
const WHO: &[Column] = &[
    ("checkpoint", "name", "run and phase, or model, that was measured"),
    ("dataset", "name", "generated task, or file of problems"),
    ("n", "count", "problems behind the row"),
    ("head_patching.n", "count", "pairs behind the row"),
    ("pair_patching.n", "count", "pairs behind the row"),
    ("activation_patching.n", "count", "pairs behind the row"),
    ("attribution_patching.n", "count", "pairs behind the row"),
    ("attribution_agreement.n", "count", "pairs behind the row"),
    ("edge_attribution.n", "count", "pairs in which the circuit was looked for"),
    ("circuits.n", "count", "pairs that the circuit was tested on"),
    ("seed", "seed", "of everything random: bootstraps, splits, draws"),
    ("problem", "index from 0", "the problem, in the order of the data"),
    ("positions.id", "token id", "the token at the position"),
    ("id", "name", "the problem, as its source names it"),
    ("level", "count", "difficulty, as the source says it"),
    ("subject", "name", "subject, as the source says it"),
    ("group", "name", "group of problems (all, level, subject, own choice) or way of decoding"),
    ("gold", "text", "right answer"),
    ("answer", "text", "final answer of the response, as it is compared"),
    ("grader", "name", "who compared answer and gold: math, exact (the same words) or choice (the same letter)"),
    ("rule", "name", "rule by which the grader decided (no_answer: the response states none)"),
    ("prompt", "text", "the question as the model reads it; on a response's first position only"),
    ("pair", "index from 0", "the pair of prompts"),
    ("decode", "name", "rule of switching and K_min"),
    ("trace", "JSON", "every position of the response"),
    ("ended", "true or false", "the response opens no block of the model's own"),
    ("force_at", "index from 0", "visible token at which a block was forced open"),
    ("states", "JSON", "latent inputs: block, step, bytes of the values"),
];

/// Answers and their cost.
const ANSWERS: &[Column] = &[
    ("k_min", "latent steps", "steps before a block may end"),
    ("k_cap", "latent steps", "steps after which a block must end"),
    ("layer_probe.accuracy", "share", "rows that the probe labels right"),
    ("accuracy", "share", "problems answered right"),
    ("latent_accuracy", "share", "right answers among problems with at least one block"),
    ("text_accuracy", "share", "right answers among problems without a block"),
    ("text_only_accuracy", "share", "problems answered right when <swi> is forbidden"),
    ("switch_rate", "share", "problems with at least one block"),
    (
        "latent_intervention.blocks",
        "name",
        "own: the model opens its blocks; forced: problems without one were made to open one",
    ),
    ("latent_intervention_steps.blocks", "name", "as in latent_intervention"),
    ("observations.blocks", "name", "as in latent_intervention"),
    ("observations_steps.blocks", "name", "as in latent_intervention"),
    ("hook_intervention.blocks", "name", "as in latent_intervention"),
    ("hook_observations.blocks", "name", "as in latent_intervention"),
    ("exit_probability.blocks", "count", "blocks that reach the step"),
    ("blocks", "count", "blocks of latent steps in a response"),
    ("latent_calls", "latent steps", "of a response"),
    ("visible_tokens", "tokens", "of a response, latent steps left out"),
    ("truncated", "share", "responses that ran out of tokens (of one response: true or false)"),
    ("forced_exits", "share", "blocks that the cap ended"),
    ("difference", "share", "accuracy minus that of the free decode of the same problems, paired"),
    ("lost", "count", "problems right in the normal run and wrong here"),
    ("gained", "count", "problems wrong in the normal run and right here"),
    ("p_value", "probability", "exact test (McNemar; of several draws sign flips) against no difference"),
    ("p_holm", "probability", "the p-value, Holm-adjusted over the comparisons of the experiment"),
    ("correct", "true or false", "whether the answer is right"),
    ("switched", "true or false", "whether the response has a block"),
    ("first_swi", "share", "of the response's visible tokens that stand before the first <swi>"),
    ("phase", "name", "phase of training that ended with this checkpoint"),
    ("source", "name", "what enters at latent positions"),
    ("forward_passes", "count", "passes of the model one after the other, a response"),
    ("train_steps", "count", "optimiser steps behind the checkpoint"),
    ("train_positions", "count", "positions fed in training"),
    ("point", "name", "the swept settings of the run, its seed left out"),
];

/// What next-token distributions say.
const DISTRIBUTIONS: &[Column] = &[
    ("event", "name", "class of positions (annotated <swi>, same token, start of a clause, random, …)"),
    ("kind", "name", "what stands at the position: text, swi, latent, swi_end"),
    ("positions", "count", "positions behind the row"),
    ("offset", "positions", "from the annotated <swi>; 0 is the position that predicts it"),
    ("in_block", "count", "of the positions, those inside a latent block"),
    ("entropy", "nats", "of the next-token distribution"),
    ("logprob", "nats", "log-probability of what was drawn"),
    ("p_swi", "probability", "of <swi> as the next token"),
    ("p_exit", "probability", "of </swi> as the next token"),
    ("exits", "share", "blocks at which </swi> is the most probable token"),
    ("rank", "rank from 1", "of <swi> among the next tokens"),
    ("observations.margin", "nats", "lead of the gold answer's first token over the best other one"),
    ("observations_steps.margin", "nats", "as in observations"),
    ("margin", "nats", "log p(<swi>) minus log p of the best other token"),
    ("against", "name", "the earlier checkpoint: every number is this one minus that one, paired by position"),
    ("d_p_swi", "probability", "change of p(<swi>)"),
    ("d_entropy", "nats", "change of the entropy"),
    ("d_margin", "nats", "change of the margin of <swi>"),
    ("d_rank", "ranks", "change of the rank of <swi>"),
    (
        "activation_patching.index",
        "index",
        "latent step (from 1) or position (from 0) that was patched, as `axis` says",
    ),
    ("index", "index from 0", "position of the response, latents included"),
    ("token", "text", "what the position adds to the response, or what stands there"),
];

/// Lenses and probes.
const READINGS: &[Column] = &[
    ("switching", "name", "free: the model opened the blocks; forced: <swi> was put first"),
    ("patterns.position", "index from 0", "position that looks, from the prompt's first token, latents included"),
    ("patterns.weights", "JSON [share, …]", "attention to each position from 0 to this one; together 1"),
    ("token_lens.position", "index from 0", "from the prompt's first token, latents included"),
    ("token_lens.top", "JSON [[token, p], …]", "the most probable next tokens"),
    ("positions.lens", "JSON [[token, p], …]", "the most probable next tokens at a latent"),
    (
        "jacobian_lens.lens",
        "name",
        "how the state is read: jacobian, logit, or others' (another problem's state by the same Jacobian)",
    ),
    ("jacobian_lens.step", "latent step from 1", "of the last block before the answer"),
    ("jacobian_lens.layer", "blocks passed", "0 is the input of the first block, the last the output of the last"),
    ("jacobian_lens.logprob", "nats", "log-probability that the reading gives the token that the model answers with"),
    (
        "says_answer",
        "share",
        "problems whose most probable token by this reading is the one that the model answers with",
    ),
    (
        "split_error",
        "share",
        "norm of the difference between the Jacobians of two halves of the problems, over that of their mean",
    ),
    ("lens", "name", "logit: final norm and head; tuned: after the layer's translator"),
    ("step", "latent step from 1", "of the block; absent at text"),
    ("layer", "layer", "blocks of the decoder passed, or the block itself"),
    ("exit_rank", "rank from 1", "of </swi> in the lens' distribution"),
    ("direct_logit.top", "share", "decisions where the target is the most probable token"),
    ("top", "JSON [[token, p], …]", "the most probable tokens, their mean probabilities"),
    ("kl", "nats", "from the model's own distribution to the lens'"),
    ("agreement", "share", "positions where lens and model name the same token"),
    ("own_value", "share", "positions whose most probable token begins the value of the block's own step"),
    ("direct_logit.target", "name", "the token whose logit is explained"),
    ("target", "name", "what the probe reads: switch, or value:<step>@<latent step>, both from 1"),
    ("protocol", "name", "paper: random negatives, split by row; grouped: look-alikes, split by problem"),
    ("negatives", "name", "what positives are told from"),
    ("from_last", "layer from 1", "the layer, counted from the last"),
    ("features", "name", "what the probe sees: states, or a control"),
    ("rows", "count", "rows that the probe is fitted and scored on"),
    ("positives", "count", "rows whose label is yes, or of the most frequent value"),
    ("balanced_accuracy", "share", "mean of the classes' recalls"),
    ("auroc", "share", "area under the ROC curve"),
    ("selectivity", "share", "score minus that with permuted labels"),
    ("layer_probe.chance", "share", "score of a probe that reads nothing"),
];

/// Interventions and patches.
const CAUSES: &[Column] = &[
    ("head_patching.mode", "name", "denoise, noise or mean: which run the patch comes from"),
    ("patched_nodes.mode", "name", "as in head_patching"),
    ("pair_patching.mode", "name", "as in head_patching"),
    ("patched_pairs.mode", "name", "as in head_patching"),
    ("attribution_agreement.mode", "name", "the patches that the gradient is compared with: denoise or noise"),
    (
        "gradient",
        "name",
        "the run that the gradient is taken in: corrupt, clean, or integrated (the mean of runs between)",
    ),
    (
        "attribution_patching.effect",
        "share",
        "of the difference between clean and corrupt: gradient × (clean − corrupt)",
    ),
    ("exact", "share", "what the patch itself moves in the same pairs; of cells that were sampled"),
    ("mean_miss", "share", "mean over the sampled cells of |gradient's effect − patch's effect|"),
    ("worst_miss", "share", "the largest of them"),
    ("worst_cell", "name", "the node and place where it is"),
    ("worst_predicted", "share", "the gradient's effect there"),
    ("worst_exact", "share", "the patch's effect there"),
    ("mode", "name", "what was done (zero, random_norm, skip, …)"),
    ("steering.dose", "factor", "how many times the difference of the two means is added"),
    ("dose", "factor or degrees", "how much of it"),
    ("steps", "latent steps from 1", "at which it was done: all, one, or from one on (`2..`)"),
    ("hook", "name", "hook point whose values are replaced; absent: the input of the latents"),
    ("heads", "index from 0", "heads of the hook point: all, one, or several (`0+3`)"),
    ("hook_intervention.place", "name", "latent (`steps` says which), prompt, text, text[t] or pos[p]; t and p from 0"),
    ("hook_observations.place", "name", "as in hook_intervention"),
    ("hook_observations.margin", "nats", "as in observations"),
    ("later", "name", "recompute: later latents follow; frozen: they stay those of the normal run"),
    ("at", "name", "which part of the position is replaced: embedding, kv, or both"),
    ("draws", "count", "draws of a random mode, pooled"),
    ("draw", "index from 0", "the draw of a random mode"),
    ("cell", "index from 0", "mode at one dose and one choice of steps, in the order asked"),
    ("weights", "hash", "first digits of the SHA-256 of the weights"),
    ("dtype", "name", "float type of the computation"),
    ("accuracy_change", "share", "accuracy minus that of the normal run, paired"),
    ("answer_changed", "share", "answers that differ from the normal run's"),
    ("diagnostic_accuracy", "share", "right among the problems where the normal run switched and was right"),
    ("wrong_to_right", "share", "of the normal run's wrong answers that are right"),
    ("switch_problems.logit_diff", "nats", "lead of the gold answer with a block minus without"),
    ("logit_diff", "nats", "lead of the gold answer's first token over the best other one"),
    ("logit_diff_change", "nats", "the same minus that of the normal run, paired"),
    ("firings", "count", "latent inputs that were replaced"),
    ("mean_change", "norm", "mean length of new minus old input, a replacement"),
    ("moved", "norm", "sum of the lengths of new minus old input"),
    ("identical", "true or false", "the same tokens and log-probabilities as the normal run, bit for bit"),
    ("forked", "true or false", "whether the problem was decoded anew"),
    ("predicted", "text", "the answer that arithmetic predicts from the exchanged value"),
    (
        "operand_predicted",
        "text",
        "the answer if the donor's block holds its step's first operand, where that is another one",
    ),
    (
        "operand_chance",
        "share",
        "donors that could have been drawn which predict the answer given, by their first operand",
    ),
    (
        "holds",
        "name",
        "what the exchanged block is taken to hold: the value of its step, or the first operand (then only exchanges count for \
         which the two predict different answers)",
    ),
    (
        "steering.action",
        "name",
        "add: along the direction between two values; project_out: the part along it is removed",
    ),
    (
        "steering.hit_rate",
        "share",
        "steered problems whose answer is the one that arithmetic predicts from the other value",
    ),
    ("random_hit_rate", "share", "the same with a random direction of the same length"),
    ("above_random", "share", "the difference of the two, paired"),
    ("steering.kept", "share", "steered problems whose answer is still the gold one"),
    ("random_kept", "share", "the same with the random direction"),
    ("length", "share", "mean length of what was added or removed, of the state's own length"),
    ("random_length", "share", "the same of the random direction"),
    ("hit_rate", "share", "exchanges after which the answer is the predicted one"),
    ("chance", "share", "the same, had the value put in nothing to do with the answer"),
    ("above_chance", "share", "hit rate minus chance, paired"),
    ("kept", "share", "exchanges after which the answer is still the gold one"),
    ("switch_problems.with_block", "true or false", "whether the answer is right with a block"),
    ("switch_problems.without_block", "true or false", "whether the answer is right without one"),
    ("with_block", "share", "right answers with a block"),
    ("without_block", "share", "right answers without one"),
    ("chosen", "true or false", "whether the model opened a block of its own accord"),
    ("benefit", "share", "right with a block minus right without, paired"),
    ("better", "count", "problems right with a block and wrong without"),
    ("worse", "count", "problems wrong with a block and right without"),
    ("axis", "name", "what `index` counts: step or position"),
    ("position", "index from 0", "position of the row that was patched"),
    ("patched_places.text", "index from 0", "the text token of the response that was patched"),
    ("block", "block from 1", "the block of latents that was patched"),
    ("clean", "text", "what stands there in the clean row"),
    ("corrupt", "text", "what stands there in the corrupt row"),
    ("patched_places.effect", "logits", "patched minus corrupt, at the read-out"),
    ("effect", "share", "of the difference between clean and corrupt that the patch restores"),
    ("whole", "logits", "difference between the whole rows: clean minus corrupt"),
    ("patched_nodes.moved", "logits", "how far the lead moves in the direction that the mode asks about"),
    ("patched_pairs.moved", "logits", "as in patched_nodes"),
    ("form", "name", "latents, or the same problem as plain text"),
    ("component", "name", "attention head, MLP, embedding, residual or total"),
    ("head", "index from 0", "attention head of the layer"),
    ("part", "name", "own: at the deciding position; carried: what the injected state brought along"),
    ("logit", "logits", "what the component adds to the target's logit"),
    ("lead", "logits", "the same minus what it adds to the best other token"),
    ("place", "name", "where it was patched, or what stands there; k of latent[k] and clause[k] counts from 1"),
    ("back", "blocks", "between the place and the read-out; 0 is the last"),
    ("from", "name", "class of positions that attend; k of latent[k] and clause[k] counts from 1"),
    ("to", "name", "class of positions attended to"),
    ("queries", "count", "positions that see such a key"),
    ("mass", "share", "of the head's attention that goes there"),
    ("direct", "nats", "what the head adds to the answer's lead from these keys"),
    ("attribution_agreement.cells", "count", "nodes and places that were patched to compare with"),
    (
        "attribution_agreement.rank_correlation",
        "rho",
        "Spearman's, of the gradient's and the patches' effects over these cells",
    ),
    ("sender", "name", "what writes to the stream: input, head (L2H0) or MLP"),
    ("receiver", "name", "what reads it: a head's query, key or value (L2H0.q), MLP, latent (the next input), logits"),
    ("edge_attribution.score", "share", "of the difference: integrated gradient at the receiver × (clean − corrupt)"),
    ("edge_attribution.rank", "rank from 1", "by the size of the score"),
    ("in_circuit", "yes or no", "whether the edge belongs to the found circuit"),
    ("edge_attribution.needed", "share", "of the difference that the circuit loses without the edge; of sampled edges"),
    ("circuits.needed", "share", "of the sampled edges without which the circuit's effect is smaller"),
    ("circuits.circuit", "name", "found, rest (all others), random, less_one, top (of the ranking) or all edges"),
    ("circuits.edges", "count", "edges that carry what the run computes"),
    ("circuits.of", "count", "edges that can exist"),
    ("circuits.circuits", "count", "circuits that were run and averaged"),
    ("circuits.effect", "share", "of the difference between clean and corrupt that these edges bring alone"),
    ("edge_pairs.pair", "index from 0", "the pair; in the even ones the circuit is looked for"),
    ("edge_pairs.circuit", "name", "as in circuits; absent of a single edge"),
    ("edge_pairs.number", "count", "which of several sets of edges; of an edge its rank"),
    ("edge_pairs.edges", "count", "edges of the set"),
    ("edge_pairs.of", "count", "edges that can exist"),
    ("edge_pairs.rank", "rank from 1", "of the edge, or of the edge that is missing, by the size of the score"),
    (
        "edge_pairs.found",
        "logits",
        "of an edge, gradient × (clean − corrupt); of a set, the lead with these edges alone",
    ),
    ("edge_pairs.corrupt", "logits", "the lead in the corrupt run"),
    ("edge_pairs.clean", "logits", "the lead in the clean run"),
    (
        "attributed_nodes.moved",
        "logits",
        "what the gradient predicts that a patch moves; without one, what it did move",
    ),
    ("steering_trials.target", "index from 0", "the steered problem, in the order of the draw"),
    ("hit", "true or false", "whether the answer is the one that arithmetic predicts from the other value"),
    ("random_hit", "true or false", "the same with a random direction of the same length"),
    ("steering_trials.kept", "true or false", "whether the answer is still the gold one"),
    ("steering_trials.random_kept", "true or false", "the same with the random direction"),
    ("steering_trials.length", "share", "length of what was added or removed, of the state's own length"),
    ("extreme", "share", "of random circuits the largest effect, of less_one the smallest"),
    ("cells", "count", "nodes and steps that both forms have"),
    ("rank_correlation", "rho", "Spearman's, of the effects in both forms"),
];

/// How often verdicts are right on models whose truth is known (`probe calibrate`).
const CALIBRATION: &[Column] = &[
    ("calibration.n", "count", "questions behind the row"),
    ("calibration_draws.n", "count", "problems, or pairs of them, that the model was asked"),
    ("calibration_draws.draw", "index from 0", "the model of this kind, with its own random parameters"),
    ("calibration_draws.kind", "name", "kind of truth that the model was built with"),
    ("calibration.kind", "name", "kind of truth, or all of them together"),
    ("test", "name", "experiment and what is asked of it"),
    ("problems", "count", "problems, or pairs of them, that each model was asked"),
    ("default_n", "yes or no", "whether the experiment has this n by default"),
    ("blind", "text", "what the test is known not to see"),
    ("truth", "yes or no", "whether the model has what the test looks for"),
    (
        "calibration_draws.verdict",
        "yes or no",
        "whether the test found it: at every place where it is, at any place where it is not",
    ),
    ("calibration_draws.right", "yes or no", "whether the verdict is the truth"),
    ("calibration.right", "share", "verdicts that are the truth"),
    ("power", "share", "of what is there that is found"),
    ("false_alarms", "share", "models in which something is found that is not there"),
    ("n_for_80", "count", "the smallest n of those tried from which on the power is 80 % or more"),
];

/// Unit and description of every column of rows, by the estimate's name where it is one.
pub fn described<'a>(rows: &str, columns: impl Iterator<Item = &'a String>) -> Value {
    let mut out = Map::new();
    for column in columns {
        let plain = column.trim_end_matches("[]");
        let parts = [".value", ".low", ".high", ".n"];
        let name = parts.iter().find_map(|part| plain.strip_suffix(part)).unwrap_or(plain);
        if let Some((unit, about)) = of(rows, name) {
            out.insert(name.to_owned(), json!({ "unit": unit, "about": about }));
        }
    }
    Value::Object(out)
}

/// Every column by what it is about, for the reference.
pub fn all() -> [(&'static str, &'static [Column]); 6] {
    [
        ("Of which checkpoint and problems", WHO),
        ("Answers and their cost", ANSWERS),
        ("Distributions of tokens", DISTRIBUTIONS),
        ("What can be read", READINGS),
        ("What changes do", CAUSES),
        ("How often verdicts are right", CALIBRATION),
    ]
}

fn of(rows: &str, name: &str) -> Option<(&'static str, &'static str)> {
    let all = || all().into_iter().flat_map(|(_, columns)| columns);
    let own = format!("{rows}.{name}");
    let found = all().find(|(column, ..)| *column == own).or_else(|| all().find(|(column, ..)| *column == name));
    found.map(|(_, unit, about)| (*unit, *about))
}
