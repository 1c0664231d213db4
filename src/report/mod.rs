//! Tables, figures and pages, from rows alone. Knows nothing of tensors.
