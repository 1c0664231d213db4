//! The weights of a hand-built model. Knows coordinates of the stream and of a head.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use burn::tensor::Device;

use super::{Built, COUNTS, Head, Purpose, VALUES};
use crate::model::Decoder;
use crate::model::checkpoint::HostTensor;
use crate::model::config::{Family, ModelConfig};
use crate::text::Vocabulary;

/// Digits, words of prompts and solutions, letters, then words that name a value.
const WORDS: [&str; 24] = [
    "0", "1", "2", "3", "4", "5", "6", "s", "t", ":", "=", "#", "a", "b", "c", "d", "e", "A", "B", "C", "D", "E", "F",
    "G",
];
const DIGITS: [&str; VALUES] = ["0", "1", "2", "3", "4", "5", "6"];
pub(super) const LETTERS: [&str; 5] = ["a", "b", "c", "d", "e"];
pub(super) const NAMES: [&str; VALUES] = ["A", "B", "C", "D", "E", "F", "G"];
/// The additional letter of a question that a shallow model cannot answer.
pub(super) const MORE: &str = NAMES[6];
/// Answer of `Norm` for a latent of normal norm, of `Bound` without a block, and of `Surprised` after a short block.
pub(super) const FIXED: usize = 3;

pub const LAYERS: usize = 4;
const TOKENS: usize = 31;
const D: usize = 64;
const HEAD: usize = 16;
/// Size of the constant coordinate: it fixes the RMS, so that norms change other coordinates by a few percent at most.
const CONSTANT: f32 = 10.0;

// Coordinates of the stream.
const fn state(v: usize) -> usize {
    TOKENS + v
}
const fn counter(c: usize) -> usize {
    TOKENS + 7 + c
}
const fn read(v: usize) -> usize {
    TOKENS + 15 + v
}
const fn kind(k: usize) -> usize {
    TOKENS + 22 + k
}
const BIAS: usize = TOKENS + 24;
const fn letters(i: usize) -> usize {
    TOKENS + 25 + i
}
/// Detects the norm of a latent: the smaller the norm, the larger the share of layer 0's addition.
const NORM: usize = TOKENS + 27;
/// 1 if the norm is normal.
const SOUND: usize = TOKENS + 28;
/// Flips the answers of the `Noisy` model; the decoy's output; in the `Bound` and `Surprised` models, whether there was a block.
const ASIDE: usize = TOKENS + 29;

/// Coordinates of a head that RoPE hardly turns: the pair of the lowest frequency. `SINK` draws to `<bos>`.
const SINK: usize = HEAD / 2 - 1;
const PICK: usize = HEAD - 1;

/// Names of programs that the `Memorised` model knows, each with every digit.
const PROGRAMS: usize = 5;
// Coordinates that only the `Memorised` model has.
const fn name(k: usize) -> usize {
    D + k
}
const fn program(k: usize, digit: usize) -> usize {
    D + PROGRAMS + k * VALUES + digit
}

/// The memorised value of each program of the `Memorised` model; all values are equally frequent.
pub(super) fn looked_up(name: usize, digit: usize) -> usize {
    ([3, 5, 2, 6, 4][name] * digit + [1, 4, 0, 2, 5][name]) % VALUES
}

// Coordinates that only the `Copied` model has: a value that was copied just now, and the value of the latent that came in.
const fn fresh(v: usize) -> usize {
    D + v
}
const fn got(v: usize) -> usize {
    D + VALUES + v
}

/// The coordinate of a value in the latents.
fn carrier(built: &Built, words: &Words, v: usize) -> usize {
    if built.is_token() { words[NAMES[v]] } else { state(v) }
}

/// Share of attention on `<swi>` at a latent step of a model that counts by attention: `<swi>` and all latents so far get equal shares.
fn left_of_swi(step: usize) -> f32 {
    1.0 / (step as f32 + 1.0)
}

