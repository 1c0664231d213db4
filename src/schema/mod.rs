//! Files of rows: one plain struct per kind of row, and statistics computed from rows alone. Knows nothing of models, nor of how rows
//! are measured or shown.
//!
//! `experiments` and `train` write these structs, `report` reads them, so that the compiler finds every use of a renamed field.
//! Rows are stored in `<name>-<checkpoint>.parquet`. To add the rows of a new experiment to `report`, add a struct and a line
//! under `known` in the list of [`KNOWN`]; other rows are shown as a table of all their columns.

/// [`Measurement`] of a row: its identity, form and unit.
macro_rules! measured {
    ($row:ty, $key:ty, |$of:ident| $is:expr, $unit:expr $(, $($more:tt)*)?) => {
        impl crate::schema::Measurement for $row {
            type Key = $key;

            fn key(&self) -> $key {
                let $of = self;
                $is
            }

            fn identity(&self) -> &Identity {
                &self.identity
            }

            fn unit(&self) -> crate::schema::ResampledUnit {
                let $of = self;
                $unit
            }

            $($($more)*)?
        }
    };
}

#[macro_use]
mod columns;

mod accuracy;
mod adaptive;
mod benefit;
mod calibration;
mod card;
mod circuits;
mod decoded_trace;
mod early_stop;
mod entropy;
mod exits;
mod fate;
mod film;
pub mod hacking;
mod identity;
mod intervention;
mod lens;
mod monitor;
mod outcomes;
mod part_swap;
mod pass_at_k;
mod patching;
mod patterns;
mod probe;
mod serial_depth;
mod shards;
mod subspace;
mod switching;
mod training;
mod verdict;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::store::{FlatRow, typed};

pub use accuracy::{AccuracyRow, ResponseRow};
pub use adaptive::{AdaptiveRow, Optimum, by_budget};
pub use benefit::{SwitchBenefitRow, SwitchProblemRow, benefit};
pub use calibration::{CalibrationDrawRow, CalibrationRow, calibrated};
pub(crate) use card::answer;
pub use card::{CardAnswer, CardQuestion, CardRow, Evidence, MARGIN};
pub use circuits::{
    AttentionRow, AttributedNodeRow, AttributionAgreementRow, AttributionRow, Circuit, CircuitRow, Component,
    DirectLogitRow, EdgePairRow, EdgeRow, Form, FormsRow, GradientAt, HeadPatchRow, Part, PatchMode, PatchedNodeRow,
    SteeringRow, SteeringTrialRow, Target, agreement, place_name, place_number, place_order, stream_name,
};
pub(crate) use circuits::{attributions, circuits, shares, steerings, too_few};
pub use columns::{Column, Columns, described, list};
pub use decoded_trace::{DecodedTraceRow, Reader};
pub use early_stop::EarlyStopRow;
pub use entropy::EntropyRow;
pub use exits::{ExitGroup, ExitRow};
pub use fate::{ComparisonPoint, FateCell, FateRow, FateTest, Law, fate_tests, law, runs};
pub use film::{FilmChange, FilmQuantity, FilmRow, film_changes};
pub use identity::Identity;
pub use intervention::summary::{Summary, summarise};
pub use intervention::{At, BlockOrigin, Holds, InterventionRow, KnownValueRow, Later, Observation, Steps};
pub use intervention::{NORMAL, NULL_BATCH, NULL_SEED, NULLS, dosed};
pub use lens::{JacobianLensRow, Lens, LensRow, Opening, Transport};
pub use monitor::{Access, Edit, HiddenValueRow, Letters, Monitor, MonitorAccessRow, MonitorRow, Quantity};
pub use outcomes::{OutcomeRow, PositionKind, PositionRow};
pub use part_swap::{Host, PartSwapRow};
pub use pass_at_k::PassRow;
pub(crate) use patching::recovered;
pub use patching::{Axis, LEAST_SHARE, PatchRow, PatchedPlaceRow, Place};
pub use patterns::{PatternRow, TokenLensRow};
pub use probe::{Features, Negatives, ProbeRow, Protocol};
pub use serial_depth::{ChainOf, SerialDepthRow};
pub use shards::{DecodeRow, NormalRunRow};
pub use subspace::{Donors, Rotation, SubspaceDirectionRow, SubspaceRow, Variable};
pub use switching::{Event, PhaseChangeRow, TeacherForcedRow, WindowRow};
pub use training::{GRPO_START, GrpoStepRow, METRICS, StepRow};
pub use training::{PhaseRow, SweepRow};
pub use verdict::AT_CHANCE;
pub(crate) use verdict::{adjust, beyond_chance, never};

/// A kind of row that has files of its own.
pub trait RowFile: Columns + DeserializeOwned + Send + Sync + 'static {
    /// The part of the file's name before the checkpoint.
    const NAME: &'static str;
}

