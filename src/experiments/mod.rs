//! One file per experiment: its settings, its typed rows, and how it runs. Knows checkpoints, not training.

pub mod latent_intervention;
pub mod subject;
pub mod teacher_forced;
