//! Answer extraction and mathematical equivalence. Plain Rust: knows nothing of tensors.
