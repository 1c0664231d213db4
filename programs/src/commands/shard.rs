//! `--shard`, `--decoded`: several processes on parts of the problems. Knows schedulers' variables and manifests. Shared by
//! `probe` and `intervene`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use clap::Args;
use serde_json::{Map, Value};

use super::runner::setup;
use switchyard::schema::{DecodeRow, NormalRunRow, RowFile};
use switchyard::store::{Manifest, differs, read};
use switchyard::study::{NormalRun, Shard, Study, decodes};
use switchyard::world::Place;

/// Of the options here alone: the heading of a whole group would go on over the options after it.
const HEADING: &str = "Several processes";

/// Several processes.
#[derive(Args, Clone, Debug, Default)]
pub struct ShardArgs {
    /// Work on one shard of the problems: i/n, or `auto` to read it from the scheduler (SLURM_ARRAY_TASK_ID with _MIN, _MAX, _STEP and
    /// _COUNT, or JOB_COMPLETION_INDEX with JOB_COMPLETIONS) or the launcher (mpirun -n, srun -n). Rows go to a folder shard-i-of-n inside
    /// --out; `report merge` joins shards. Problems are dealt in whole decode batches (--batch), so there are at most as many shards as
    /// batches. `intervene` shares every experiment, by problem or by pair, and gives the same tables as one process after the merge; each
    /// shard of edge_attribution searches for the circuit itself. `probe` shares the decoding, and one process then makes all of its tables
    /// with --decoded
    #[arg(long, help_heading = HEADING, value_name = "i/n|auto")]
    shard: Option<ShardArg>,
    /// A folder of `report merge` with shards' decodes: `probe` reads its responses from it, a shard of `intervene` the normal run (made with
    /// --only normal_run --shard i/n; without it every shard makes the normal run of all problems)
    #[arg(long, help_heading = HEADING, value_name = "DIR")]
    decoded: Option<PathBuf>,
}

/// `i/n` or `auto`.
#[derive(Clone, Copy, Debug)]
enum ShardArg {
    Auto,
    This(Shard),
}

impl FromStr for ShardArg {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::This) }
    }
}

impl ShardArgs {
    /// Whether this process is one of several, or uses others' decodes.
    pub(crate) fn is_asked(&self) -> bool {
        self.shard.is_some() || self.decoded.is_some()
    }

    pub(crate) fn shard(&self) -> Result<Option<Shard>> {
        match self.shard {
            None => Ok(None),
            Some(ShardArg::This(shard)) => Ok(Some(shard)),
            Some(ShardArg::Auto) => of_scheduler(|name| std::env::var(name).ok()).map(Some),
        }
    }

    /// Adds the responses that shards of `probe` decoded.
    pub(crate) fn with_responses(&self, mut study: Study, origin: &Map<String, Value>) -> Result<Study> {
        let Some(folder) = &self.decoded else { return Ok(study) };
        ensure!(self.shard.is_none(), "--decoded and --shard: the tables of `probe` are made by one process");
        let rows: Vec<DecodeRow> = rows_of(&study, origin, folder)?;
        study.decodes = decodes::restore(&rows, study.corpus.test.len()).with_context(|| folder_option(folder))?;
        Ok(study)
    }

    /// Adds the normal run that shards of `intervene` made.
    pub(crate) fn with_normal_run(&self, mut study: Study, origin: &Map<String, Value>) -> Result<Study> {
        let Some(folder) = &self.decoded else { return Ok(study) };
        ensure!(self.shard.is_some(), "--decoded is for shards: one process forks its own normal run");
        let rows: Vec<NormalRunRow> = rows_of(&study, origin, folder)?;
        study.normal = Some(NormalRun::new(&rows, study.corpus.test.len()).with_context(|| folder_option(folder))?);
        Ok(study)
    }
}

fn folder_option(folder: &Path) -> String {
    format!("--decoded {}", folder.display())
}

