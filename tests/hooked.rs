//! Interventions at hook points: effects on models with a known circuit, each cell against a decode with that hook, and errors for
//! unknown points before any work.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::common::circuit_models::{COUNTS, DECOY, READER, WRITER, study};
use crate::common::known::{Purpose, micro};
use crate::common::programs::{program, refused};
use switchyard::experiments::hook_intervention::{self, Config};
use switchyard::interventions::{
    self, Acts, Bank, Change, ChangeLog, Draw, Heads, InterventionSpec, Material, ModelChange, PreparedChange,
};
use switchyard::latent::{Decode, DecodeSettings, End, Request, SwitchIds, Switching, decode};
use switchyard::loading::Loaded;
use switchyard::model::hooks::Site;
use switchyard::model::{Activation, HookPoint, HookSpec, Hooks, Select};
use switchyard::schema::{InterventionRow, Steps};
use switchyard::study::Study;

fn try_rows(study: &Study, config: &Config) -> anyhow::Result<Vec<InterventionRow>> {
    hook_intervention::rows(study, config).map(|summary| summary.rows)
}

fn asked(hooks: &[&str], modes: &[&str]) -> Config {
    let hooks = hooks.iter().map(|hook| hook.parse().expect("a hook")).collect();
    Config { hooks, modes: modes.iter().map(|mode| (*mode).to_owned()).collect(), draws: 2, ..Config::default() }
}

/// The writer writes at `<swi>`, the reader reads at `#`, both tokens of text; nothing uses the decoy's output.
#[test]
fn used_heads_matter_and_the_decoy_does_not() {
    let study = study(Purpose::Working, 60, 4);
    let point = |(layer, _): (usize, usize)| format!("blocks.{layer}.attn.hook_z");
    let head = |(_, head): (usize, usize)| vec![head.to_string().parse().expect("a head")];
    for (node, used) in [(WRITER, true), (READER, true), (DECOY, false)] {
        let positions = vec![Select::Text(None)];
        let config = Config { heads: head(node), positions, ..asked(&[&point(node)], &["zero", "mean"]) };
        let rows = try_rows(&study, &config).expect("rows");
        assert_eq!(rows.len(), 3, "normal, zero, mean");
        for row in &rows[1..] {
            assert_eq!(row.lowers(), used, "{node:?} {}: {} (p {})", row.mode, row.accuracy_change, row.p_holm);
            assert!(used || row.answer_changed.value == 0.0, "the decoy, {}: {}", row.mode, row.answer_changed);
            assert!(
                row.firings > 0 && row.hook.as_deref() == Some(&*point(node)) && row.place.as_deref() == Some("text")
            );
        }
    }
    // The MLP counts at every latent step; another problem has another value there.
    let steps = vec![Steps::Only(0), Steps::Only(2)];
    let config = Config { steps, ..asked(&[&format!("blocks.{COUNTS}.hook_mlp_out")], &["resample"]) };
    let rows = try_rows(&study, &config).expect("rows");
    assert!(rows.len() == 3 && rows[1..].iter().all(InterventionRow::lowers), "{rows:?}");
    // The prompt contributes only the digit, which is in the embedding.
    let config =
        Config { positions: vec![Select::Prompt], ..asked(&["hook_embed", "blocks.3.hook_mlp_out"], &["mean"]) };
    let rows = try_rows(&study, &config);
    let moved_nothing = rows.expect_err("the last MLP puts out zeros").to_string();
    assert!(moved_nothing.contains("blocks.3.hook_mlp_out"), "{moved_nothing}");
    let config = Config { positions: vec![Select::Position(4)], ..asked(&["hook_embed"], &["resample"]) };
    let rows = try_rows(&study, &config).expect("rows");
    assert!(rows[1].lowers() && rows[1].place.as_deref() == Some("pos[4]"), "the digit: {}", rows[1].accuracy_change);
}

