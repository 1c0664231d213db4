//! The instrumented decoder. Knows nothing of text or training.
