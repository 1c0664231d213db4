//! Every held-out solution in two forms, with latents at its tagged spans and as plain text, so that the same step can be compared in
//! both. Knows ids and positions, no model.

use std::ops::Range;

use anyhow::{Result, ensure};

use crate::latent::Sequence;
use crate::schema::Form;
use crate::study::Study;
use crate::text::{Problem, Sample};

/// The role of a position. The k-th token of a clause has the role of the k-th latent step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Prompt,
    /// A response token outside clauses; in a block, text that its latents did not replace.
    Text,
    Swi,
    /// Latent step or clause token: index from 0.
    Step(usize),
    SwiEnd,
}

/// A position's role and its block: the one that contains it, else the last one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub role: Role,
    pub block: Option<usize>,
}

/// A known token and its position in the text form; the position before it predicts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownToken {
    pub token: u32,
    pub at: usize,
}

/// A tagged clause in both forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Positions in the form with latents.
    pub swi: usize,
    pub latents: Range<usize>,
    pub end: usize,
    /// Positions in the text form.
    pub clause: Range<usize>,
    /// The value that the clause states, if the problem's steps are known.
    pub value: Option<KnownToken>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolutionForms {
    pub problem: usize,
    pub prompt: usize,
    pub latents: Sequence,
    pub text: Sequence,
    pub blocks: Vec<Block>,
    /// The first token of the gold answer.
    pub answer: Option<KnownToken>,
}

impl SolutionForms {
    pub fn sequence(&self, form: Form) -> &Sequence {
        match form {
            Form::Latents => &self.latents,
            Form::Text => &self.text,
        }
    }

    /// The position that predicts the answer's first token, if the answer comes after every block.
    pub fn answer_decided(&self, form: Form) -> Option<usize> {
        let at = self.answer?.at;
        let last = self.blocks.last().map_or(0, |block| block.clause.end);
        let at = match form {
            Form::Text => at,
            // After the last block both forms are the same, so positions are counted from the end.
            Form::Latents if at >= last => at + self.latents.ids.len() - self.text.ids.len(),
            Form::Latents => return None,
        };
        Some(at - 1)
    }

    /// The role of every position of a form.
    pub fn roles(&self, form: Form) -> Vec<At> {
        let at = |p: usize| At { role: if p < self.prompt { Role::Prompt } else { Role::Text }, block: None };
        let mut roles: Vec<At> = (0..self.sequence(form).ids.len()).map(at).collect();
        for (number, block) in self.blocks.iter().enumerate() {
            let (from, steps) = match form {
                Form::Latents => (block.swi, &block.latents),
                Form::Text => (block.clause.start, &block.clause),
            };
            roles[from..].iter_mut().for_each(|at| at.block = Some(number));
            steps.clone().enumerate().for_each(|(k, p)| roles[p].role = Role::Step(k));
            if form == Form::Latents {
                roles[block.swi].role = Role::Swi;
                roles[block.end].role = Role::SwiEnd;
            }
        }
        roles
    }
}

/// The held-out solutions with a tagged span, at most `limit`, in the order of the problems.
pub fn solution_forms(study: &Study, limit: usize) -> Result<Vec<SolutionForms>> {
    let (staged, tagged) = (study.staged()?, study.tagged()?);
    let corpus = &study.corpus;
    let mut out = vec![];
    for (problem, (sample, spans)) in tagged.iter().enumerate() {
        let (latents, solution) = (&staged.sequences[problem], &staged.solutions[problem]);
        if spans.is_empty() || out.len() == limit {
            continue;
        }
        ensure!(spans.len() == solution.blocks.len(), "{}: a tagged span has no block", sample.id);
        let (question, prompt) = (&corpus.test[problem], solution.prompt);
        let token = |t: usize| KnownToken { token: sample.response[t], at: prompt + t };
        let both_forms = |(span, block): (&Range<usize>, &Range<usize>)| {
            let steps = block.clone().filter(|&p| latents.is_latent(p)).count();
            Block {
                swi: block.start,
                latents: block.start + 1..block.start + 1 + steps,
                end: block.end,
                clause: prompt + span.start..prompt + span.end,
                value: value(question, sample, span).map(token),
            }
        };
        let answered = |at| sample.answer.clone()?.find(|&t| sample.offsets[t].1 > at);
        let text = sample.prompt.iter().chain(&sample.response).copied().collect();
        out.push(SolutionForms {
            problem,
            prompt,
            latents: latents.clone(),
            text: Sequence::new(problem, text, prompt, Some(corpus.switch.latent))?,
            blocks: spans.iter().zip(&solution.blocks).map(both_forms).collect(),
            answer: question.answer_at().and_then(answered).map(token),
        });
    }
    Ok(out)
}

/// The response token inside a span at which the value of the span's step begins.
pub(super) fn value(problem: &Problem, sample: &Sample, span: &Range<usize>) -> Option<usize> {
    // A clause that was not found among the tokens would shift the others.
    if sample.clauses.len() != problem.steps.len() {
        return None;
    }
    let step = sample.clauses.iter().position(|c| c.start < span.end && span.start < c.end)?;
    let bytes = problem.word_bytes(problem.steps[step].value_words.clone())?;
    span.clone().find(|&t| sample.offsets[t].0 < bytes.end && sample.offsets[t].1 > bytes.start)
}