/// Words that the `Marked` and `Covert` models use as marks.
pub const MARKS: usize = NAMES.len() + LETTERS.len();
pub(super) fn mark(number: usize) -> &'static str {
    NAMES.into_iter().chain(LETTERS).nth(number).unwrap_or_default()
}

/// Two numbers for each letter; a pair of letters has their mean. Evenly spaced, and irregular (no mean is 0).
fn code(which: Purpose, letter: usize) -> [f32; 2] {
    if which == Purpose::Superposed {
        let (sin, cos) = (letter as f32 * std::f32::consts::TAU / 5.0).sin_cos();
        return [cos, sin];
    }
    [0.5 * letter as f32 - 1.0, [0.3, -0.7, 0.9, -0.2, 0.1][letter]]
}

/// Whether the `Operand` model adds one to a problem with these letters.
pub(super) fn adds(letters: [usize; 2]) -> bool {
    letters.iter().map(|&letter| code(Purpose::Operand, letter)[1]).sum::<f32>() > 0.0
}

/// The words of every hand-built model.
pub(super) fn vocabulary() -> Result<Vocabulary> {
    let mut vocabulary = Vocabulary::from_words(WORDS)?;
    vocabulary.add_switch_tokens()?;
    Ok(vocabulary)
}

fn config(built: &Built) -> ModelConfig {
    // A neuron pair to erase each name, and one for each program.
    let (wider, more) = match built.kind {
        Purpose::Memorised => (PROGRAMS + PROGRAMS * VALUES, 2 * (PROGRAMS + PROGRAMS * VALUES)),
        Purpose::Copied => (2 * VALUES, 2 * VALUES),
        _ => (0, 0),
    };
    ModelConfig {
        vocab_size: TOKENS,
        hidden_size: D + wider,
        intermediate_size: 36 + more,
        num_hidden_layers: LAYERS,
        num_attention_heads: 2,
        num_key_value_heads: 2,
        head_dim: HEAD,
        rope_theta: 1e12,
        tie_word_embeddings: false,
        max_position_embeddings: 512,
        ..ModelConfig::new(Family::Llama)
    }
}

pub(super) fn model(built: &Built, device: &Device) -> Result<Decoder> {
    let vocabulary = vocabulary()?;
    let id = |word| vocabulary.id(word).map(|id| (word, id as usize)).with_context(|| format!("no word `{word}`"));
    let marks = ["<bos>", "<eos>", "<swi>", "</swi>"];
    let words: Words = WORDS.into_iter().chain(marks).map(id).collect::<Result<_>>()?;
    Decoder::from_weights(&config(built), device, |name| tensor(built, &words, name))
}

/// The coordinate of a word in the stream, which is its id.
type Words = BTreeMap<&'static str, usize>;

/// The tensor of a name: zeros, and the entries of [`super`]'s table.
fn tensor(built: &Built, words: &Words, name: &str) -> Result<HostTensor> {
    let part = name.rsplit('.').nth(1).unwrap_or_default();
    let ModelConfig { hidden_size: d, intermediate_size: f, .. } = config(built);
    let (rows, columns) = match part {
        "q_proj" | "k_proj" | "v_proj" => (2 * HEAD, d),
        "o_proj" => (d, 2 * HEAD),
        "gate_proj" | "up_proj" => (f, d),
        "down_proj" => (d, f),
        "embed_tokens" | "lm_head" => (TOKENS, d),
        // A norm that undoes the division by an RMS of CONSTANT / √D. The last one erases the norm's coordinates.
        _ => {
            let mut weight = vec![CONSTANT / (d as f32).sqrt(); d];
            if name == "model.norm.weight" {
                (weight[NORM], weight[SOUND]) = (0.0, 0.0);
                if built.is_token() {
                    // Only the token of a latent remains.
                    let own = if built.kind == Purpose::Copied { 2 * VALUES } else { 0 };
                    let erased = (1..=built.exit).map(counter).chain([words["<swi>"]]).chain(D..D + own);
                    erased.for_each(|at| weight[at] = 0.0);
                }
            }
            return HostTensor::new(vec![d], weight);
        }
    };
    let mut w = DenseMatrix { data: vec![0.0; rows * columns], columns };
    let layer = name.split('.').nth(2).and_then(|layer| layer.parse::<usize>().ok());
    match (part, layer) {
        ("embed_tokens", _) => embedding(&mut w, built, words),
        ("lm_head", _) => head(&mut w, built, words),
        ("q_proj" | "k_proj" | "v_proj" | "o_proj", Some(layer)) => {
            for (at, does) in nodes(built, words) {
                if at.0 == layer {
                    does.write(&mut w, part, at.1, words);
                }
            }
        }
        (_, Some(COUNTS)) => increment(&mut w, part, built, words),
        _ => {}
    }
    HostTensor::new(vec![rows, columns], w.data)
}

