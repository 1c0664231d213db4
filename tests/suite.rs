//! All tests in one program: it is linked once, and `cargo test --test suite latent::` runs one file of them.
//! `memory.rs` stands alone, because it counts every allocation of its process.

mod annotate;
mod architecture;
mod checkpoint;
mod circuits;
mod cli;
mod common;
mod coverage;
mod experiments;
mod extend;
mod faults;
mod figures;
mod fused;
mod grade;
mod interventions;
mod kills;
mod known_answers;
mod latent;
mod lenses;
mod malformed;
mod methods;
mod observations;
mod paper;
mod parity;
mod probes;
mod problems;
mod readme;
mod recipes;
mod report;
mod report_rows;
mod stats;
mod steps;
mod tables;
mod tasks;
mod train;
