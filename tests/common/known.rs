//! A decoder whose weights are set by hand, so that what experiments must find is known.
//!
//! Problems: `<bos> x x s 3 :` (switch) or `<bos> x x t 3 :` (text), `x` any of five letters without meaning. A switch
//! problem is answered `= <swi> ⟨3 latents⟩ </swi> # 0` (3 + 4 modulo 7), a text problem `= # 3`, whose `# 3` is a clause that
//! nobody tags.
//!
//! | where | what it does |
//! | --- | --- |
//! | layer 0, attention | at `<swi>`: copies the digit into the state `S` |
//! | layer 1, MLP | wherever there is a state: adds one to it (mod 7) and to the counter `C` |
//! | layer 2, head 0 | at `#`: reads the state of the latest latent, or the digit where there is none |
//! | layer 2, head 1 | at `=`: reads the kind, `s` or `t`: the decision to switch |
//! | layer 3 | nothing |
//!
//! After latent step k (from 1) the state is digit + 1 + k and the counter 1 + k; `</swi>` follows counter 4, so step 3.
//! `Kind::Inert` is the same but for `#`, which reads the digit whatever the latents hold: its switch problems are
//! answered `# 3`. `Kind::Empty` has no state at all: latents count, and carry the letters.

use burn::tensor::Device;
use switchyard::corpus::Corpus;
use switchyard::latent::{Reasoning, SwitchIds};
use switchyard::model::Decoder;
use switchyard::model::checkpoint::HostTensor;
use switchyard::model::config::{Family, ModelConfig};
use switchyard::recipe::Recipe;
use switchyard::study::Study;
use switchyard::study::Subject;
use switchyard::tasks::{Known, StepValue};
use switchyard::text::{Problem, Sample, Template, Vocabulary};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Working,
    Inert,
    Empty,
}

/// Layer after which `=` holds the decision (its `resid_post` is the first that does).
pub const DECIDED_AT: usize = 2;
/// Latent step (from 1) after which `</swi>` is certain.
pub const EXIT_STEP: usize = 3;

const WORDS: [&str; 17] = ["0", "1", "2", "3", "4", "5", "6", "s", "t", ":", "=", "#", "a", "b", "c", "d", "e"];
const LETTERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const TOKENS: usize = 24;
const D: usize = 48;
const HEAD: usize = 16;
/// Size of the constant coordinate: it fixes the RMS, so that a norm changes nothing else by more than a few percent.
const CONSTANT: f32 = 10.0;

// Coordinates of the stream.
const fn state(v: usize) -> usize {
    TOKENS + v
}
const fn counter(c: usize) -> usize {
    TOKENS + 7 + c
}
const fn read(v: usize) -> usize {
    TOKENS + 12 + v
}
const fn kind(k: usize) -> usize {
    TOKENS + 19 + k
}
const BIAS: usize = TOKENS + 21;
const fn letters(i: usize) -> usize {
    TOKENS + 22 + i
}

/// Coordinates of a head that RoPE hardly turns: the pair of the lowest frequency. `SINK` draws to `<bos>`.
const SINK: usize = HEAD / 2 - 1;
const PICK: usize = HEAD - 1;

struct Matrix {
    data: Vec<f32>,
    columns: usize,
}

impl Matrix {
    fn new(rows: usize, columns: usize) -> Self {
        Self { data: vec![0.0; rows * columns], columns }
    }

    fn set(&mut self, row: usize, column: usize, value: f32) {
        self.data[row * self.columns + column] = value;
    }
}

pub fn vocabulary() -> Vocabulary {
    let mut vocabulary = Vocabulary::from_words(WORDS).expect("words");
    vocabulary.add_switch_tokens().expect("switch tokens");
    vocabulary
}

fn config() -> ModelConfig {
    ModelConfig {
        family: Family::Llama,
        vocab_size: TOKENS,
        hidden_size: D,
        intermediate_size: 26,
        num_hidden_layers: 4,
        num_attention_heads: 2,
        num_key_value_heads: 2,
        head_dim: HEAD,
        rms_norm_eps: 1e-6,
        rope_theta: 1e12,
        rope_scaling: None,
        qk_norm: false,
        tie_word_embeddings: false,
        max_position_embeddings: 512,
        bos_token_id: None,
        eos_token_ids: vec![],
        pad_token_id: None,
    }
}

