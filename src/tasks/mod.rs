//! Generated problems whose intermediate values are known. Plain Rust.