#[test]
fn all_modes_are_those_that_act_at_a_hook_point() {
    let rows =
        try_rows(&study(Purpose::Working, 20, 4), &asked(&["blocks.2.hook_resid_post"], &["all"])).expect("rows");
    let acting = interventions::all().filter(|about| about.acts != Acts::OnLatents).map(|about| about.name);
    let ran: BTreeSet<&str> = rows.iter().map(|row| row.mode.as_str()).collect();
    assert_eq!(ran, acting.chain(["normal"]).collect());
}

/// Hook points of every rank and place; the experiment fails if a self-patch changes a bit.
#[test]
fn a_self_patch_changes_nothing() {
    let study = micro("sft", 24);
    let hooks =
        ["blocks.1.attn.hook_z", "blocks.1.attn.hook_pattern", "blocks.3.attn.hook_k", "blocks.2.hook_resid_post"];
    let mut config = asked(&hooks, &["self_patch"]);
    let more = ["blocks.0.ln1.hook_scale", "blocks.0.mlp.hook_post", "ln_final.hook_normalized"];
    config.hooks.extend(more.map(|hook| hook.parse().expect("a hook")));
    (config.steps, config.positions) =
        (vec![Steps::All], vec![Select::Prompt, Select::Text(None), Select::Position(9)]);
    let mut rows = try_rows(&study, &config).expect("rows");
    assert_eq!(rows.len(), 1 + 7 * 4);
    let inputs = asked(&["latent.hook_source", "latent.hook_injected"], &["self_patch"]);
    rows.extend(try_rows(&study, &inputs).expect("rows").into_iter().skip(1));
    for row in &rows[1..] {
        assert!(row.firings > 0 && row.answer_changed.value == 0.0, "{}: {}", row.acts_at(), row.answer_changed);
    }
}

