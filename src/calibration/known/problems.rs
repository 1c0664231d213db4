//! The problems of a hand-built model, and a study of the model on them.

use anyhow::Result;
use burn::tensor::Device;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::weights::{LETTERS, MARKS, MORE, NAMES, mark, model, vocabulary};
use super::{Built, Purpose, VALUES};
use crate::corpus::Corpus;
use crate::grade::{Grader, Grading};
use crate::latent::Reasoning;
use crate::method::Recipe;
use crate::study::Study;
use crate::study::circuits::pairs::PairPrompts;
use crate::tasks::{Fact, StepValue};
use crate::text::{self, Problem, Sample, Template};

/// The parts of a problem.
struct Ingredients {
    letters: [usize; 2],
    digit: usize,
    switches: bool,
    /// Chooses between two answers if neither follows from the rest.
    coin: bool,
    /// An additional letter.
    more: Option<&'static str>,
}

/// Parts of a model's problems.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Trained,
    HeldOut,
    /// Problems with one more letter in the question.
    Deeper,
}

fn draw(built: &Built, part: Part, rng: &mut ChaCha8Rng) -> Ingredients {
    let of = if built.is_marked() { MARKS } else { LETTERS.len() };
    let (a, mut b) = (rng.random_range(0..of), rng.random_range(0..of));
    if built.trained != 0 {
        let is_of_part = |b: &usize| (built.trained >> b & 1 == 1) == (part == Part::Trained);
        let letters: Vec<usize> = (0..LETTERS.len()).filter(is_of_part).collect();
        b = letters[b % letters.len()];
    }
    // The noisy model answers the digit or the next one, which must exist.
    let digits = if built.kind == Purpose::Noisy { VALUES - 1 } else { VALUES };
    let (digit, switches, coin) = (rng.random_range(0..digits), rng.random::<bool>(), rng.random());
    let more = (part == Part::Deeper).then(|| if built.shallow { MORE } else { LETTERS[a] });
    let twice = built.kind == Purpose::Superposed || built.is_marked();
    Ingredients { letters: [a, if twice { a } else { b }], digit, switches: switches || built.is_marked(), coin, more }
}

fn question(built: &Built, Ingredients { letters: [a, b], digit, switches, more, .. }: &Ingredients) -> String {
    let second = match built.kind {
        Purpose::Redundant | Purpose::Backed if *switches => NAMES[built.state(*digit, built.reads)],
        Purpose::Memorised => NAMES[*b],
        Purpose::Marked | Purpose::Covert => mark(*b),
        _ => LETTERS[*b],
    };
    let first = if built.is_marked() { mark(*a) } else { LETTERS[*a] };
    let more = more.map_or_else(String::new, |more| format!("{more} "));
    format!("{more}{first} {second} {} {digit} :", if *switches { "s" } else { "t" })
}

fn problem(built: &Built, number: usize, drawn: &Ingredients) -> Problem {
    let Ingredients { letters, digit, switches, coin, .. } = *drawn;
    let answer = match (switches, built.kind) {
        (true, Purpose::Noisy) => digit + usize::from(coin),
        (true, _) => built.answer(digit, letters),
        (false, _) => digit,
    };
    let (clause, value) = match switches {
        true => {
            let mut states: Vec<usize> = (1..=built.exit).map(|k| built.state(digit, k)).collect();
            // The last step's result is not in the state: its operation follows the block, or it is looked up.
            let after = matches!(built.kind, Purpose::Operand | Purpose::Memorised);
            let result = if after { answer } else { states[built.exit - 1] };
            states[built.exit - 1] = result;
            (states.iter().map(ToString::to_string).collect(), result)
        }
        false => (vec!["#".to_owned(), digit.to_string()], digit),
    };
    let words = 1..1 + clause.len();
    let end = if switches { format!(" # {answer}") } else { String::new() };
    let step = |value: usize, words: std::ops::Range<usize>, clause: &str| StepValue {
        value: Fact::Number(value as i64),
        clause: clause.to_owned(),
        value_words: words.end - 1..words.end,
        expression: None,
        words,
    };
    let (clause, mut steps) = (clause.join(" "), vec![]);
    if built.kind == Purpose::Superposed {
        steps.push(step(letters[0], 0..1, "="));
    }
    steps.push(step(value, words, &clause));
    Problem {
        id: format!("known-{number}"),
        question: question(built, drawn),
        solution: format!("= {clause}{end}"),
        answer: answer.to_string(),
        subject: Some(if switches { "switch" } else { "text" }.to_owned()),
        level: Some(1),
        // A marked problem is its own group, because its mark can be memorised. For other models letters are shared knowledge.
        group: match built.kind {
            // The answer of a text problem is in its question.
            Purpose::Memorised if !built.is_rote() || switches => Some(format!("{} {digit}", letters[1])),
            Purpose::Marked | Purpose::Covert => Some(number.to_string()),
            _ => None,
        },
        steps,
        spans: None,
    }
}

