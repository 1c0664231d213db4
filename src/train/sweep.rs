//! A sweep: a grid of settings, each point trained as a run in its own folder. Phases that two runs share are trained once.
//!
//! One run does not show what a method can learn: a sweep comes before the claim that a method stays at chance.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::pipeline::{self, Options, RunBranch, RunEnd, WARNING};
use crate::method::Recipe;
use crate::progress::{say, show};
use crate::schema::{RowFile, SweepRow};
use crate::stats::{APART, lie_apart, mean_of_runs};
use crate::store::{RowWriter, ensure_inside, read, write_atomic};

/// The setting that distinguishes runs of one point.
const SEED: &str = "seed";

/// Maximum length of a folder name on all file systems.
const LONGEST_NAME: usize = 255;

/// A setting and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    pub key: String,
    /// In TOML syntax.
    pub values: Vec<String>,
}

impl Axis {
    /// `coconut.c=1,2`; a comma inside brackets or braces belongs to the value.
    ///
    /// # Errors
    /// Text of another form; a repeated value.
    pub fn parse(text: &str) -> Result<Self> {
        let wanted = || format!("--sweep {text}: write key=value,value, for example coconut.c=1,2");
        let (key, list) = text.split_once('=').with_context(wanted)?;
        let (mut values, mut depth) = (vec![String::new()], 0_i32);
        for letter in list.chars() {
            depth += i32::from("[{".contains(letter)) - i32::from("]}".contains(letter));
            match (letter, values.last_mut()) {
                (',', _) if depth == 0 => values.push(String::new()),
                (_, Some(last)) => last.push(letter),
                (_, None) => {}
            }
        }
        let (key, values): (_, Vec<String>) =
            (key.trim().to_owned(), values.iter().map(|value| value.trim().to_owned()).collect());
        ensure!(!key.is_empty() && depth == 0 && values.iter().all(|value| !value.is_empty()), wanted());
        for (i, value) in values.iter().enumerate() {
            ensure!(!values[..i].contains(value), "--sweep {text}: {value} is repeated");
        }
        Ok(Self { key, values })
    }
}

/// One run of a sweep.
struct SweepPoint {
    /// Swept settings, in the order of the axes.
    settings: Vec<(String, String)>,
    recipe: Recipe,
}

impl SweepPoint {
    /// Its name in tables: without the seed.
    fn name(&self) -> String {
        let named = self.settings.iter().filter(|(key, _)| key != SEED);
        let name = named.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ");
        if name.is_empty() { "as the recipe".to_owned() } else { name }
    }

    /// Its folder inside the sweep's.
    fn folder(&self) -> String {
        let all: Vec<String> = self.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        all.join("+").chars().map(|c| if c.is_ascii_alphanumeric() || "=+.-_".contains(c) { c } else { '_' }).collect()
    }
}