struct DenseMatrix {
    data: Vec<f32>,
    columns: usize,
}

impl DenseMatrix {
    fn set(&mut self, row: usize, column: usize, value: f32) {
        self.data[row * self.columns + column] = value;
    }
}

/// Function of a head, in pairs of (coordinate, strength).
#[derive(Default)]
struct HeadWiring {
    /// Coordinates that mark query positions.
    asks: Vec<usize>,
    /// Attention scores by coordinate of the key position.
    drawn: Vec<(usize, f32)>,
    /// Values read: coordinate of the stream, of the head, factor.
    takes: Vec<(usize, usize, f32)>,
    /// Values written: coordinate of the head, of the stream, factor.
    puts: Vec<(usize, usize, f32)>,
    /// Whether it divides its attention equally: scores are divided by four, so that a rounded key hardly matters.
    counts: bool,
}

impl HeadWiring {
    /// Every position attends to the sink with a score of 121, so that other positions get no weight at all (e⁻¹²¹ is 0 in f32: a
    /// standardised probe would find a share of 1e-13); query positions score others higher.
    fn write(&self, w: &mut DenseMatrix, part: &str, head: usize, words: &Words) {
        let from = head * HEAD;
        match part {
            "q_proj" => {
                w.set(from + SINK, BIAS, 22.0 / CONSTANT);
                self.asks.iter().for_each(|&at| w.set(from + PICK, at, 31.0));
            }
            "k_proj" => {
                w.set(from + SINK, words["<bos>"], if self.counts { 5.0 } else { 22.0 });
                self.drawn.iter().for_each(|&(at, strength)| w.set(from + PICK, at, strength));
            }
            "v_proj" => self.takes.iter().for_each(|&(at, to, factor)| w.set(from + to, at, factor)),
            _ => self.puts.iter().for_each(|&(at, to, factor)| w.set(to, from + at, factor)),
        }
    }
}

