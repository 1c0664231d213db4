//! `--hook SPEC=CHANGE`: what a model goes on with at a hook, in place of what it computed there.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::tensors::Values;
use crate::interventions::Firings;
use crate::model::hooks::Site;
use crate::model::{HookPoint, HookSpec, Hooks, ModelConfig, PointKind};
use crate::names::meant;
use crate::ops::MASKED;

const CHANGES: [&str; 4] = ["zero", "scale", "add", "swap"];

/// What happens to the values at one place.
enum Change {
    Zero,
    Scale(f32),
    /// What a file has for the place is added, or put in its place; by hook point.
    Add(Vec<(HookPoint, Values)>),
    Swap(Vec<(HookPoint, Values)>),
}

/// One `--hook`.
struct Edit {
    /// As the user wrote it.
    text: String,
    spec: HookSpec,
    change: Change,
    firings: RefCell<Firings>,
}

/// Every `--hook` of a command, read and checked.
#[derive(Default)]
pub(crate) struct Edits(Vec<Edit>);

impl Edits {
    /// Reads `blocks.3.hook_resid_post@latent[*,2]=zero|scale:2|add:FILE|swap:FILE`, files included.
    ///
    /// # Errors
    /// A hook that the model has not, a change that is none, a file whose values do not fit the point.
    pub fn read(texts: &[String], config: &ModelConfig) -> Result<Self> {
        let edit = |text: &String| Edit::read(text, config).with_context(|| format!("--hook '{text}'"));
        texts.iter().map(edit).collect::<Result<_>>().map(Self)
    }

    pub fn specs(&self) -> impl Iterator<Item = &HookSpec> {
        self.0.iter().map(|edit| &edit.spec)
    }

    /// Adds the hooks that change.
    ///
    /// # Errors
    /// None in practice: every spec was resolved before.
    pub fn attach<'h>(&'h self, hooks: &mut Hooks<'h>, layers: usize) -> Result<()> {
        for edit in &self.0 {
            hooks.edit(&edit.spec, layers, move |site, values| edit.change(site, values))?;
        }
        Ok(())
    }

    /// How often each fired and how far it moved the values on average (Euclidean norm of the change at a place).
    ///
    /// # Errors
    /// One that never fired: it would have been a silent no-op. `ran` says what was run, for the error.
    pub fn fired(&self, ran: &str) -> Result<Vec<Value>> {
        let one = |edit: &Edit| {
            let Firings { count, moved } = *edit.firings.borrow();
            ensure!(count > 0, "--hook '{}' never fired: {ran}", edit.text);
            Ok(json!({ "hook": edit.text, "fired": count, "mean_change": moved / count as f64 }))
        };
        self.0.iter().map(one).collect()
    }
}

impl Edit {
    fn read(text: &str, config: &ModelConfig) -> Result<Self> {
        let (hook, change) = text
            .split_once('=')
            .context("write HOOK=CHANGE, for example 'blocks.3.hook_resid_post@latent[*,2]=zero'")?;
        let spec: HookSpec = hook.parse()?;
        let points = spec.resolve(config.num_hidden_layers)?;
        let (name, value) = change.split_once(':').map_or((change, None), |(name, value)| (name, Some(value)));
        let change = match (name, value) {
            ("zero", None) => Change::Zero,
            ("scale", Some(by)) => {
                let by: f32 = by.parse().with_context(|| format!("`{by}` is not a number"))?;
                ensure!(by.is_finite(), "scale:{by}: not a finite number");
                Change::Scale(by)
            }
            ("add", Some(file)) => Change::Add(values(file, &points, config)?),
            ("swap", Some(file)) => Change::Swap(values(file, &points, config)?),
            _ => bail!(
                "no change `{change}`{}; write zero, scale:NUMBER, add:FILE or swap:FILE",
                if CHANGES.contains(&name) { String::new() } else { meant(name, CHANGES) }
            ),
        };
        Ok(Self { text: text.to_owned(), spec, change, firings: RefCell::default() })
    }

    /// Changes the values of one place.
    fn change(&self, site: &Site, values: &mut [f32]) -> Result<()> {
        let given = self.given(site)?;
        let mut moved = 0.0;
        for (nth, value) in values.iter_mut().enumerate() {
            let old = *value;
            // What the mask hides stays hidden.
            if site.point.kind == PointKind::AttnScores && old <= MASKED / 2.0 {
                continue;
            }
            let given = given.and_then(|values| values.get(nth)).copied().unwrap_or_default();
            *value = match self.change {
                Change::Zero => 0.0,
                Change::Scale(by) => old * by,
                Change::Add(_) => old + given,
                Change::Swap(_) => given,
            };
            moved += f64::from(*value - old).powi(2);
        }
        self.firings.borrow_mut().add(&Firings { count: 1, moved: moved.sqrt() });
        Ok(())
    }

    /// What the file has for a place; `None` where the change needs no file.
    fn given(&self, site: &Site) -> Result<Option<&[f32]>> {
        let (Change::Add(files) | Change::Swap(files)) = &self.change else { return Ok(None) };
        let (point, place) = (site.point, site.places.first().context("a site without a place")?);
        let values = files.iter().find(|(of, _)| *of == point).map(|(_, values)| values);
        let values = values.with_context(|| format!("--hook '{}': no values for `{point}`", self.text))?;
        let found = values.at(place, &self.spec.select).with_context(|| {
            let (step, position) = (place.step, place.position);
            format!("--hook '{}': the file has no {step} at position {position}; it has {}", self.text, values.places())
        })?;
        Ok(Some(found))
    }
}

/// The file's values for every point.
fn values(file: &str, points: &[HookPoint], config: &ModelConfig) -> Result<Vec<(HookPoint, Values)>> {
    let axes = |point: &HookPoint| {
        point.kind.tail(config).with_context(|| {
            format!(
                "`{point}`: its last axis counts keys, which differ from run to run; only zero and scale are for it"
            )
        })
    };
    let axes: Vec<Vec<usize>> = points.iter().map(axes).collect::<Result<_>>()?;
    let file = Path::new(file);
    let bytes = std::fs::read(file).with_context(|| format!("{}: cannot read", file.display()))?;
    let of =
        |(point, axes): (&HookPoint, &Vec<usize>)| Ok((*point, Values::of(file, &bytes, &point.to_string(), axes)?));
    points.iter().zip(&axes).map(of).collect()
}