pub fn model(which: Kind) -> Decoder {
    let vocabulary = vocabulary();
    let id = |word: &str| vocabulary.id(word).expect("a word") as usize;
    let config = config();
    Decoder::from_weights(&config, &Device::flex(), |name| {
        let f = config.intermediate_size;
        let (rows, columns) = match name.rsplit('.').nth(1).unwrap_or_default() {
            "q_proj" | "k_proj" | "v_proj" => (2 * HEAD, D),
            "o_proj" => (D, 2 * HEAD),
            "gate_proj" | "up_proj" => (f, D),
            "down_proj" => (D, f),
            "embed_tokens" | "lm_head" => (TOKENS, D),
            // A norm that undoes the division by an RMS of CONSTANT / √D.
            _ => return HostTensor::new(vec![D], vec![CONSTANT / (D as f32).sqrt(); D]),
        };
        let mut w = Matrix::new(rows, columns);
        match name {
            "model.embed_tokens.weight" => embedding(&mut w, &id),
            "lm_head.weight" => head(&mut w, &id),
            _ => {
                let part = name.trim_start_matches("model.layers.");
                let (layer, part) = part.split_once('.').expect("a layer");
                match (layer, part) {
                    ("0", "self_attn.q_proj.weight") => (0..2).for_each(|head| query(&mut w, head, id("<swi>"))),
                    ("0", "self_attn.k_proj.weight") => {
                        keys(&mut w, 0, (0..7).map(|v| (id(WORDS[v]), 31.0)), &id);
                        keys(&mut w, 1, LETTERS.iter().map(|letter| (id(letter), 31.0)), &id);
                    }
                    ("0", "self_attn.v_proj.weight") => {
                        for v in (0..7).filter(|_| which != Kind::Empty) {
                            w.set(v, id(WORDS[v]), 1.0);
                        }
                        for (i, letter) in LETTERS.iter().enumerate() {
                            w.set(HEAD, id(letter), 0.5 * i as f32 - 1.0);
                            w.set(HEAD + 1, id(letter), [0.3, -0.7, 0.9, -0.2, 0.1][i]);
                        }
                    }
                    ("0", "self_attn.o_proj.weight") => {
                        (0..7).for_each(|v| w.set(state(v), v, 1.0));
                        (0..2).for_each(|i| w.set(letters(i), HEAD + i, 1.0));
                    }
                    ("1", "mlp.gate_proj.weight" | "mlp.up_proj.weight" | "mlp.down_proj.weight") => {
                        increment(&mut w, part, id("<swi>"));
                    }
                    ("2", "self_attn.q_proj.weight") => {
                        query(&mut w, 0, id("#"));
                        query(&mut w, 1, id("="));
                    }
                    ("2", "self_attn.k_proj.weight") => {
                        // Later counters draw harder: the latest latent wins, and any latent wins over the digit.
                        let counters = [(counter(2), 31.0), (counter(3), 41.0), (counter(4), 52.0)];
                        let counters = counters.into_iter().filter(|_| which == Kind::Working);
                        keys(&mut w, 0, (0..7).map(|v| (id(WORDS[v]), 20.0)).chain(counters), &id);
                        keys(&mut w, 1, [(id("s"), 31.0), (id("t"), 31.0)].into_iter(), &id);
                    }
                    ("2", "self_attn.v_proj.weight") => {
                        for (v, digit) in WORDS.iter().enumerate().take(7) {
                            w.set(v, id(digit), 1.0);
                            w.set(v, state(v), 1.0);
                        }
                        w.set(HEAD, id("s"), 1.0);
                        w.set(HEAD + 1, id("t"), 1.0);
                    }
                    ("2", "self_attn.o_proj.weight") => {
                        (0..7).for_each(|v| w.set(read(v), v, 1.0));
                        w.set(kind(0), HEAD, 1.0);
                        w.set(kind(1), HEAD + 1, 1.0);
                    }
                    _ => {}
                }
            }
        }
        HostTensor::new(vec![rows, columns], w.data)
    })
    .expect("weights by hand")
}

fn embedding(w: &mut Matrix, id: &impl Fn(&str) -> usize) {
    for token in 0..TOKENS {
        w.set(token, token, 1.0);
        w.set(token, BIAS, CONSTANT);
    }
    w.set(id("<swi>"), counter(0), 1.0);
}

/// Every position asks for the sink with a score of 121, so that nothing else gets any weight at all (e⁻¹²¹ is 0 in f32: a
/// standardised probe would find a share of 1e-13); positions of `token` ask harder for what `keys` marks.
fn query(w: &mut Matrix, head: usize, token: usize) {
    w.set(head * HEAD + SINK, BIAS, 22.0 / CONSTANT);
    w.set(head * HEAD + PICK, token, 31.0);
}

fn keys(w: &mut Matrix, head: usize, marked: impl Iterator<Item = (usize, f32)>, id: &impl Fn(&str) -> usize) {
    w.set(head * HEAD + SINK, id("<bos>"), 22.0);
    marked.for_each(|(coordinate, strength)| w.set(head * HEAD + PICK, coordinate, strength));
}

