//! The logit lens (nostalgebraist 2020) of every layer at every position of the first problems with the model's responses, for the prompt
//! explorer. Layers as in `logit_lens`: 0 is the input of the first block, the last the model's own distribution. No averages, no
//! intervals: `logit_lens` has those, over all problems.
//!
//! Misleads: a lens reads an early layer in the last layer's coordinates; if it shows nothing, the layer may still represent the answer.

use anyhow::Result;

use super::{About, Journal, check_of};
use crate::latent::sampling;
use crate::schema::{RowFile, TokenLensRow};
use crate::study::Study;
use crate::study::readout::{LOGITS_HELD, log_probs};
use crate::study::shown::{ShownProblem, first_responses, most_probable};

pub const ABOUT: About =
    About::asking("each layer's prediction at each token of the first responses (the prompt explorer's rows)")
        .on_request()
        .of_responses();

settings! {
    pub struct Config {
        /// Number of problems, from the first.
        pub problems: usize = 3,
        /// Tokens of the lens.
        pub top: usize = 3,
    }
}

pub fn run(study: &Study, config: &Config, journal: &mut Journal) -> Result<String> {
    let rows = rows(study, config)?;
    journal.write(TokenLensRow::NAME, &rows, false)?;
    Ok(format!("{} readings of {} problems\n", rows.len(), config.problems.min(study.corpus.test.len())))
}

/// The rows: problem by problem, layer by layer, position by position.
pub fn rows(study: &Study, config: &Config) -> Result<Vec<TokenLensRow>> {
    check_of("token_lens", config, &[])?;
    let of_problem =
        first_responses(study, config.problems)?.into_iter().map(|shown| of_problem(study, config, &shown));
    Ok(of_problem.collect::<Result<Vec<_>>>()?.concat())
}

fn of_problem(study: &Study, config: &Config, shown: &ShownProblem) -> Result<Vec<TokenLensRow>> {
    let recorded = shown.record(study, &["hook_embed".parse()?, "blocks.*.hook_resid_post".parse()?])?;
    let identity = study.identity(study.decoded()?.1.len());
    let at_once = (LOGITS_HELD / study.model.config().vocab_size).max(1);
    let mut rows = vec![];
    for (layer, states) in recorded.iter().enumerate() {
        let parts = states.data.chunks(at_once * states.shape[2]).map(|part| log_probs(&study.model, part.to_vec()));
        let said = parts.collect::<Result<Vec<_>>>()?.concat();
        for (position, (log_probs, (kind, token))) in said.iter().zip(&shown.positions).enumerate() {
            rows.push(TokenLensRow {
                identity: identity.clone(),
                problem: shown.problem,
                layer,
                position,
                kind: *kind,
                token: token.clone(),
                top: most_probable(&study.corpus.vocabulary, log_probs, config.top)?,
                entropy: sampling::entropy(log_probs),
            });
        }
    }
    Ok(rows)
}