fn nodes(built: &Built, words: &Words) -> Vec<(Head, HeadWiring)> {
    let mut nodes = vec![
        (built.writer, writer(built, words)),
        ((built.writer.0, 1 - built.writer.1), lettered(built, words)),
        (built.reader, reader(built, words)),
    ];
    if built.kind != Purpose::Blind {
        let drawn = vec![(words["s"], 31.0), (words["t"], 31.0)];
        let (takes, puts) =
            (vec![(words["s"], 0, 1.0), (words["t"], 1, 1.0)], vec![(0, kind(0), 1.0), (1, kind(1), 1.0)]);
        nodes.push((built.decide, HeadWiring { asks: vec![words["="]], drawn, takes, puts, counts: false }));
    }
    if let Some(decoy) = built.decoy {
        // In the noisy model it copies the letters' code, else a function of the state.
        let states = (0..VALUES).map(|v| (state(v), 0, 0.3 * v as f32 - 0.9)).collect();
        let takes = if built.kind == Purpose::Noisy { vec![(letters(1), 0, 1.0)] } else { states };
        let (asks, puts) = (vec![words["#"]], vec![(0, ASIDE, 1.0)]);
        nodes.push((decoy, HeadWiring { asks, drawn: latents(built), takes, puts, counts: false }));
    }
    if built.kind == Purpose::Operand {
        nodes.extend(adders(built, words));
    }
    if built.kind == Purpose::Copied {
        nodes.extend(voters(built).into_iter().enumerate().skip(1).map(|(at, head)| {
            let drawn = vec![(counter(at + 2), 41.0)];
            let takes = (0..VALUES).map(|v| (got(v), v, 1.0)).collect();
            let puts = (0..VALUES).map(|v| (v, read(v), 1.0)).collect();
            (head, HeadWiring { asks: vec![words["#"]], drawn, takes, puts, counts: false })
        }));
    }
    let beside = (built.reader.0, 1 - built.reader.1);
    if matches!(built.kind, Purpose::Redundant | Purpose::Backed) {
        let mut drawn = marked(words, &NAMES, 31.0);
        let mut takes: Vec<_> = (0..VALUES).map(|v| (words[NAMES[v]], v, 1.0)).collect();
        if built.kind == Purpose::Backed {
            // Its reader reads latents only; text problems have a digit and no name.
            drawn.extend(marked(words, &DIGITS, 26.0));
            takes.extend((0..VALUES).map(|v| (words[DIGITS[v]], v, 1.0)));
        }
        let puts = (0..VALUES).map(|v| (v, read(v), 1.0 - share(built.kind))).collect();
        nodes.push((beside, HeadWiring { asks: vec![words["#"]], drawn, takes, puts, counts: false }));
    }
    if matches!(built.kind, Purpose::Bound | Purpose::Surprised) {
        let end = if built.kind == Purpose::Bound { words["</swi>"] } else { counter(built.exit + 1) };
        let seen = [end, words["t"]];
        let (drawn, takes) = (seen.map(|at| (at, 31.0)).to_vec(), seen.map(|at| (at, 0, 1.0)).to_vec());
        nodes.push((
            beside,
            HeadWiring { asks: vec![words["#"]], drawn, takes, puts: vec![(0, ASIDE, 1.0)], counts: false },
        ));
    }
    nodes
}

/// The two heads that add one if the letters say so. The second one's query is the letters' code: if it is negative the sink wins; at
/// its smallest positive value (0.05, four times that in the stream) a latent still wins.
fn adders(built: &Built, words: &Words) -> [(Head, HeadWiring); 2] {
    let codes = (0..5).map(|i| (words[LETTERS[i]], 0, code(built.kind, i)[1])).collect();
    let (asks, drawn) = (vec![words["#"]], marked(words, &LETTERS, 31.0));
    let reads = HeadWiring { asks, drawn, takes: codes, puts: vec![(0, ASIDE, 4.0)], counts: false };
    let states = (0..VALUES).map(|v| (state(v), v, 1.0)).collect();
    let next = (0..VALUES).map(|v| (v, read((v + 1) % VALUES), 1.5)).collect();
    let drawn = vec![(counter(built.reads + 1), 200.0)];
    [((1, 0), reads), ((3, 0), HeadWiring { asks: vec![ASIDE], drawn, takes: states, puts: next, counts: false })]
}

/// The heads that read one latent each.
fn voters(built: &Built) -> Vec<Head> {
    let others = [(2, 0), (2, 1), (3, 0), (3, 1)].into_iter().filter(|head| *head != built.reader);
    std::iter::once(built.reader).chain(others).take(built.exit).collect()
}