/// One step: state v → v + 1 (mod 7), counter c → c + 1, and `<swi>`'s own mark erased. Each is a pair of neurons whose
/// difference is a step function (0 below 0.4, 1 above 0.6), so that errors do not grow from latent to latent.
fn increment(w: &mut Matrix, part: &str, swi: usize) {
    let states = (0..7).map(|v| (state(v), Some(state((v + 1) % 7))));
    let counters = (0..4).map(|c| (counter(c), Some(counter(c + 1))));
    let pairs: Vec<_> = states.chain(counters).chain([(swi, None)]).collect();
    for (i, (from, to)) in pairs.into_iter().enumerate() {
        for (neuron, threshold, sign) in [(2 * i, 0.4, 1.0), (2 * i + 1, 0.6, -1.0)] {
            match part {
                "mlp.gate_proj.weight" => {
                    w.set(neuron, from, 50.0);
                    w.set(neuron, BIAS, -50.0 * threshold / CONSTANT);
                }
                "mlp.up_proj.weight" => w.set(neuron, BIAS, 1.0 / CONSTANT),
                _ => {
                    w.set(from, neuron, -0.1 * sign);
                    if let Some(to) = to {
                        w.set(to, neuron, 0.1 * sign);
                    }
                }
            }
        }
    }
}

fn head(w: &mut Matrix, id: &impl Fn(&str) -> usize) {
    w.set(id("="), id(":"), 20.0);
    w.set(id("<swi>"), id("="), 10.0);
    w.set(id("<swi>"), kind(0), 20.0);
    w.set(id("#"), id("="), 10.0);
    w.set(id("#"), kind(1), 20.0);
    w.set(id("#"), id("</swi>"), 20.0);
    w.set(id("</swi>"), counter(4), 20.0);
    for (v, digit) in WORDS.iter().enumerate().take(7) {
        w.set(id(digit), read(v), 20.0);
        w.set(id(digit), state(v), 5.0);
        w.set(id("<eos>"), id(digit), 20.0);
    }
}

/// `n` problems, half of them switch problems, in an order that the seed fixes.
pub fn problems(which: Kind, n: usize, seed: u64) -> Vec<Problem> {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut make = |i: usize| {
        let letter = |rng: &mut rand_chacha::ChaCha8Rng| LETTERS[rng.random_range(0..5)];
        let (a, b) = (letter(&mut rng), letter(&mut rng));
        let digit = rng.random_range(0..7_usize);
        let switches = rng.random::<bool>();
        let at = |k: usize| (digit + k) % 7;
        let answer = if switches && which == Kind::Working { at(4) } else { digit };
        let solution =
            if switches { format!("= {} {} {} # {answer}", at(2), at(3), at(4)) } else { format!("= # {answer}") };
        let (value, clause) = match switches {
            true => (at(4), format!("{} {} {}", at(2), at(3), at(4))),
            false => (digit, format!("# {digit}")),
        };
        let words = clause.split(' ').count();
        let step = StepValue {
            value: Known::Number(value as i64),
            clause,
            words: 1..1 + words,
            value_words: words..1 + words,
        };
        Problem {
            id: format!("known-{i}"),
            question: format!("{a} {b} {} {digit} :", if switches { "s" } else { "t" }),
            solution,
            answer: answer.to_string(),
            subject: Some(if switches { "switch" } else { "text" }.to_owned()),
            level: Some(1),
            steps: vec![step],
        }
    };
    (0..n).map(&mut make).collect()
}

fn switches(problem: &Problem) -> bool {
    problem.subject.as_deref() == Some("switch")
}

/// The model with its problems and their spans, as experiments take it.
pub fn study(which: Kind, n: usize, seed: u64) -> Study {
    let vocabulary = vocabulary();
    let tokens = vocabulary.switch().expect("switch tokens");
    let switch = SwitchIds { swi: tokens.swi, swi_end: tokens.swi_end, latent: tokens.latent };
    let test = problems(which, n, seed);
    let template = Template::Words;
    let samples: Vec<Sample> = test.iter().map(|p| Sample::new(p, &vocabulary, template).expect("a sample")).collect();
    let tagged = |(s, p): (&Sample, &Problem)| if switches(p) { s.clauses.clone() } else { vec![] };
    let spans: Vec<_> = samples.iter().zip(&test).map(tagged).collect();
    let mut recipe = Recipe::resolve("smoke", &[]).expect("a preset");
    recipe.name = "known".into();
    recipe.latent.c = 1;
    recipe.latent.k_max = 3;
    recipe.annotate.spans.max_stage = 3;
    recipe.evaluation.problems = n;
    recipe.evaluation.k_min = 1;
    recipe.evaluation.k_cap = 8;
    recipe.evaluation.max_new_tokens = 24;
    let prompts = test.iter().map(|p| template.encode_prompt(&vocabulary, &p.question).expect("a prompt"));
    let corpus = Corpus {
        switch,
        template,
        end: template.end_id(&vocabulary).expect("an end"),
        train: vec![],
        train_answers: vec![],
        test_prompts: prompts.collect(),
        test,
        dropped: 0,
        exact_answers: true,
        vocabulary,
    };
    let subject = Subject {
        name: format!("known/{which:?}").to_lowercase(),
        model: model(which),
        corpus,
        recipe,
        reasoning: Reasoning::default(),
        run: None,
        source: std::path::PathBuf::new(),
        adapter: None,
    };
    Study::new(subject, seed, 1, Device::flex()).with_tags(samples.into_iter().zip(spans).collect())
}
