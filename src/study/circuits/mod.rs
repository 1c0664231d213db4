//! Shared parts of circuit experiments: solutions with latents and as text, the heads' weights, pairs of problems, and forwards with
//! one node replaced. Knows no experiment.
//!
//! A *node* is something that writes to the residual stream at one position: a head, an MLP, the embedding. Printed steps and clause
//! tokens count from 1, as in hook names (`latent[1,3]`).

pub mod alive;
pub mod edges;
pub mod given;
pub mod gradient;
pub(crate) mod interchange;
pub mod jacobian;
pub mod lens;
pub mod pairs;
pub mod patch;
pub mod places;
pub mod pulls;
pub mod rewire;
pub mod rows;

pub use rows::{At, Block, Role, SolutionForms, solution_forms};
