//! Intervals, paired tests, bootstrap and the protocol of probes. Plain Rust.