fn writer(built: &Built, words: &Words) -> HeadWiring {
    if built.kind == Purpose::Norm {
        // From the sink, equally at every position.
        return HeadWiring {
            takes: vec![(words["<bos>"], 0, 1.0)],
            puts: vec![(0, NORM, 1.0)],
            ..HeadWiring::default()
        };
    }
    if !built.has_state() {
        return HeadWiring::default();
    }
    let mut drawn = marked(words, &DIGITS, 31.0);
    let mut takes: Vec<_> = (0..VALUES).map(|v| (words[DIGITS[v]], v, 1.0)).collect();
    let to = |v| if built.kind == Purpose::Copied { fresh(v) } else { carrier(built, words, v) };
    // A copy of a normalised coordinate is smaller than a word: latents that are to be words need the difference.
    let size = if built.is_token() { (1.0 + 1.0 / (CONSTANT * CONSTANT)).sqrt() } else { 1.0 };
    let mut puts: Vec<_> = (0..VALUES).map(|v| (v, to(v), size)).collect();
    let mut asks = vec![if built.writes == 0 { words["<swi>"] } else { counter(built.writes) }];
    if built.kind == Purpose::Copied {
        asks.extend(NAMES.map(|name| words[name]));
    }
    if built.kind == Purpose::Memorised {
        // Half of its attention goes to the name.
        drawn.extend(marked(words, &NAMES, 31.0));
        takes.extend((0..PROGRAMS).map(|k| (words[NAMES[k]], VALUES + k, 1.0)));
        puts = (0..VALUES).map(|v| (v, state(v), 2.0)).collect();
        puts.extend((0..PROGRAMS).map(|k| (VALUES + k, name(k), 2.0)));
    }
    HeadWiring { asks, drawn, takes, puts, counts: false }
}

fn lettered(built: &Built, words: &Words) -> HeadWiring {
    if built.is_token() {
        // It counts by attention instead.
        let mut drawn = marked(words, &NAMES, 6.0);
        drawn.push((words["<swi>"], 6.0));
        let asks = NAMES.map(|name| words[name]).to_vec();
        let (takes, puts) = (vec![(words["<swi>"], 0, 1.0)], vec![(0, NORM, 1.0)]);
        return HeadWiring { asks, drawn, takes, puts, counts: true };
    }
    if built.is_marked() {
        let all = (0..MARKS).map(|number| (number, words[mark(number)]));
        // Codes at irregular angles: two marks predict nothing about a third.
        let code = |number: usize| [(2.4 * number as f32).cos(), (2.4 * number as f32).sin()];
        let codes = all.clone().flat_map(|(number, word)| (0..2).map(move |c| (word, c, code(number)[c])));
        let covert =
            all.clone().filter(|(number, _)| built.kind == Purpose::Covert && built.triggers >> number & 1 == 1);
        let takes = codes.chain(covert.map(|(_, word)| (word, 2, 1.0))).collect();
        let puts = vec![(0, letters(0), 1.0), (1, letters(1), 1.0), (2, ASIDE, 1.0)];
        let drawn = all.map(|(_, word)| (word, 31.0)).collect();
        return HeadWiring { asks: vec![words["<swi>"], words["="]], drawn, takes, puts, counts: false };
    }
    let codes = (0..5).flat_map(|i| (0..2).map(move |c| (words[LETTERS[i]], c, code(built.kind, i)[c])));
    let mut puts = vec![(0, letters(0), 1.0), (1, letters(1), 1.0)];
    if built.kind == Purpose::Superposed {
        // Too small for the step functions of the MLP, large enough to mislead a probe.
        puts.extend([(0, state(1), 0.2), (1, state(4), 0.2)]);
    }
    let drawn = marked(words, &LETTERS, 31.0);
    HeadWiring { asks: vec![words["<swi>"], words["="]], drawn, takes: codes.collect(), puts, counts: false }
}

fn marked(words: &Words, of: &[&str], strength: f32) -> Vec<(usize, f32)> {
    of.iter().map(|word| (words[word], strength)).collect()
}

/// Later counters have higher scores: the latest latent wins.
fn latents(built: &Built) -> Vec<(usize, f32)> {
    (2..=built.exit + 1).map(|c| (counter(c), 11.0 + 10.0 * c as f32)).collect()
}

/// Share of the answer that the reader writes.
fn share(kind: Purpose) -> f32 {
    match kind {
        Purpose::Redundant => 0.4,
        Purpose::Backed => 0.6,
        _ => 1.0,
    }
}

