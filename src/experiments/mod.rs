//! One file per experiment: its settings, its typed rows, and how it runs.
