//! Modes of an intervention experiment: parses their names on the command line into cells of work.

use anyhow::{Result, bail, ensure};

use crate::interventions::{
    self, At, FORCE_SWITCH, InterventionAbout, InterventionSpec, Later, RULES, Steps, SwitchRule,
};
use crate::names::suggest;
use crate::schema::{KnownValueRow, NORMAL, NULL_BATCH, NULL_SEED, NULLS, dosed};

/// The default modes: the paper's four and the controls it lacks.
pub const MODES: [&str; 7] = [NORMAL, "zero", "random_norm", "skip", "self_patch", "mean", "resample"];

#[derive(Clone, Copy)]
pub enum Action {
    Normal,
    NullBatch,
    NullSeed,
    Rule(SwitchRule),
    Replace(&'static InterventionAbout),
}

/// One row of the table: a mode at one dose and one choice of steps.
#[derive(Clone)]
pub struct Cell {
    pub mode: String,
    pub action: Action,
    pub dose: Option<f64>,
    pub steps: Steps,
    pub draws: usize,
    pub later: Later,
    pub at: At,
}

impl Cell {
    /// For messages: `rotate:30 (2..)`.
    pub fn label(&self) -> String {
        format!("{} ({})", dosed(&self.mode, self.dose), self.steps)
    }

    /// Whether it changes blocks that the normal run opens.
    pub(crate) fn needs_blocks(&self) -> bool {
        match self.action {
            Action::Rule(rule) => rule != FORCE_SWITCH,
            Action::Replace(_) => true,
            _ => false,
        }
    }
}

/// The default modes of the command: the table's, the null runs, and `known_value` where values are known.
pub(crate) fn default_modes(generated: bool) -> Vec<String> {
    let known = generated.then_some(KnownValueRow::MODE);
    MODES.into_iter().chain(NULLS).chain(known).map(str::to_owned).collect()
}

/// Every mode that can run. `generated`: the values of steps are known.
pub(crate) fn all_modes(generated: bool) -> Vec<String> {
    names().into_iter().filter(|name| generated || *name != KnownValueRow::MODE).map(str::to_owned).collect()
}

/// Replaces `all` by every mode that is not named explicitly.
pub(crate) fn spell_out(modes: &mut Vec<String>, every: impl Iterator<Item = String>) {
    if let Some(at) = modes.iter().position(|mode| mode == "all") {
        let others: Vec<String> = every.filter(|mode| !modes.contains(mode)).collect();
        modes.splice(at..=at, others);
    }
}

/// Every name that [`cells`] accepts.
pub fn names() -> Vec<&'static str> {
    let rules = RULES.iter().map(|r| r.name);
    [NORMAL].into_iter().chain(NULLS).chain(rules).chain(interventions::all().map(|a| a.name)).collect()
}

/// The doses of an intervention: the named one, else its defaults.
pub(crate) fn doses(about: &InterventionAbout, named: Option<f64>) -> Vec<Option<f64>> {
    match named {
        Some(dose) => vec![Some(dose)],
        None if about.doses.is_empty() => vec![None],
        None => about.doses.iter().copied().map(Some).collect(),
    }
}

/// The rows in the order of the modes, *normal* first; each mode at each of its doses and steps.
pub fn cells(modes: &[String], steps: &[Steps], draws: usize, cap: usize) -> Result<Vec<Cell>> {
    ensure!(draws >= 1, "--draws must be at least 1, found 0");
    ensure!(!steps.is_empty(), "--steps is empty: write `all`, `2`, `2..` or `2..4` (steps count from 1)");
    for step in steps {
        step.ensure_within(cap)?;
    }
    let once = |name: &str, action| {
        let (mode, later, at) = (name.to_owned(), Later::default(), At::default());
        Cell { mode, action, dose: None, steps: Steps::All, draws: 1, later, at }
    };
    let mut cells = vec![once(NORMAL, Action::Normal)];
    for written in modes.iter().filter(|m| *m != NORMAL) {
        let name = written.split(':').next().unwrap_or_default();
        let plain = match name {
            NULL_BATCH => Some(Action::NullBatch),
            NULL_SEED => Some(Action::NullSeed),
            _ => RULES.iter().find(|r| r.name == name).map(|r| Action::Rule(*r)),
        };
        if let Some(action) = plain {
            ensure!(name == written, "mode `{written}`: {name} has no dose");
            cells.push(once(name, action));
            continue;
        }
        let is_known = names().contains(&name);
        ensure!(is_known, "unknown mode `{written}`{}: there are {}", suggest(name, names()), names().join(", "));
        let InterventionSpec::Named { about, dose } = written.parse::<InterventionSpec>()? else {
            bail!("mode `{written}`: values of a file or a function need a --hook")
        };
        let doses = doses(about, dose);
        let (action, draws) = (Action::Replace(about), if about.random { draws } else { 1 });
        for (dose, &steps) in doses.into_iter().flat_map(|dose| steps.iter().map(move |steps| (dose, steps))) {
            cells.push(Cell { dose, steps, draws, ..once(name, action) });
        }
    }
    for (i, cell) in cells.iter().enumerate() {
        ensure!(!cells[..i].iter().any(|c| c.label() == cell.label()), "{} is named twice", cell.label());
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(modes: &[&str], steps: &[Steps]) -> Result<Vec<Cell>> {
        cells(&modes.iter().map(|m| (*m).to_owned()).collect::<Vec<_>>(), steps, 3, 5)
    }

    #[test]
    fn a_mode_is_run_at_each_of_its_doses_and_steps() {
        let cells = parse(&["zero", "scale:0.5", "rotate", "skip"], &[Steps::All, Steps::From(2)]).expect("cells");
        let count = |name: &str| cells.iter().filter(|c| c.mode == name).count();
        assert_eq!((count(NORMAL), count("zero"), count("scale"), count("rotate"), count("skip")), (1, 2, 2, 12, 1));
        assert!(cells.iter().all(|c| c.draws == if c.mode == "rotate" { 3 } else { 1 }));
    }

    #[test]
    fn what_does_not_exist_is_refused_by_name() {
        for (mode, needle) in [
            ("zeroed", "zeroed"),
            ("zero:2", "no dose"),
            ("scale:x", "`x`"),
            ("skip:1", "no dose"),
            ("rotate:inf", "finite"),
        ] {
            let error = parse(&[mode], &[Steps::All]).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(needle), "{mode}: {error}");
        }
        assert!(parse(&["zero"], &[Steps::Only(5)]).is_err_and(|e| e.to_string().contains("step 6")));
        assert!(parse(&["zero", "zero"], &[Steps::All]).is_err());
    }
}
