//! One record per problem, for the token histogram (fig:token-dist), its CDF (fig:token-cdf) and further questions about single
//! problems. Greedy, with the evaluation's settings.

use anyhow::Result;

use super::About;
pub use super::NoSettings as Config;
use crate::schema::OutcomeRow;
use crate::study::Study;

pub const ABOUT: About = About::asking("every problem's outcome and length (fig:token-dist, fig:token-cdf)")
    .of_grpo_start()
    .of_responses()
    .of_text_alone();

pub fn rows(study: &Study, _config: &Config) -> Result<Vec<OutcomeRow>> {
    let (scores, traces) = study.decoded()?;
    let corpus = &study.corpus;
    let row = |(outcome, trace): (&crate::evaluation::Outcome, &crate::latent::Trace)| -> Result<OutcomeRow> {
        let problem = &corpus.test[outcome.problem];
        let text = corpus.vocabulary.decode_visible(&trace.text())?;
        Ok(OutcomeRow {
            identity: study.identity(traces.len()),
            problem: outcome.problem,
            id: problem.id.clone(),
            level: outcome.level,
            subject: outcome.subject.clone(),
            correct: outcome.correct,
            switched: outcome.switched,
            blocks: trace.blocks().len(),
            natural_exits: Some(
                trace.blocks().iter().filter(|block| !block.forced && !block.p_exit.is_empty()).count(),
            ),
            visible_tokens: outcome.visible_tokens,
            latent_calls: outcome.latent_calls,
            truncated: outcome.truncated,
            gold: problem.answer.clone(),
            answer: corpus.answer(&problem.answer, &text),
            grader: Some(corpus.grading.grader(&problem.answer).to_string()),
            rule: Some(corpus.verdict(&problem.answer, &text).rule.to_string()),
        })
    };
    scores.outcomes.iter().zip(traces).map(row).collect()
}

/// Quartiles of the lengths.
pub fn table(rows: &[OutcomeRow]) -> String {
    let mut tokens: Vec<usize> = rows.iter().map(|r| r.visible_tokens).collect();
    tokens.sort_unstable();
    let [least, low, median, high, most] = [0, 1, 2, 3, 4].map(|share| tokens[(tokens.len() - 1) * share / 4]);
    let (problems, switched) = (rows.len(), rows.iter().filter(|r| r.switched).count());
    format!(
        "{problems} problems, {switched} switched; visible tokens: least {least}, quartiles {low} / {median} / {high}, most {most}\n"
    )
}
