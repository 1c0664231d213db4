//! Existing model files: configurations, weights (safetensors, GGUF, pickles, PEFT adapters, the hub) and tokenizers. Knows neither the
//! decoder, nor training, nor Burn's tensors.

// Allowed in two places, each with its reason: the memory map of a checkpoint, and handlers of signals.
#![deny(unsafe_code)]

#[doc(hidden)]
#[macro_export]
/// Enums of names, each with the word that it is in rows, recipes and on command lines; `ALL` has them in their order.
macro_rules! names {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        $vis enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}

pub mod checkpoint;
pub mod config;
pub mod guard;
pub mod output;
pub mod progress;
pub mod random;
pub mod tokenizer;
