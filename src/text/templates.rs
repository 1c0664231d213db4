//! Prompt templates: how a question becomes a prompt, and which token closes a response.
//!
//! A recipe names a form. The `chat` forms use the model's own template ([`Chat`]); the Qwen3 and SmolLM2 forms are those of these models
//! for one user message, for files without a template. `boxed` appends the instruction of Qwen2.5-Math's README to the question.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Vocabulary;
use super::chat::{Chat, arguments};
use super::words::{BOS, EOS};

pub(crate) const BOXED_INSTRUCTION: &str = "Please reason step by step, and put your final answer within \\boxed{}.";
const SMOLLM2_SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
const TURN_END: &str = "<|im_end|>";

names! {
    /// A prompt template, by its name in a recipe.
    pub enum Template {
        /// The question and a line break: base models on real problems.
        Plain = "plain",
        /// `<bos>` and the question: generated tasks.
        Words = "words",
        /// The question and the boxed instruction, on separate lines.
        Boxed = "boxed",
        /// Qwen3's chat form; the model opens `<think>` itself.
        Qwen3 = "qwen3",
        /// Qwen3's chat form with the empty thought that turns thinking off.
        Qwen3NoThinking = "qwen3-no-thinking",
        Qwen3Boxed = "qwen3-boxed",
        Qwen3NoThinkingBoxed = "qwen3-no-thinking-boxed",
        SmolLm2 = "smollm2",
        SmolLm2Boxed = "smollm2-boxed",
        /// The model's own chat template.
        Chat = "chat",
        ChatBoxed = "chat-boxed",
        /// The model's own chat template with `enable_thinking` off.
        ChatNoThinking = "chat-no-thinking",
        ChatNoThinkingBoxed = "chat-no-thinking-boxed",
    }
}

impl Template {
    fn is_boxed(self) -> bool {
        use Template::*;
        matches!(self, Boxed | Qwen3Boxed | Qwen3NoThinkingBoxed | SmolLm2Boxed | ChatBoxed | ChatNoThinkingBoxed)
    }

    pub(super) fn is_without_thinking(self) -> bool {
        use Template::*;
        matches!(self, Qwen3NoThinking | Qwen3NoThinkingBoxed | ChatNoThinking | ChatNoThinkingBoxed)
    }

    /// Whether it uses chat turns.
    pub(crate) fn is_chat(self) -> bool {
        !matches!(self, Template::Plain | Template::Words | Template::Boxed)
    }

    /// Whether the template comes from the model's files.
    fn is_own(self) -> bool {
        use Template::*;
        matches!(self, Chat | ChatBoxed | ChatNoThinking | ChatNoThinkingBoxed)
    }

    /// The same form with the model's own template; a form without chat is unchanged.
    #[must_use]
    pub(crate) fn with_model_template(self) -> Self {
        match (self.is_chat(), self.is_without_thinking(), self.is_boxed()) {
            (false, ..) => self,
            (true, false, false) => Template::Chat,
            (true, false, true) => Template::ChatBoxed,
            (true, true, false) => Template::ChatNoThinking,
            (true, true, true) => Template::ChatNoThinkingBoxed,
        }
    }

    fn instruct(self, question: &str) -> String {
        if self.is_boxed() { format!("{question}\n{BOXED_INSTRUCTION}") } else { question.to_owned() }
    }

    /// The text before the response, for a built-in form.
    pub fn prompt(self, question: &str) -> String {
        use Template::*;
        let asked = self.instruct(question.trim());
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
        if self.is_without_thinking() {
            prompt.push_str("<think>\n\n</think>\n\n");
        }
        prompt
    }

    /// The token that closes a response; `None`: the vocabulary's end of text.
    pub fn end(self) -> Option<&'static str> {
        match self {
            Template::Words => Some(EOS),
            _ if self.is_chat() => Some(TURN_END),
            _ => None,
        }
    }
}

/// A form, with the model's own template if it needs one.
#[derive(Clone, Debug)]
pub struct Prompts {
    form: Template,
    chat: Option<Chat>,
}

impl From<Template> for Prompts {
    /// A built-in form.
    fn from(form: Template) -> Self {
        Self { form, chat: None }
    }
}

impl Prompts {
    /// The form with a model's template.
    ///
    /// # Errors
    /// A `chat` form with files that have no chat template.
    pub fn new(form: Template, vocabulary: &Vocabulary) -> Result<Self> {
        if !form.is_own() {
            return Ok(form.into());
        }
        let chat = vocabulary.chat(None)?;
        let chat = chat.with_context(|| {
            format!("{}: has no chat template, but `data.template` is {}", vocabulary.source().display(), json!(form))
        })?;
        Ok(Self { form, chat: Some(chat.with(arguments(form))?) })
    }

    /// The text before the response.
    pub fn prompt(&self, question: &str) -> Result<String> {
        match &self.chat {
            Some(chat) => chat.prompt(&self.form.instruct(question)),
            None => Ok(self.form.prompt(question)),
        }
    }

    /// Ids of the prompt. A chat template writes the beginning of the text itself; other forms get the tokenizer's prefix.
    pub fn encode_prompt(&self, vocabulary: &Vocabulary, question: &str) -> Result<Vec<u32>> {
        let text = self.prompt(question)?;
        if self.chat.is_some() || self.form == Template::Words {
            return vocabulary.encode(&text);
        }
        Ok([vocabulary.leading_bos(), vocabulary.encode(&text)?].concat())
    }

    /// The id that closes a response.
    pub fn end_id(&self, vocabulary: &Vocabulary) -> Result<u32> {
        match (&self.chat, self.form.end()) {
            (Some(chat), _) => chat.end_id(vocabulary),
            (None, Some(token)) => vocabulary.required_id(token),
            (None, None) => vocabulary.eos().with_context(|| {
                let form = self.form;
                format!("{}: names no eos_token, and template {form:?} needs one", vocabulary.source().display())
            }),
        }
    }

    /// Every id that ends a generation: the one that closes a response and, with the model's own template, all that the model's files name.
    pub(crate) fn stops(&self, vocabulary: &Vocabulary) -> Result<Vec<u32>> {
        let end = self.end_id(vocabulary)?;
        let further = self.chat.iter().flat_map(|_| vocabulary.stops()).copied().filter(|id| *id != end);
        Ok(std::iter::once(end).chain(further).collect())
    }

    /// For manifests: the form's name, or a description of the model's own template.
    pub(crate) fn described(&self) -> Result<Value> {
        let Some(chat) = &self.chat else { return Ok(json!(self.form)) };
        let mut parts = chat.described()?;
        parts["form"] = json!(self.form);
        Ok(parts)
    }

    /// Description for users: the template, and why it is not the model's own.
    pub(crate) fn describe(&self, vocabulary: &Vocabulary) -> String {
        let form = json!(self.form);
        match &self.chat {
            Some(chat) => chat.describe(),
            None if vocabulary.has_chat() => format!("the form {form}, not the model's own chat template"),
            None => format!("the form {form}: the model's files have no chat template"),
        }
    }
}