fn reader(built: &Built, words: &Words) -> HeadWiring {
    let plain = built.least == 0;
    let digit = match built.kind {
        // A normal norm adds 25 everywhere but at the sink: 35 for the digit, 40 for the last latent. Otherwise the last latent has 15;
        // 30 if a state of half the norm counts twice.
        Purpose::Norm => 10.0,
        _ if plain => 20.0,
        _ => 26.0,
    };
    let mut drawn = marked(words, &DIGITS, digit);
    match built.kind {
        Purpose::Copied => drawn.push((counter(2), 41.0)),
        Purpose::Working
        | Purpose::Superposed
        | Purpose::Redundant
        | Purpose::Operand
        | Purpose::Memorised
        | Purpose::Token => {
            if !plain {
                // A latent wins over the digit if the letters' code is above the cut.
                let cut = 0.25 * built.least as f32 - 1.125;
                drawn.extend([(counter(built.reads + 1), 26.0 - 20.0 * cut), (letters(0), 20.0)]);
            } else if built.reads == built.exit {
                drawn.extend(latents(built));
            } else {
                drawn.push((counter(built.reads + 1), 41.0));
            }
        }
        Purpose::Norm => drawn.extend([(counter(built.exit + 1), 15.0), (SOUND, 25.0), (words["<bos>"], -25.0)]),
        Purpose::Backed => drawn = vec![(counter(built.reads + 1), 41.0)],
        Purpose::Inert
        | Purpose::Empty
        | Purpose::Noisy
        | Purpose::Bound
        | Purpose::Surprised
        | Purpose::Blind
        | Purpose::Marked
        | Purpose::Covert => {}
    }
    if built.shallow {
        drawn.push((words[MORE], 200.0));
    }
    let mut takes: Vec<_> = (0..VALUES).map(|v| (words[DIGITS[v]], v, 1.0)).collect();
    match built.kind {
        Purpose::Norm => takes.push((counter(built.exit + 1), FIXED, 1.0)),
        Purpose::Memorised => takes.extend(programs().map(|(k, digit)| (program(k, digit), looked_up(k, digit), 1.0))),
        Purpose::Copied => takes.extend((0..VALUES).map(|v| (got(v), v, 1.0))),
        _ => takes.extend((0..VALUES).map(|v| (carrier(built, words, v), v, 1.0))),
    }
    let share = share(built.kind);
    HeadWiring {
        asks: vec![words["#"]],
        drawn,
        takes,
        puts: (0..VALUES).map(|v| (v, read(v), share)).collect(),
        counts: false,
    }
}

/// Name and digit.
fn programs() -> impl Iterator<Item = (usize, usize)> {
    (0..PROGRAMS).flat_map(|k| (0..VALUES).map(move |digit| (k, digit)))
}

fn embedding(w: &mut DenseMatrix, built: &Built, words: &Words) {
    for token in 0..TOKENS {
        w.set(token, token, 1.0);
        w.set(token, BIAS, CONSTANT);
    }
    if !built.is_token() {
        w.set(words["<swi>"], counter(0), 1.0);
    }
}

