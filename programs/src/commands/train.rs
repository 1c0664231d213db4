//! `train`: base → Switch-SFT phases 1 and 2 → Switch-GRPO, and the controls.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Parser;

use super::device::MachineArgs;
use super::selection::unknown_method;
use super::targets::fields;
use super::{is_dry, one_line, print};
use switchyard::grade::Grader;
use switchyard::machine::{self, Machine};
use switchyard::method::{self, Recipe};
use switchyard::model::checkpoint::ModelRef;
use switchyard::progress::{STOPPED, be_quiet, complain, say, show, shown, stop_asked, stop_flag};
use switchyard::store::command;
use switchyard::train::pipeline::{Options, RunBranch, RunEnd, run};
use switchyard::train::sweep::{self, Axis};
use switchyard::world::{Launch, World, spent};

/// Train a switchable latent reasoner: base, Switch-SFT (phases 1 and 2), Switch-GRPO, and controls.
#[derive(Parser)]
#[command(
    name = "train",
    version,
    after_help = "Examples:\n  train\n  train --preset smoke --out runs/smoke\n  train --set base.steps=200 --only base,annotate\n  train --base runs/micro --method coconut --set coconut.c=5 --out runs/c5\n  train --from runs/micro --set grpo.replay=full_bptt --out runs/micro-bptt\n  train --preset smollm2-gsm8k --model SmolLM2.gguf --data gsm8k/train.jsonl\n  train --out runs/micro --resume"
)]
pub struct Train {
    /// smoke, micro, micro-budget, micro-bptt, micro-adaptive, micro-rivals, micro-compressed, micro-two-latents, micro-paper, micro-graph, micro-prosqa, micro-organism, micro-organism-honest, smollm2-chains, smollm2-gsm8k, qwen3-8b, switch-released, or a .toml recipe.
    /// By default micro, with --resume the recipe of the run in --out.
    #[arg(long)]
    preset: Option<String>,
    /// Override a setting, e.g. `latent.learning_rate=1e-3`. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Train with every value of this setting, e.g. `coconut.c=1,2`; repeated, with every combination: one run each under --out.
    #[arg(long, value_name = "KEY=VALUE,VALUE")]
    sweep: Vec<String>,
    /// Train these methods instead of the recipe's, `all` that it has settings for, or `list` them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    method: Vec<String>,
    /// Run only these phases.
    #[arg(long, value_delimiter = ',', value_name = "PHASES")]
    only: Vec<String>,
    /// The run folder; by default runs/<name>, of a sweep runs/<name>-sweep.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Continue the stopped run in --out.
    #[arg(long)]
    resume: bool,
    /// Reuse every finished phase of this run (or of a run of this sweep) with the same settings, and train the rest. With an adapter (a
    /// PEFT folder or a repository of the hub with one): continue its training, over --base.
    #[arg(long, value_name = "RUN|ADAPTER")]
    from: Option<PathBuf>,
    /// With --from: the last phase to reuse, with its ancestors.
    #[arg(long, value_name = "PHASE", requires = "from")]
    phase: Option<String>,
    /// The same as --from RUN --phase base; with --from ADAPTER the adapter's base.
    #[arg(long, value_name = "RUN|MODEL")]
    base: Option<PathBuf>,
    /// Check data, model and settings, print what the run needs, and stop before any work; SWITCHYARD_DRY_RUN=1 does the same.
    #[arg(long)]
    dry_run: bool,
    /// A pretrained model: folder, .gguf or hub id.
    #[arg(long)]
    model: Option<String>,
    /// A file of problems, or a folder of a data set (train and test): JSON lines, CSV or Parquet. Replaces the recipe's generated task.
    #[arg(long)]
    data: Option<String>,
    /// Grader of the file's answers: math, exact (the same words) or choice (the same letter); by default chosen by each gold answer.
    #[arg(long, value_name = "NAME")]
    grader: Option<Grader>,
    /// Your file's keys for question, answer, solution, id, subject, level, choices, context, group: question=frage,answer=antwort
    #[arg(long, value_name = "KEY=YOURS", value_delimiter = ',')]
    field: Vec<String>,
    /// The same for the held-out file (data.test_path), if its keys differ: question=problem,answer=solution
    #[arg(long, value_name = "KEY=YOURS", value_delimiter = ',')]
    test_field: Vec<String>,
    #[command(flatten)]
    machine: MachineArgs,
}

