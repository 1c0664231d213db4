//! Columns of every row, so that it can be read without its folder.

rows! {
    /// Flattened into the rows' own fields.
    #[derive(Default, Eq)]
    pub struct Identity {
        pub checkpoint: String => "name": "run and phase, or model, that was measured",
        pub dataset: String => "name": "generated task, or file of problems",
        pub n: usize => "count": "problems of the row's group or run; `x.n` are those of an estimate",
        pub seed: u64 => "seed": "of everything random: bootstraps, splits, draws",
    }
}
