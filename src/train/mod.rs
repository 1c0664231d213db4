//! Training: base, Switch-SFT, Switch-GRPO and the baselines.