/// Declares the files of each kind of row; `and` names further files. `report` reads [`KNOWN`] as structs, and no table shows [`RAW`].
macro_rules! files {
    (
        known: $($known:ty = $name:literal $(and $more:ident)*),*;
        raw: $($raw:ty = $raw_name:literal $(and $raw_more:ident)*),*;
        others: $($other:ty = $other_name:literal),* $(,)?
    ) => {
        files! { @named $($known = $name,)* $($raw = $raw_name,)* $($other = $other_name,)* }

        /// The files of each kind of row, with its columns.
        pub const FILES: &[(&[&str], &[Column])] = &[
            $((&[$name, $(<$known>::$more,)*], <$known>::COLUMNS),)*
            $((&[$raw_name, $(<$raw>::$raw_more,)*], <$raw>::COLUMNS),)*
            $((&[$other_name], <$other>::COLUMNS),)*
            (&[METRICS], &[Column::All(StepRow::COLUMNS), Column::All(GrpoStepRow::COLUMNS)]),
        ];

        /// Every kind of row that `report` reads as a struct.
        pub const KNOWN: &[KnownRows] =
            &[$(known::<$known>(<$known>::NAME), $(known::<$known>(<$known>::$more),)*)*];

        /// Raw rows: too many to show, and read only by the experiment that summarises them.
        pub const RAW: &[&str] = &[$(<$raw>::NAME, $(<$raw>::$raw_more,)*)*];
    };
    (@named $($row:ty = $name:literal,)*) => {
        $(impl RowFile for $row {
            const NAME: &'static str = $name;
        })*
    };
}

files! {
    known:
    AccuracyRow = "accuracy",
    OutcomeRow = "outcomes",
    ResponseRow = "traces",
    EntropyRow = "entropy",
    PositionRow = "positions",
    LensRow = "logit_lens",
    JacobianLensRow = "jacobian_lens",
    EarlyStopRow = "early_stop",
    DecodedTraceRow = "decoded_trace",
    PassRow = "pass_at_k",
    PatternRow = "patterns",
    TokenLensRow = "token_lens",
    TeacherForcedRow = "teacher_forced",
    WindowRow = "switch_window",
    ExitRow = "exit_probability",
    ProbeRow = "layer_probe",
    PhaseChangeRow = "phases",
    PartSwapRow = "part_swap",
    InterventionRow = "latent_intervention" and STEPS and HOOKS,
    KnownValueRow = "known_value" and STEPS,
    SwitchProblemRow = "switch_problems",
    SwitchBenefitRow = "switch_benefit",
    AdaptiveRow = "adaptive",
    PatchRow = "activation_patching",
    DirectLogitRow = "direct_logit",
    AttentionRow = "attention_to_latents",
    HeadPatchRow = "head_patching" and PAIRS,
    FormsRow = "head_patching_forms",
    AttributionRow = "attribution_patching",
    AttributionAgreementRow = "attribution_agreement",
    EdgeRow = "edge_attribution",
    CircuitRow = "circuits",
    SteeringRow = "steering",
    SubspaceRow = "subspace",
    MonitorRow = "monitor",
    MonitorAccessRow = "monitor_access",
    HiddenValueRow = "hidden_values",
    PhaseRow = "summary",
    FateRow = "rl_fate",
    CardRow = "card",
    SerialDepthRow = "serial_depth",
    FilmRow = "film",
    CalibrationRow = "calibration";
    raw:
    Observation = "observations" and STEPS and HOOKS,
    PatchedPlaceRow = "patched_places",
    PatchedNodeRow = "patched_nodes" and PAIRS,
    AttributedNodeRow = "attributed_nodes",
    EdgePairRow = "edge_pairs",
    SteeringTrialRow = "steering_trials",
    CalibrationDrawRow = "calibration_draws",
    DecodeRow = "decodes",
    NormalRunRow = "normal_run",
    SubspaceDirectionRow = "subspace_directions";
    others: SweepRow = "sweep",
}

/// A raw row: the measurement of one unit. Tables are computed from the rows of all units.
pub trait Measurement: RowFile + Serialize {
    type Key: Ord + Send + Sync;

    /// Identity of a row, and its order in the file.
    fn key(&self) -> Self::Key;

    fn identity(&self) -> &Identity;

    /// The measured unit: the form (for pairs), and the pair or problem.
    fn unit(&self) -> ResampledUnit;

    /// Whether every requested unit has rows: then `n` of the identity is their number.
    const EVERY_UNIT: bool = true;
}

/// As [`Measurement::unit`].
pub(crate) type ResampledUnit = (Option<Form>, usize);

/// Requires rows of all requested units: a shard may be missing.
pub(crate) fn complete<R: Measurement>(rows: &[R]) -> Result<()> {
    let mut forms: BTreeMap<Option<Form>, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for row in rows.iter().filter(|_| R::EVERY_UNIT) {
        let (form, unit) = row.unit();
        forms.entry(form).or_insert((row.identity().n, BTreeSet::new())).1.insert(unit);
    }
    for (form, (requested, found)) in forms {
        let form = form.map_or_else(String::new, |form| format!(" of form {}", form.name()));
        ensure!(found.len() == requested, "the shards have {} of {requested} problems or pairs{form}", found.len());
    }
    Ok(())
}

/// Rows of one file, typed.
pub type TypedRows = Box<dyn Any + Send + Sync>;

/// One line of [`KNOWN`].
pub struct KnownRows {
    /// The part of a file's name before the checkpoint.
    pub name: &'static str,
    /// The file's rows as a `Vec` of their struct.
    pub read: fn(&[FlatRow]) -> Result<TypedRows>,
}

const fn known<R: RowFile>(name: &'static str) -> KnownRows {
    KnownRows { name, read: |rows| Ok(Box::new(typed::<R>(rows)?)) }
}