/// One model of each family. A decode of two prompts with latent blocks reaches every hook point.
#[test]
fn every_intervention_runs_at_every_point_of_every_family_or_fails() {
    let families = [
        "gemma2_window",
        "gemma_mqa",
        "gpt2_tied",
        "llama_gqa",
        "mistral_gqa",
        "olmo2_gqa",
        "qwen2_tied",
        "qwen3_moe",
        "qwen3_tied",
    ];
    for family in families {
        let loaded = Loaded::open(&format!("fixtures/tiny/{family}")).expect("opens");
        let config = loaded.model.config();
        let v = config.vocab_size as u32;
        let switch = Some(SwitchIds { swi: v - 3, swi_end: v - 2, latent: v - 1 });
        let settings = DecodeSettings {
            switching: Switching::Forced,
            k_min: 2,
            k_cap: 2,
            max_new_tokens: 6,
            stop: vec![],
            ..loaded.settings()
        };
        let requests = Request::all([vec![5, 3, 8], vec![7, 2, 9]]);
        let log = || ChangeLog::from_requests(&requests);
        let run = |hooks: &mut Hooks| {
            let traces = decode(Decode { switch, ..loaded.decode(&settings) }, &requests, 1, hooks).expect("decodes");
            assert!(traces.iter().all(|trace| trace.end != End::NonFinite && trace.latent_calls() >= 2), "{family}");
        };
        let points: Vec<HookPoint> = HookPoint::all(loaded.layers()).into_iter().filter(|p| p.is_in(config)).collect();
        let banks: RefCell<BTreeMap<HookPoint, Bank>> = RefCell::default();
        let (normal, mut hooks) = (log(), Hooks::none());
        for point in &points {
            let record = |site: &Site, value: &Activation| {
                banks.borrow_mut().entry(site.point).or_default().record(Select::All, site, value, &normal)
            };
            hooks.observe(&HookSpec::all(point), loaded.layers(), record).expect("a hook");
        }
        run(&mut hooks);
        drop(hooks);
        let banks = banks.into_inner();
        for about in interventions::all() {
            let dose = about.doses.first().copied();
            let mut changes = vec![];
            for &point in &points {
                let spec = InterventionSpec::Named { about, dose };
                let alone = format!("{point}={spec}").parse::<Change>().expect("a change").resolve(config);
                let (attention, scale) = (
                    point.to_string().contains("attn.hook_attn_s") || point.to_string().ends_with("hook_pattern"),
                    point.to_string().ends_with("hook_scale"),
                );
                let reason = match about.name {
                    name if about.acts == Acts::OnLatents => {
                        Some((format!("`{name}` acts on latent inputs only"), true))
                    }
                    "zero" | "scale" | "self_patch" if attention => None,
                    _ if attention => Some(("number of keys differs".to_owned(), false)),
                    "zero" | "random_norm" | "rotate" | "gaussian" if scale => {
                        Some(("divided by this value".to_owned(), false))
                    }
                    _ => None,
                };
                let place = (Heads::default(), Select::All);
                let in_experiment = ModelChange::new(config, (format!("{point}={spec}"), vec![point]), place, spec);
                match reason {
                    Some((why, true)) => {
                        assert!(alone.is_err_and(|e| e.to_string().contains(&why)), "{family} {point}")
                    }
                    Some((why, false)) => {
                        let error = in_experiment.expect_err(&why).to_string();
                        assert!(error.contains(&why) && error.contains(&point.to_string()), "{family}: {error}");
                    }
                    None => {
                        assert_eq!(alone.is_ok(), about.acts == Acts::Alone, "{family} {point} {}", about.name);
                        changes.push(in_experiment.expect("it makes sense"));
                    }
                }
            }
            let material = |change: &ModelChange| Material { bank: &banks[&change.points[0]], ..Material::NONE };
            let draw = Draw { number: 0, seed: 3, dose: 0.0 };
            let prepared: Vec<(PreparedChange, ChangeLog)> =
                changes.iter().map(|change| (change.prepare(&material(change), |_| draw), log())).collect();
            let mut hooks = Hooks::none();
            for (change, log) in &prepared {
                hooks.change(change, log);
            }
            run(&mut hooks);
            for (change, (_, log)) in changes.iter().zip(&prepared) {
                let fired = log.firings().iter().all(|firings| firings.count > 0);
                assert!(fired, "{family}: {} at {} never fired", about.name, change.points[0]);
            }
        }
    }
}

/// A cell equals a decode of the same prompts with the test's hook at the same heads and step.
#[test]
fn a_cell_equals_a_decode_with_that_hook() {
    let study = micro("sft", 24);
    for (heads, zeroed) in [("1", &[1][..]), ("0+3", &[0, 3])] {
        let heads = vec![heads.parse().expect("heads")];
        let config = Config { heads, steps: vec![Steps::Only(1)], ..asked(&["blocks.1.attn.hook_z"], &["zero"]) };
        let rows = try_rows(&study, &config).expect("rows");
        let fired = std::cell::Cell::new(0);
        let mut hooks = Hooks::none();
        let spec: HookSpec = "blocks.1.attn.hook_z@latent[*,2]".parse().expect("a spec");
        let zero = |site: &Site, value: Activation| {
            let Activation::Rank4(z) = value else { anyhow::bail!("z has heads") };
            let [b, l, h, dh] = z.dims();
            let keep: Vec<f32> =
                (0..b * l * h * dh).map(|i| if zeroed.contains(&(i / dh % h)) { 0.0 } else { 1.0 }).collect();
            fired.set(fired.get() + site.places.len());
            let keep =
                burn::tensor::Tensor::<4>::from_data(burn::tensor::TensorData::new(keep, [b, l, h, dh]), &z.device());
            Ok(Activation::Rank4(z * keep))
        };
        hooks.replace(&spec, study.model.layers.len(), zero).expect("a hook");
        let settings = study.settings();
        let requests = switchyard::evaluation::requests(&study.corpus).expect("requests");
        let traces = decode(study.decoding(&settings), &requests, 1, &mut hooks).expect("traces");
        let scores = switchyard::evaluation::score(&traces, &study.corpus).expect("scores");
        assert_eq!(rows[1].accuracy, scores.accuracy, "heads {zeroed:?}");
        assert_eq!(rows[1].firings, fired.get());
        assert!(fired.get() > 10);
    }
}

