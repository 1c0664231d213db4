//! Vocabulary, prompt templates, problems and span annotation. Plain Rust: knows nothing of tensors.