/// The merged rows of a study's checkpoint.
fn rows_of<R: RowFile>(study: &Study, origin: &Map<String, Value>, folder: &Path) -> Result<Vec<R>> {
    let name = format!("{}-{}", R::NAME, study.short_name());
    let manifest = Manifest::open(folder)?;
    let held = manifest.setup(&name).with_context(|| {
        format!("{}: has no {name}: make it with --shard and `report merge`", folder_option(folder))
    })?;
    let plain = |mut setup: Value| {
        for key in ["settings", "shard", "blocks"] {
            setup.as_object_mut().map(|parts| parts.remove(key));
        }
        setup
    };
    ensure!(
        held.get("shard").is_none(),
        "{}: {name} is from one shard: merge all of them with `report merge`",
        folder_option(folder)
    );
    if let Some(difference) = differs("setup", &plain(held.clone()), &plain(setup(study, origin, Value::Null))) {
        bail!("{}: {name} was made with other settings than this run's ({difference})", folder_option(folder));
    }
    read(&folder.join(format!("{name}.parquet")))
}

/// The shard that a scheduler assigned to this process.
fn of_scheduler(variable: impl Fn(&str) -> Option<String>) -> Result<Shard> {
    let number = |name: &str| -> Result<Option<usize>> {
        let parse = |text: String| text.parse().with_context(|| format!("{name}={text}: not a number"));
        variable(name).map(parse).transpose()
    };
    if let Some(task) = number("SLURM_ARRAY_TASK_ID")? {
        let needed = |name: &str| number(name)?.with_context(|| format!("--shard auto: {name} is not set"));
        let (least, most) = (needed("SLURM_ARRAY_TASK_MIN")?, needed("SLURM_ARRAY_TASK_MAX")?);
        let (count, step) = (needed("SLURM_ARRAY_TASK_COUNT")?, number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1));
        // In an array that reruns failed tasks, the number of shards is unknown: a whole array begins at 0 or 1.
        let whole = least <= 1 && most >= least && (most - least) / step + 1 == count;
        ensure!(
            whole && (least..=most).contains(&task),
            "--shard auto: this Slurm array has {count} tasks from {least} to {most}, so the number of shards is unknown; \
            write --shard i/n"
        );
        return Shard::new((task - least) / step + 1, count);
    }
    if let Some(index) = number("JOB_COMPLETION_INDEX")? {
        let of = number("JOB_COMPLETIONS")?.context(
            "--shard auto: JOB_COMPLETION_INDEX is set and JOB_COMPLETIONS is not: put the Job's `completions` there \
             (experiments/cluster/kubernetes.yaml)",
        )?;
        return Shard::new(index + 1, of);
    }
    if let Some(Place { rank, size, .. }) = Place::told(variable) {
        return Shard::new(rank + 1, size);
    }
    bail!(
        "--shard auto: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set, and no launcher started several processes; \
         write --shard i/n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(variables: &[(&str, &str)]) -> Result<Shard> {
        let of = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        of_scheduler(of)
    }

    fn array(id: &str, [least, most, step, count]: [&str; 4]) -> Result<Shard> {
        shard(&[
            ("SLURM_ARRAY_TASK_ID", id),
            ("SLURM_ARRAY_TASK_MIN", least),
            ("SLURM_ARRAY_TASK_MAX", most),
            ("SLURM_ARRAY_TASK_STEP", step),
            ("SLURM_ARRAY_TASK_COUNT", count),
        ])
    }

    #[test]
    fn schedulers_say_which_shard() {
        let is = |found: Result<Shard>, wanted: &str| assert_eq!(found.expect(wanted).to_string(), wanted);
        is(array("0", ["0", "2", "1", "3"]), "1/3");
        is(array("3", ["1", "3", "1", "3"]), "3/3");
        is(array("5", ["1", "9", "4", "3"]), "2/3");
        is(shard(&[("JOB_COMPLETION_INDEX", "2"), ("JOB_COMPLETIONS", "4")]), "3/4");
        is(shard(&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")]), "2/2");
    }

    #[test]
    fn a_part_of_an_array_says_nothing() {
        // --array=2 and --array=3-5 after a failure; --array=1,4; no scheduler; an index without its count.
        for found in
            [array("2", ["2", "2", "1", "1"]), array("4", ["3", "5", "1", "3"]), array("4", ["1", "4", "1", "2"])]
        {
            let said = found.expect_err("refused").to_string();
            assert!(said.contains("write --shard i/n"), "{said}");
        }
        assert!(shard(&[]).expect_err("refused").to_string().contains("write --shard i/n"));
        assert!(shard(&[("JOB_COMPLETION_INDEX", "0")]).expect_err("refused").to_string().contains("JOB_COMPLETIONS"));
    }
}