impl Train {
    /// The preset or recipe; for a resumed run its own, if none is named.
    fn source(&self) -> String {
        let own = self.out.as_ref().filter(|_| self.resume).map(|run| run.join("recipe.toml"));
        let own = own.filter(|recipe| recipe.is_file()).map(|recipe| recipe.display().to_string());
        self.preset.clone().or(own).unwrap_or_else(|| "micro".into())
    }

    /// The adapter and its base, if `--from` names an adapter.
    fn adapter(&self) -> Result<Option<[String; 2]>> {
        let Some(from) = &self.from else { return Ok(None) };
        let shown = from.display();
        let is_adapter = match from.is_dir() {
            // Everything else is a run, or the folder of a sweep of runs.
            true => ["adapter_config.json", "config.json"].iter().any(|file| from.join(file).is_file()),
            // A hub id looks like a missing path: only its base identifies it.
            false => !from.exists() && self.base.is_some() && ModelRef::parse(&shown.to_string()).is_ok(),
        };
        let below = self.base.as_ref().map(|base| base.display().to_string()).or(self.model.clone());
        match (is_adapter, below) {
            (false, _) => {
                ensure!(self.base.is_none(), "--base and --from {shown} both name a run: omit one");
                Ok(None)
            }
            (true, None) => bail!(
                "--from {shown}: neither a run of `train` nor an adapter with its model: name the model with --base"
            ),
            (true, Some(below)) => {
                ensure!(
                    self.phase.is_none(),
                    "--phase names a phase of a run, and --from {shown} is an adapter: leave it away"
                );
                Ok(Some([shown.to_string(), below]))
            }
        }
    }

    /// The run whose phases are reused.
    fn branch(&self) -> Result<Vec<RunBranch>> {
        if self.adapter()?.is_some() {
            return Ok(vec![]);
        }
        let base = self.base.clone().map(|run| RunBranch { run, until: Some("base".into()) });
        let from = self.from.clone().map(|run| RunBranch { run, until: self.phase.clone() });
        Ok(from.into_iter().chain(base).collect())
    }

