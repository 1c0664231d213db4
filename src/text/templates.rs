//! How a question becomes a prompt, and what closes a response. Knows the spelling of templates, not where ids come from.
//!
//! The Qwen3 and SmolLM2 forms are those of the models' own chat templates for one user message. `boxed` is the
//! instruction of Qwen2.5-Math's README, put after the question.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Vocabulary;
use super::words::{BOS, EOS};

pub(crate) const BOXED_INSTRUCTION: &str = "Please reason step by step, and put your final answer within \\boxed{}.";
const SMOLLM2_SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
const TURN_END: &str = "<|im_end|>";

/// A prompt template, by its name in a recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Template {
    /// The question and a line break: base models on real problems.
    Plain,
    /// `<bos>` and the question: generated tasks.
    Words,
    /// The question and the boxed instruction, a line each.
    Boxed,
    /// Qwen3's chat form; the model opens `<think>` itself.
    Qwen3,
    /// Qwen3's chat form with the empty thought that turns thinking off.
    Qwen3NoThinking,
    Qwen3Boxed,
    Qwen3NoThinkingBoxed,
    #[serde(rename = "smollm2")]
    SmolLm2,
    #[serde(rename = "smollm2-boxed")]
    SmolLm2Boxed,
}

impl Template {
    pub const ALL: [Template; 9] = [
        Template::Plain,
        Template::Words,
        Template::Boxed,
        Template::Qwen3,
        Template::Qwen3NoThinking,
        Template::Qwen3Boxed,
        Template::Qwen3NoThinkingBoxed,
        Template::SmolLm2,
        Template::SmolLm2Boxed,
    ];

    /// The form that a model's own chat template (Jinja) gives one user message, told by the marks it writes. None for
    /// a form that is not one of ours.
    pub(crate) fn of_chat_template(jinja: &str) -> Option<Self> {
        if !jinja.contains("<|im_start|>") {
            None
        } else if jinja.contains("named SmolLM, trained by Hugging Face") {
            Some(Template::SmolLm2)
        } else if jinja.contains("enable_thinking") || jinja.contains("<think>") {
            Some(Template::Qwen3)
        } else {
            None
        }
    }

    fn is_boxed(self) -> bool {
        use Template::*;
        matches!(self, Boxed | Qwen3Boxed | Qwen3NoThinkingBoxed | SmolLm2Boxed)
    }

    fn is_chat(self) -> bool {
        !matches!(self, Template::Plain | Template::Words | Template::Boxed)
    }

    /// The text that stands before the response.
    pub fn prompt(self, question: &str) -> String {
        use Template::*;
        let mut asked = question.trim().to_string();
        if self.is_boxed() {
            asked.push('\n');
            asked.push_str(BOXED_INSTRUCTION);
        }
        if self == Words {
            return format!("{BOS} {asked}");
        }
        if !self.is_chat() {
            return format!("{asked}\n");
        }
        let mut prompt = String::new();
        if matches!(self, SmolLm2 | SmolLm2Boxed) {
            // Writing to a String cannot fail.
            let _ = write!(prompt, "<|im_start|>system\n{SMOLLM2_SYSTEM}{TURN_END}\n");
        }
        let _ = write!(prompt, "<|im_start|>user\n{asked}{TURN_END}\n<|im_start|>assistant\n");
        if matches!(self, Qwen3NoThinking | Qwen3NoThinkingBoxed) {
            prompt.push_str("<think>\n\n</think>\n\n");
        }
        prompt
    }

    /// The token that closes a response. None where it is the vocabulary's own end of text.
    pub fn end(self) -> Option<&'static str> {
        match self {
            Template::Words => Some(EOS),
            _ if self.is_chat() => Some(TURN_END),
            _ => None,
        }
    }

    /// Ids of the prompt. A vocabulary that says `add_bos_token` gets its `bos` in front.
    pub fn encode_prompt(self, vocabulary: &Vocabulary, question: &str) -> Result<Vec<u32>> {
        let mut ids = if self == Template::Words { Vec::new() } else { vocabulary.leading_bos() };
        ids.extend(vocabulary.encode(&self.prompt(question))?);
        Ok(ids)
    }

    /// The id that closes a response.
    pub fn end_id(self, vocabulary: &Vocabulary) -> Result<u32> {
        match self.end() {
            Some(token) => vocabulary.required_id(token),
            None => vocabulary.eos().with_context(|| {
                format!("{}: names no eos_token, and template {self:?} needs one", vocabulary.source().display())
            }),
        }
    }

    /// Ids of a whole response, closed. Prompt and response are encoded apart, so that their border is a token's border.
    pub fn encode_response(self, vocabulary: &Vocabulary, solution: &str) -> Result<Vec<u32>> {
        let mut ids = vocabulary.encode(solution)?;
        ids.push(self.end_id(vocabulary)?);
        Ok(ids)
    }
}