/// Shorthands equal the full grammar; positions may count from the prompt's end.
#[test]
fn a_full_change_equals_its_shorthands() {
    let study = micro("sft", 12);
    let whole = ["blocks.2.attn.hook_z[head=0,3]@latent[*,2]=resample", "blocks.1.hook_mlp_out@pos[-1]=zero"];
    let whole = try_rows(&study, &asked(&whole, &[])).expect("rows");
    let heads = vec!["0+3".parse().expect("two heads")];
    let short = Config { heads, steps: vec![Steps::Only(1)], ..asked(&["blocks.2.attn.hook_z"], &["resample"]) };
    let short = try_rows(&study, &short).expect("rows");
    assert_eq!(whole.len(), 3, "normal, resample, zero");
    let without_holm = |row: &InterventionRow| InterventionRow { p_holm: 1.0, ..row.clone() };
    assert_eq!(without_holm(&whole[1]), without_holm(&short[1]));
    assert_eq!((whole[2].firings, whole[2].place.as_deref()), (12, Some("pos[-1]")), "one firing a problem");
    let prompts = &study.corpus.test_prompts;
    assert!(prompts.iter().any(|p| p.len() != prompts[0].len()), "prompts of several lengths");
    // Swapping in a run's own recording changes nothing.
    let last: Select = "pos[-1]".parse().expect("a position");
    let positions = vec![last];
    let short = Config { positions, ..asked(&["blocks.1.hook_mlp_out"], &["zero"]) };
    let short = try_rows(&study, &short).expect("rows");
    assert_eq!(without_holm(&whole[2]), without_holm(&short[1]));
}