/// Prompts of `n` pairs of switch problems that differ in the digit (and its consequences in the prompt).
pub(crate) fn pairs(built: &Built, study: &Study, n: usize, seed: u64) -> Result<Vec<PairPrompts>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let corpus = &study.corpus;
    let prompt = |drawn: &Ingredients| corpus.template.encode_prompt(&corpus.vocabulary, &question(built, drawn));
    let mut pair = |_| {
        let clean = Ingredients { switches: true, ..draw(built, Part::HeldOut, &mut rng) };
        let digit = (clean.digit + rng.random_range(1..VALUES)) % VALUES;
        Ok((prompt(&clean)?, prompt(&Ingredients { digit, ..clean })?))
    };
    (0..n).map(&mut pair).collect()
}

/// A study of the model with `n` problems and their spans, about half of them switch problems. The seed fixes the problems and the
/// draws of experiments.
pub fn study(built: &Built, n: usize, seed: u64, device: &Device) -> Result<Study> {
    let corpus = corpus(built, Part::HeldOut, n, seed)?;
    let tagged = corpus.test.iter().map(|p| {
        let sample = Sample::new(p, &corpus.vocabulary, &corpus.template)?;
        let spans = if p.subject.as_deref() == Some("switch") {
            sample.clauses[sample.clauses.len() - 1..].to_vec()
        } else {
            vec![]
        };
        Ok((sample, spans))
    });
    let tagged: Vec<_> = tagged.collect::<Result<_>>()?;
    let mut recipe = Recipe::resolve("smoke", &[])?;
    recipe.name = "known".into();
    (recipe.latent.c, recipe.latent.k_max, recipe.annotate.spans.max_stage) = (1.0, built.exit, built.exit);
    let evaluation = &mut recipe.evaluation;
    (evaluation.problems, evaluation.k_min, evaluation.k_cap, evaluation.max_new_tokens) = (n, 1, 8, 24);
    let name = format!("known/{:?}", built.kind).to_lowercase();
    let mut study = Study::new(name, model(built, device)?, corpus, recipe, Reasoning::default());
    (study.seed, study.device) = (seed, device.clone());
    Ok(study.with_tags(tagged))
}

/// `n` problems that the model was trained on and `n` with one more letter, each as the held-out part of a corpus; `None` if the
/// construction does not determine what was trained.
pub fn training(built: &Built, n: usize, seed: u64) -> Result<Option<[Corpus; 2]>> {
    let of = |part, other| corpus(built, part, n, seed ^ other);
    (built.trained != 0).then(|| Ok([of(Part::Trained, 1)?, of(Part::Deeper, 2)?])).transpose()
}

fn corpus(built: &Built, part: Part, n: usize, seed: u64) -> Result<Corpus> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let vocabulary = vocabulary()?;
    let switch = vocabulary.switch()?;
    let test: Vec<Problem> = (0..n).map(|i| problem(built, i, &draw(built, part, &mut rng))).collect();
    let template = text::Prompts::from(Template::Words);
    let prompts = test.iter().map(|p| template.encode_prompt(&vocabulary, &p.question));
    Ok(Corpus {
        switch,
        end: template.end_id(&vocabulary)?,
        stops: template.stops(&vocabulary)?,
        template: template.clone(),
        train: vec![],
        train_answers: vec![],
        rewarded: vec![],
        test_prompts: prompts.collect::<Result<_>>()?,
        test,
        dropped: 0,
        grading: Grading::by(Grader::Exact),
        is_task: true,
        budgets: false,
        told: vec![],
        vocabulary,
    })
}
