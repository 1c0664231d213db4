//! The laboratory: all of Switchyard but its command lines and its pages, which are the package `switchyard`. That one's
//! documentation has the map of the rooms; everything here is public there under the same name.

// Two places are allowed it, each with its reason beside it: the memory map of a checkpoint, and an option of the allocator.
#![deny(unsafe_code)]

/// A struct of settings with the default of each beside it, as recipes and requests write them; in recipes each with its range too:
/// `pub steps: usize = 0 => Count(0, STEPS)`.
#[doc(hidden)]
#[macro_export]
macro_rules! settings {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $see:vis $field:ident: $type:ty = $default:expr $(=> $range:expr)?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $vis struct $name {
            $($(#[$doc])* $see $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        $crate::settings! { @ranges $name $([$field $($range)?])* }
    };
    (@ranges $name:ident $([$field:ident])*) => {};
    (@ranges $name:ident $([$field:ident $($range:expr)?])*) => {
        impl $name {
            /// The range of each setting, by its key.
            pub(super) const RANGES: &'static [(&'static str, $crate::recipe::Range)] = &[$($((stringify!($field), $range),)?)*];
        }
    };
}

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

/// In rows and recipes a value of the type is its text.
macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = anyhow::Error;

            fn try_from(text: String) -> anyhow::Result<Self> {
                text.parse()
            }
        }
    )*};
}

#[doc(hidden)]
pub mod calibration;
#[doc(hidden)]
pub mod corpus;
#[doc(hidden)]
pub mod evaluation;
pub mod experiments;
#[doc(hidden)]
pub mod guard;
pub mod interventions;
pub mod latent;
pub mod loading;
#[doc(hidden)]
pub mod machine;
pub mod method;
pub mod model;
#[doc(hidden)]
pub mod names;
#[doc(hidden)]
pub mod nth;
#[doc(hidden)]
pub mod parallel;
#[doc(hidden)]
pub mod parity;
#[doc(hidden)]
pub mod progress;
#[doc(hidden)]
pub mod random;
pub mod recipe;
pub mod schema;
#[doc(hidden)]
pub mod store;
pub mod study;
pub mod tasks;
#[doc(hidden)]
pub mod text;
#[doc(hidden)]
pub mod tokenizer;
#[doc(hidden)]
pub mod train;
#[doc(hidden)]
pub mod world;

pub use switchyard_grade as grade;
#[doc(hidden)]
pub use switchyard_ops as ops;
pub use switchyard_stats as stats;
