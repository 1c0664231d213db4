//! A model's chat template, rendered for one user message like `transformers`' `apply_chat_template`.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::jinja::{environment, plain, seen};
use super::jinja_source::METHOD;
use super::{Template, Vocabulary};
use crate::store::hex;
use crate::tokenizer::Templates;

/// Called by a template that writes today's date.
const DATE: &str = "strftime_now";

/// A template with its variables.
#[derive(Clone, Debug)]
pub struct Chat {
    jinja: String,
    /// The template's file.
    origin: String,
    /// `bos_token` etc. from the model's files.
    tokens: Map<String, Value>,
    /// The caller's variables: `enable_thinking`, `date_string`, `tools`, …
    arguments: Map<String, Value>,
    /// The template for callers with tools, if none was named.
    with_tools: Option<String>,
}

/// The name of `transformers`' template for tools.
const WITH_TOOLS: &str = "tool_use";

/// Reserved arguments: another value would replace the prompt.
const NOT_ASKED: [&str; 2] = ["messages", "continue_final_message"];

impl Chat {
    pub(super) fn new(templates: &Templates, name: Option<&str>, tokens: &Map<String, Value>) -> Result<Self> {
        let jinja = templates.choose(name)?.to_owned();
        let with_tools = if name.is_none() { templates.get(WITH_TOOLS).map(str::to_owned) } else { None };
        Ok(Self { jinja, origin: templates.origin.clone(), tokens: tokens.clone(), arguments: Map::new(), with_tools })
    }

    /// The chat with further arguments of the template.
    ///
    /// # Errors
    /// An argument that replaces the message itself.
    pub fn with(mut self, arguments: Map<String, Value>) -> Result<Self> {
        if let Some(name) = NOT_ASKED.into_iter().find(|name| arguments.contains_key(*name)) {
            bail!("the chat template's `{name}` cannot be set: the prompt is one user message");
        }
        self.arguments.extend(arguments);
        if self.arguments.get("tools").is_some_and(|tools| !tools.is_null()) {
            self.jinja = self.with_tools.take().unwrap_or(self.jinja);
        }
        Ok(self)
    }

    /// The text of one user message and the beginning of the answer. The template handles spaces around the message.
    ///
    /// # Errors
    /// A template that is not Jinja, or rejects the message.
    pub fn prompt(&self, message: &str) -> Result<String> {
        self.render(&json!([{ "role": "user", "content": message }]), true)
    }

    fn render(&self, messages: &Value, generation: bool) -> Result<String> {
        let mut names = self.tokens.clone();
        for (name, value) in [
            ("messages", messages),
            ("tools", &Value::Null),
            ("documents", &Value::Null),
            ("add_generation_prompt", &json!(generation)),
        ] {
            names.insert(name.to_owned(), value.clone());
        }
        names.extend(self.arguments.clone());
        let jinja = plain(&self.jinja);
        let render = || environment()?.template_from_named_str("chat template", &jinja)?.render(seen(&json!(names)));
        render().map_err(|error| {
            anyhow!("{}: the chat template cannot be rendered: {}", self.origin, describe_error(&error))
        })
    }

    /// Ids of [`Self::prompt`]. No BOS is added: the template writes it.
    pub fn encode(&self, vocabulary: &Vocabulary, message: &str) -> Result<Vec<u32>> {
        vocabulary.encode(&self.prompt(message)?)
    }

    /// The id that closes an answer: the first special token that the template writes after one.
    ///
    /// # Errors
    /// A template without such a token, with a vocabulary without end of text.
    pub(super) fn end_id(&self, vocabulary: &Vocabulary) -> Result<u32> {
        const ANSWER: &str = "switchyard-answer";
        let messages = json!([{ "role": "user", "content": "1" }, { "role": "assistant", "content": ANSWER }]);
        let behind = self.render(&messages, false).ok();
        let behind = behind.as_deref().and_then(|text| text.rsplit_once(ANSWER)).map(|(_, behind)| behind);
        let ids = vocabulary.encode(behind.unwrap_or_default())?;
        let end = ids.into_iter().find(|id| vocabulary.is_special(*id)).or(vocabulary.eos());
        end.with_context(|| {
            format!("{}: names no eos_token, and the chat template closes no answer", vocabulary.source().display())
        })
    }

    /// Description for users: which template, and which parts depend on the date.
    pub fn describe(&self) -> String {
        let arguments =
            if self.arguments.is_empty() { String::new() } else { format!(" with {}", json!(self.arguments)) };
        let date = if self.is_dated() { ", which may write today's date (UTC)" } else { "" };
        format!("the model's own chat template ({}){arguments}{date}", self.origin)
    }

    /// For manifests.
    pub fn described(&self) -> Result<Value> {
        let mut parts = json!({ "chat_template": self.origin, "sha256": hex(&Sha256::digest(&self.jinja)) });
        if !self.arguments.is_empty() {
            parts["arguments"] = json!(self.arguments);
        }
        if self.is_dated() {
            // A sample prompt, because it may differ on another day.
            parts["prompt"] = json!(self.prompt("1")?);
        }
        Ok(parts)
    }

    fn is_dated(&self) -> bool {
        self.jinja.contains(DATE)
    }
}

/// The template arguments of the recipe's forms that use the model's own template.
pub(super) fn arguments(form: Template) -> Map<String, Value> {
    let thinking = form.is_without_thinking().then(|| ("enable_thinking".to_owned(), json!(false)));
    thinking.into_iter().collect()
}

/// An error with its causes, on one line.
fn describe_error(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text.replace(METHOD, "")
}