/// Every combination of the axes' values; the last axis changes fastest.
fn list_points(axes: &[Axis], recipe: impl Fn(&[String]) -> Result<Recipe>) -> Result<Vec<SweepPoint>> {
    let mut all: Vec<Vec<(String, String)>> = vec![vec![]];
    for (i, axis) in axes.iter().enumerate() {
        ensure!(axes[..i].iter().all(|other| other.key != axis.key), "--sweep: `{}` is swept twice", axis.key);
        let longer = |point: &Vec<(String, String)>| {
            let values = axis.values.iter().map(|value| (axis.key.clone(), value.clone()));
            values.map(|last| point.iter().cloned().chain([last]).collect()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    let point = |settings: Vec<(String, String)>| {
        let set: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(SweepPoint { recipe: recipe(&set)?, settings })
    };
    let points: Vec<SweepPoint> = all.into_iter().map(point).collect::<Result<_>>()?;
    let mut folders: Vec<String> = points.iter().map(SweepPoint::folder).collect();
    if let Some(long) = folders.iter().find(|name| name.len() > LONGEST_NAME) {
        bail!(
            "--sweep: the folder {long} would have a name of {} letters, more than {LONGEST_NAME}: sweep fewer settings at once",
            long.len()
        );
    }
    folders.sort_unstable();
    if let Some(pair) = folders.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("--sweep: two points would have the folder {}; choose other values", pair[0]);
    }
    Ok(points)
}

/// Trains every point in its own folder under `options.out`, and writes `sweep.parquet`, `sweep.csv` and `sweep.md` there after each.
/// With `options.resume`, finished points are skipped. Returns `false` if the user stopped it. A point that cannot be trained is listed
/// in `sweep.md`, and the others are trained.
///
/// # Errors
/// Before any work: settings that are invalid at some point, or a larger sweep in the folder. After all others are trained: the
/// points that failed.
pub fn run(axes: &[Axis], recipe: impl Fn(&[String]) -> Result<Recipe>, options: &Options) -> Result<bool> {
    ensure!(options.world.size == 1, "--sweep: several processes train one run together, not a sweep");
    let points = list_points(axes, recipe)?;
    let root = &options.out;
    ensure!(
        options.resume || !root.join("sweep.parquet").exists(),
        "{}: has a sweep already; --resume continues it, --out names another folder",
        root.display()
    );
    ensure_not_larger(root, &points)?;
    let until = options.from.first().and_then(|branch| branch.until.clone());
    let mut runs: Vec<RunBranch> = options.from.clone();
    let (mut rows, mut warnings, mut failed): (Vec<SweepRow>, _, _) = (vec![], String::new(), vec![]);
    for (i, point) in points.iter().enumerate() {
        let out = root.join(point.folder());
        ensure_inside(&out)?;
        say(&format!("run {} of {}: {}", i + 1, points.len(), out.display()));
        let from = match pipeline::can_branch(&point.recipe, &runs) {
            Ok(()) => runs.clone(),
            Err(why) => {
                if !options.from.is_empty() {
                    say(&format!("{why:#}; this point does without"));
                }
                vec![]
            }
        };
        let begun = out.join("recipe.toml").exists();
        let own = Options { out: out.clone(), resume: options.resume && begun, from, ..options.clone() };
        let results = match pipeline::run(point.recipe.clone(), own) {
            Ok(RunEnd::Finished(results)) => results,
            Ok(RunEnd::Stopped) => return Ok(false),
            Err(why) => {
                let why = format!("{why:#}");
                say(&format!("{}: not trained: {why}", out.display()));
                warnings += &format!("- {}, seed {}: not trained: {why}\n", point.name(), point.recipe.seed);
                write(root, &rows, &options.command, &warnings)?;
                failed.push(format!("{}: {why}", point.folder()));
                continue;
            }
        };
        runs.push(RunBranch { run: out, until: until.clone() });
        for note in results.iter().flat_map(|result| &result.notes).filter(|note| note.starts_with(WARNING)) {
            warnings += &format!("- {}, seed {}: {note}\n", point.name(), point.recipe.seed);
        }
        let new = pipeline::rows(&point.recipe, &results)?;
        rows.extend(new.into_iter().map(|result| SweepRow { point: point.name(), result }));
        write(root, &rows, &options.command, &warnings)?;
    }
    show(&format!("{}\n{warnings}", table(&rows)?));
    ensure!(
        failed.is_empty(),
        "{} of {} points could not be trained: {}",
        failed.len(),
        points.len(),
        failed.join("; ")
    );
    Ok(true)
}

/// Refuses to replace the table of a sweep that has points which this one lacks.
fn ensure_not_larger(root: &Path, points: &[SweepPoint]) -> Result<()> {
    let file = root.join("sweep.parquet");
    let held: Vec<SweepRow> = if file.is_file() { read(&file)? } else { vec![] };
    let ours = |row: &SweepRow| {
        points.iter().any(|point| point.name() == row.point && point.recipe.seed == row.result.identity.seed)
    };
    let Some(other) = held.iter().find(|row| !ours(row)) else { return Ok(()) };
    bail!(
        "{}: has a sweep with {}, seed {}, which this one lacks: its table would be lost. Repeat the --sweep of {}, or name another folder \
         with --out",
        root.display(),
        other.point,
        other.result.identity.seed,
        root.join("sweep.md").display()
    );
}

fn write(root: &Path, rows: &[SweepRow], command: &str, warnings: &str) -> Result<()> {
    if !rows.is_empty() {
        let mut writer = RowWriter::create(root, SweepRow::NAME)?;
        rows.iter().try_for_each(|row| writer.push(row))?;
        writer.finish()?;
    }
    let gap = if warnings.is_empty() { "" } else { "\n" };
    let text = format!("`{command}`\n\n{}{gap}{warnings}", table(rows)?);
    write_atomic(&root.join("sweep.md"), text.as_bytes())
}

/// Markdown: one row per phase and point, with the accuracy over seeds.
fn table(rows: &[SweepRow]) -> Result<String> {
    let mut at: BTreeMap<(&str, &str), Vec<&SweepRow>> = BTreeMap::new();
    let mut order = vec![];
    for row in rows {
        let key = (row.point.as_str(), row.result.phase.as_str());
        let held = at.entry(key).or_default();
        if held.is_empty() {
            order.push(key);
        }
        held.push(row);
    }
    let mut noted = false;
    let mut out = String::from(
        "| settings | phase | accuracy, mean over seeds [95 %, t] | of each seed | n problems | training steps |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for key in order {
        let held = &at[&key];
        let values: Vec<f64> = held.iter().map(|row| row.result.accuracy.value).collect();
        let mean = match mean_of_runs(&values) {
            Ok(mean) => format!("{:.3}", mean.share()),
            // One seed, or several with equal accuracy: no interval.
            Err(_) if values.len() == 1 => format!("{:.3}", values[0]),
            Err(_) => format!("{:.3}, all alike", values[0]),
        };
        let apart = lie_apart(&values);
        noted |= apart;
        let mean = mean + if apart { " †" } else { "" };
        let each: Vec<String> =
            held.iter().map(|row| format!("{}: {:.3}", row.result.identity.seed, row.result.accuracy.value)).collect();
        let first = &held[0].result;
        let steps = first.train_steps.map_or_else(|| "—".into(), |steps| steps.to_string());
        out += &format!("| {} | {} | {mean} | {} | {} | {steps} |\n", key.0, key.1, each.join(", "), first.identity.n);
    }
    if noted {
        out += &format!("\n{APART}\n");
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_a_key_and_values_that_may_hold_commas_in_brackets() {
        let of = |text: &str| Axis::parse(text).map(|axis| axis.values);
        assert_eq!(of("coconut.c=1, 2").expect("values"), ["1", "2"]);
        assert_eq!(of("s=[{k=1,n=2},{k=2}],[]").expect("values"), ["[{k=1,n=2},{k=2}]", "[]"]);
        for wrong in ["c", "c=", "c=1,,2", "=1", "c=1,1", "c=[1,2"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_grid_has_every_combination_once() {
        let recipe = |set: &[String]| Recipe::resolve("smoke", set);
        let axes = ["seed=0,1", "coconut.c=1,2,3"].map(|text| Axis::parse(text).expect("an axis"));
        let all = list_points(&axes, recipe).expect("points");
        let names: Vec<String> = all.iter().map(SweepPoint::folder).collect();
        assert_eq!(
            names[..4],
            ["seed=0+coconut.c=1", "seed=0+coconut.c=2", "seed=0+coconut.c=3", "seed=1+coconut.c=1"]
        );
        assert_eq!((all.len(), all[4].name().as_str(), all[4].recipe.seed), (6, "coconut.c=2", 1));
        let twice = [axes[0].clone(), axes[0].clone()];
        assert!(list_points(&twice, recipe).is_err());
        assert!(list_points(&[Axis::parse("no.such=1").expect("an axis")], recipe).is_err());
    }
}
