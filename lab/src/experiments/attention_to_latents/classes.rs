//! Which positions look, and what they look at. Knows roles of positions; no tensors.

use crate::nth::Nth;
use crate::schema::Form;
use crate::study::circuits::{At, Role};

/// A class of queries or keys, as it is written in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class {
    pub role: Role,
    /// Of a query, the position that decides the answer.
    pub answer: bool,
    /// Of a key: blocks between it and the query, 0 for the query's own or, outside a block, for the last one before it;
    /// [`FAR`] and more are one class. `None` for keys outside blocks.
    pub back: Option<usize>,
}

/// Blocks further back than this are not told apart.
pub(crate) const FAR: usize = 2;

impl Class {
    /// `latent[2]`, `clause[2]`, `swi`, `swi_end`, `text`, `prompt`, `answer`.
    pub fn name(&self, form: Form) -> String {
        match self.role {
            _ if self.answer => "answer".into(),
            Role::Prompt => "prompt".into(),
            Role::Text => "text".into(),
            Role::Swi => "swi".into(),
            Role::SwiEnd => "swi_end".into(),
            Role::Step(k) => format!("{}[{}]", if form == Form::Latents { "latent" } else { "clause" }, Nth::of(k)),
        }
    }
}

/// The class of each response position as a query; `None` in the prompt.
pub fn query(roles: &[At], position: usize, answer: Option<usize>) -> Option<Class> {
    match roles[position].role {
        _ if answer == Some(position) => Some(ANSWER),
        Role::Prompt => None,
        role => Some(Class { role, answer: false, back: None }),
    }
}

/// The position that decides the answer, whatever else it is.
pub(crate) const ANSWER: Class = Class { role: Role::Text, answer: true, back: None };

/// The class of a key as a query sees it. Every key has one, so that a query's classes take up its whole pattern.
pub fn key(roles: &[At], query: usize, key: usize) -> Class {
    let At { role, block } = roles[key];
    let plain = matches!(role, Role::Prompt | Role::Text);
    let back = block.zip(roles[query].block).filter(|_| !plain).map(|(key, query)| (query - key).min(FAR));
    Class { role, answer: false, back }
}