#[test]
fn unknown_names_are_errors_before_any_work() {
    let study = micro("sft", 4);
    let head = |n: &str| vec![n.parse().expect("a head")];
    let z = asked(&["blocks.2.attn.hook_z"], &["zero"]);
    for (config, says) in [
        (asked(&["blocks.2.attn.hook_zz"], &["zero"]), "did you mean `blocks.2.attn.hook_z`"),
        (asked(&["blocks.9.attn.hook_z"], &["zero"]), "layer 9 does not exist"),
        (asked(&["blocks.2.attn.hook_z", "blocks.*.attn.hook_z"], &["zero"]), "`blocks.2.attn.hook_z` twice"),
        (asked(&["blocks.2.attn.hook_z[head=4]=zero"], &[]), "has 4 heads, 0 to 3"),
        (asked(&["blocks.2.attn.hook_z=swap:/no/such"], &[]), "/no/such: cannot read"),
        (Config { heads: head("4"), ..z.clone() }, "has 4 heads, 0 to 3"),
        (Config { heads: head("2"), hooks: asked(&["blocks.2.attn.hook_k"], &[]).hooks, ..z.clone() }, "has 2 heads"),
        (Config { heads: head("0"), hooks: asked(&["blocks.2.hook_mlp_out"], &[]).hooks, ..z.clone() }, "has no heads"),
        (Config { steps: vec![Steps::Only(40)], ..z.clone() }, "step 41 does not exist"),
        (asked(&["blocks.2.attn.hook_z"], &["zeroo"]), "did you mean `zero`"),
        (asked(&["blocks.2.attn.hook_z"], &["skip"]), "acts on latent inputs only"),
        (asked(&["blocks.2.attn.hook_z"], &["normal"]), "nothing to do"),
        (asked(&["blocks.2.ln1.hook_scale"], &["zero"]), "divided by this value"),
        (asked(&["blocks.2.attn.hook_pattern"], &["mean"]), "number of keys differs"),
        (asked(&["blocks.2.attn.hook_attn_scores"], &["resample"]), "number of keys differs"),
        (
            Config { positions: vec![Select::Prompt], ..asked(&["latent.hook_injected"], &["zero"]) },
            "latent steps only",
        ),
    ] {
        let error = format!("{:#}", try_rows(&study, &config).expect_err(says));
        assert!(error.contains(says), "{says}: {error}");
    }
    for (hook, says) in [
        ("blocks.2.attn.hook_z@latent[0,1]", "from 1"),
        ("blocks.2.attn.hook_z[heads=0]", "[head=0,3]"),
        ("blocks.2.attn.hook_z@latent=zeroo", "did you mean `zero`"),
        ("@latent=zero", "empty hook name"),
    ] {
        let error = hook.parse::<Change>().expect_err(says).to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("rows");
    let recipe = folder.path().join("recipe.toml");
    std::fs::write(&recipe, "[setting.head_patching]\nblocks = 1\n").expect("written");
    let recipe = recipe.display().to_string();
    for (args, says) in [
        (&["--hook", "blocks.2.attn.hook_q_z"][..], "did you mean"),
        (&["--hook", "blocks.2.attn.hook_z", "--positions", "promt"], "does not select positions"),
        (&["--hook", "blocks.2.attn.hook_z", "--later", "frozen"], "always recomputed"),
        (&["--heads", "0"], "need --hook"),
        (&["--hook", "blocks.2.attn.hook_z=zero", "--modes", "mean"], "--modes has no effect"),
        (&["--only", "switch_benefit", "--modes", "zero"], "--modes has no effect"),
        (&["--only", "latent_intervention", "--pairs", "3"], "--pairs has no effect"),
        (&["--modes", "zero,skip", "--draws", "3"], "--draws has no effect: none of the modes (zero, skip) draws"),
        (&["--hook", "blocks.2.attn.hook_z=zero", "--draws", "3"], "none of the modes (zero) draws"),
        (&["--modes", "normal,skip", "--at", "kv"], "--at has no effect: none of the modes (normal, skip) replaces"),
        (&["--only", "latent_intervention", "--later", "frozen,frozen"], "later: frozen is named twice"),
        (
            &["--hook", "blocks.2.attn.hook_z=zero,blocks.1.attn.hook_z=zero"],
            "unknown intervention `zero,blocks.1.attn",
        ),
        (&["--hook", "blocks.2.attn.hook_z[head=0]", "--heads", "1"], "--heads has no effect"),
        (&["--hook", "blocks.2.attn.hook_z@latent[*,2]=zero", "--steps", "3"], "--steps has no effect"),
        (&["--only", "hook_intervention"], "needs a hook point"),
        (&["--recipe", &recipe], "did you mean `settings`?"),
        (&["--only", "head_patching", "--set", "head_patching.block=1"], "unknown field `block`"),
        (
            &["--only", "head_patching", "--set", "head_patching.blocks=one"],
            "--set head_patching.blocks=one: invalid type",
        ),
        (&["--only", "head_patching", "--set", "head_patching.pairs=0"], "must be at least 1"),
        (&["--only", "head_patching", "--set", "head_patching.blocks"], "write key=value"),
        (&["--only", "switch_benefit", "--set", "head_patching.blocks=1"], "is not an experiment of this command"),
        (&["--only", "latent_intervention", "--draws", "3", "--set", "latent_intervention.draws=4"], "name it once"),
    ] {
        let mut command = program("intervene");
        command.args(["fixtures/micro", "--phase", "sft", "--problems", "4", "--out"]).arg(&out).args(args);
        refused(&mut command, &[says]);
        assert!(!out.exists(), "{args:?} left {}", out.display());
    }
}