    /// Reports errors itself: of several processes each has its own exit.
    pub fn run(&self) -> ExitCode {
        let launched = match Launch::start() {
            Ok(launched) => launched,
            Err(error) => return failed(&error),
        };
        let world = launched.world;
        if !world.writes() {
            be_quiet();
        }
        match self.machine.compute(|machine| go(self, machine, world).and_then(|code| shown().map(|()| code))) {
            Ok(code) => code,
            Err(error) => {
                let several = world.size > 1;
                let code = failed(&if several { error.context(format!("process {}", world.rank)) } else { error });
                // The others wait for this one.
                launched.fail();
                code
            }
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    complain(&format!("error: {}", one_line(error)));
    ExitCode::from(2)
}

fn go(args: &Train, machine: &Machine, world: World) -> Result<ExitCode> {
    let mut set = args.set.clone();
    let adapter = args.adapter()?;
    let below = adapter.as_ref().map(|[_, below]| below).or(args.model.as_ref());
    set.extend(below.map(|m| format!("pretrained={}", toml::Value::String(m.clone()))));
    set.extend(adapter.iter().map(|[adapter, _]| format!("adapter={}", toml::Value::String(adapter.clone()))));
    set.extend(args.data.iter().map(|d| format!("data.path={}", toml::Value::String(d.clone()))));
    set.extend(args.machine.dtype().map(|dtype| format!("optimizer.dtype={}", dtype.name())));
    if args.method == ["list"] {
        let lines = switchyard::method::all().map(|method| format!("{:<16} {}\n", method.name, method.about));
        print(&lines.collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let axes: Vec<Axis> = args.sweep.iter().map(|text| Axis::parse(text)).collect::<Result<_>>()?;
    // Settings need to be consistent only at the points of a sweep.
    let first = axes.iter().filter_map(|axis| Some(format!("{}={}", axis.key, axis.values.first()?)));
    let recipe = recipe_of(args, &[set.as_slice(), &first.collect::<Vec<_>>()].concat())?;
    let options = Options {
        // A sweep's folder contains runs, and is not one itself.
        out: args.out.clone().unwrap_or_else(|| {
            let sweep = if args.sweep.is_empty() { "" } else { "-sweep" };
            PathBuf::from("runs").join(format!("{}{sweep}", recipe.name))
        }),
        resume: args.resume,
        only: args.only.clone(),
        from: args.branch()?,
        threads: machine.threads,
        command: command("train"),
        dry: args.dry_run || is_dry(),
        device: machine.device.clone(),
        world,
        stop: stop_asked,
    };
    stop_flag();
    if !args.sweep.is_empty() && !options.dry {
        let at = |point: &[String]| recipe_of(args, &[set.as_slice(), point].concat());
        let finished = sweep::run(&axes, at, &options)?;
        if !finished {
            say(&format!("stopped; continue with the same command and --resume (sweep {})", options.out.display()));
        }
        return Ok(if finished { ExitCode::SUCCESS } else { ExitCode::from(STOPPED) });
    }
    if world.size > 1 {
        let devices: Vec<String> = world.all(vec![machine::name(&machine.device)])?;
        say(&format!("{} processes, on {}", world.size, devices.join(", ")));
    }
    let started = Instant::now();
    let out = options.out.display().to_string();
    let dry = options.dry;
    match run(recipe, options)? {
        RunEnd::Finished(_) if dry => Ok(ExitCode::SUCCESS),
        RunEnd::Finished(_) if !world.writes() => Ok(ExitCode::SUCCESS),
        RunEnd::Finished(_) => {
            if world.size > 1 {
                let (spent, all) = (spent(), started.elapsed().as_secs_f64());
                show(&format!("process 0 of {}: {spent:.1} of {all:.1} s in communication", world.size));
            }
            for figure in crate::report::curves::draw(std::path::Path::new(&out))? {
                show(&format!("  {}", figure.svg.display()));
            }
            Ok(ExitCode::SUCCESS)
        }
        RunEnd::Stopped => {
            say(&format!("stopped; continue with the same command and --resume (run folder {out})"));
            Ok(ExitCode::from(STOPPED))
        }
    }
}

/// The preset with the command line's changes.
fn recipe_of(args: &Train, set: &[String]) -> Result<Recipe> {
    let mut recipe = Recipe::resolve(&args.source(), set)?;
    if let Some(fields) = fields(&args.field)? {
        ensure!(recipe.data.path.is_some(), "--field names the keys of a file of problems: give it with --data FILE");
        recipe.data.fields = Some(fields);
    }
    if let Some(fields) = fields(&args.test_field)? {
        recipe.data.test_fields = Some(fields);
        recipe.check()?;
    }
    if args.grader.is_some() {
        ensure!(
            recipe.task.is_none() && recipe.data.path.is_some(),
            "--grader sets how answers of a file are graded: give it with --data FILE"
        );
        recipe.data.grader = args.grader;
    }
    if !args.method.is_empty() {
        unknown_method(&args.method)?;
        recipe.methods = if args.method == ["all"] { trainable(&recipe) } else { args.method.clone() };
        recipe.check()?;
    }
    recipe.anchored()
}

/// Every method that has something to do under this recipe. The others are printed with what they need.
fn trainable(recipe: &Recipe) -> Vec<String> {
    let does = |method: &&method::Method| match (method.lacks)(recipe) {
        None => true,
        Some(needed) => {
            say(&format!("--method all leaves out {}: {needed}", method.name));
            false
        }
    };
    method::all().filter(does).map(|method| method.name.to_owned()).collect()
}
