//! The hidden-state recurrence, written once: unroll, decode, trace, replay.