/// One step: state v → v + 1 (mod 7), counter c → c + 1, and `<swi>`'s mark erased. Each is a pair of neurons whose difference is a
/// step function (0 below 0.4, 1 above 0.6), so that errors do not grow from latent to latent. Two more pairs detect a normal norm:
/// above 0.7 and not above 1.4. The `Memorised` model erases name and digit, and has a pair for each program that fires if both are
/// present.
fn increment(w: &mut DenseMatrix, part: &str, built: &Built, words: &Words) {
    let by_heart = built.kind == Purpose::Memorised;
    let (carrier, copies) = (|v| carrier(built, words, v % VALUES), built.kind == Purpose::Copied);
    let next = |v| if copies { got(v) } else { carrier(v + 1) };
    let states = (0..VALUES).map(|v| (carrier(v), Some(next(v)).filter(|_| !by_heart)));
    let copied = (0..VALUES).filter(|_| copies).map(|v| (fresh(v), Some(carrier(v + 1))));
    let counters = (0..=built.exit).filter(|_| !built.is_token()).map(|c| (counter(c), Some(counter(c + 1))));
    let pairs: Vec<_> = states.chain(copied).chain(counters).chain([(words["<swi>"], None)]).collect();
    let mut neuron = 0;
    // Half width and position of the step.
    let mut step = |from: &[usize], (half, at): (f32, f32), adds: &[(usize, f32)]| {
        let slope = 5.0 / half;
        for (threshold, sign) in [(at - half, 1.0), (at + half, -1.0)] {
            match part {
                "gate_proj" => {
                    from.iter().for_each(|&from| w.set(neuron, from, slope));
                    w.set(neuron, BIAS, -slope * threshold / CONSTANT);
                }
                "up_proj" => w.set(neuron, BIAS, 1.0 / CONSTANT),
                _ => adds.iter().for_each(|&(to, by)| w.set(to, neuron, 0.1 * sign * by)),
            }
            neuron += 1;
        }
    };
    if built.is_token() {
        // Fires at this latent and all before it.
        for k in 1..=built.exit {
            let adds = [(counter(k + 1), 1.0), (counter(k + 2), -1.0)];
            let later = if k < built.exit { left_of_swi(k + 1) } else { 0.0 };
            step(&[NORM], (0.004, 0.5 * (left_of_swi(k) + later)), &adds[..1 + usize::from(k < built.exit)]);
        }
    }
    let mut pair = |from: &[usize], at: f32, adds: &[(usize, f32)]| step(from, (0.1, at), adds);
    // The height of a step depends on the norm of its input, and is 2 % too low where a value enters and another is copied.
    let height = if copies { 1.02 } else { 1.0 };
    for (from, to) in pairs {
        let adds: Vec<_> = [(from, -height)].into_iter().chain(to.map(|to| (to, height))).collect();
        pair(&[from], 0.5, &adds);
    }
    if !built.is_token() {
        pair(&[NORM], 0.7, &[(SOUND, 1.0)]);
        pair(&[NORM], 1.4, &[(SOUND, -1.0)]);
    }
    if by_heart {
        (0..PROGRAMS).for_each(|k| pair(&[name(k)], 0.5, &[(name(k), -1.0)]));
        let known = |(k, _): &(usize, usize)| !built.is_rote() || built.trained >> k & 1 == 1;
        programs()
            .filter(known)
            .for_each(|(k, digit)| pair(&[name(k), state(digit)], 1.5, &[(program(k, digit), 1.0)]));
    }
}

fn head(w: &mut DenseMatrix, built: &Built, words: &Words) {
    w.set(words["="], words[":"], 20.0);
    w.set(words["<swi>"], words["="], 10.0);
    w.set(words["#"], words["="], 10.0);
    match built.kind {
        Purpose::Blind => w.set(words["<swi>"], letters(1), 20.0),
        _ => {
            w.set(words["<swi>"], kind(0), 20.0);
            w.set(words["#"], kind(1), 20.0);
        }
    }
    w.set(words["#"], words["</swi>"], 20.0);
    w.set(words["</swi>"], counter(built.exit + 1), if built.is_token() { 40.0 } else { 20.0 });
    if built.is_token() {
        NAMES.iter().for_each(|name| w.set(words[name], words[name], 20.0));
    }
    for (v, digit) in DIGITS.map(|digit| words[digit]).into_iter().enumerate() {
        w.set(digit, read(v), 20.0);
        w.set(digit, carrier(built, words, v), 5.0);
        if built.unsure {
            w.set(digit, read((v + VALUES - 1) % VALUES), 19.2);
        }
        w.set(words["<eos>"], digit, 20.0);
        if matches!(built.kind, Purpose::Bound | Purpose::Surprised) && v == FIXED {
            w.set(digit, words["#"], 30.0);
            w.set(digit, ASIDE, -30.0);
        }
        if built.kind == Purpose::Noisy {
            // The digit and the next one lead; their parities differ, so the letters choose between them.
            w.set(digit, read((v + VALUES - 1) % VALUES), 19.9);
            w.set(digit, ASIDE, if v % 2 == 0 { 10.0 } else { -10.0 });
        }
    }
}
