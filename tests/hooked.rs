//! Interventions at hook points: what they do to models whose circuit is known, that a cell is a decode with that hook set, and that
//! what does not exist is refused before any work.

use std::collections::BTreeSet;

use crate::common::circuit_models::{COUNTS, DECOY, READER, WRITER, study};
use crate::common::known::{Purpose, micro};
use crate::common::programs::{program, refused};
use switchyard::experiments::hook_intervention::{self, Config};
use switchyard::interventions::{self, Acts};
use switchyard::latent::decode;
use switchyard::model::hooks::Site;
use switchyard::model::{Activation, HookSpec, Hooks, Select};
use switchyard::schema::{InterventionRow, Steps};
use switchyard::study::Study;

fn try_rows(study: &Study, config: &Config) -> anyhow::Result<Vec<InterventionRow>> {
    hook_intervention::rows(study, config).map(|summary| summary.rows)
}

fn asked(hooks: &[&str], modes: &[&str]) -> Config {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Config { hooks: owned(hooks), modes: owned(modes), draws: 2, ..Config::default() }
}

/// The writer writes at `<swi>`, the reader reads at `#`, both tokens of text; the decoy looks, and nothing uses it.
#[test]
fn heads_that_are_used_matter_and_the_decoy_does_not() {
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
    // The MLP counts at every latent step; what another problem held there is another value.
    let steps = vec![Steps::Only(0), Steps::Only(2)];
    let config = Config { steps, ..asked(&[&format!("blocks.{COUNTS}.hook_mlp_out")], &["resample"]) };
    let rows = try_rows(&study, &config).expect("rows");
    assert!(rows.len() == 3 && rows[1..].iter().all(InterventionRow::lowers), "{rows:?}");
    // At the prompt nothing is written that latents need but the digit itself, which the embedding holds.
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

/// Points of every rank and place; the experiment itself refuses a self-patch that changed a bit.
#[test]
fn a_value_put_in_its_own_place_changes_nothing() {
    let study = micro("sft", 24);
    let hooks =
        ["blocks.1.attn.hook_z", "blocks.1.attn.hook_pattern", "blocks.3.attn.hook_k", "blocks.2.hook_resid_post"];
    let mut config = asked(&hooks, &["self_patch"]);
    config
        .hooks
        .extend(["blocks.0.ln1.hook_scale", "blocks.0.mlp.hook_post", "ln_final.hook_normalized"].map(Into::into));
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

/// A cell is a decode of the same prompts with a hook of the test's own at the same heads and step.
#[test]
fn a_cell_is_a_decode_with_that_hook_set() {
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

/// The grammar and its shorthands are two ways to write one thing; a position can be counted from the prompt's end.
#[test]
fn a_change_written_whole_is_what_its_shorthands_say() {
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
    // The file of a recording put back in place of itself changes nothing.
    let last: Select = "pos[-1]".parse().expect("a position");
    let positions = vec![last];
    let short = Config { positions, ..asked(&["blocks.1.hook_mlp_out"], &["zero"]) };
    let short = try_rows(&study, &short).expect("rows");
    assert_eq!(without_holm(&whole[2]), without_holm(&short[1]));
}

#[test]
fn what_does_not_exist_is_refused_before_any_work() {
    let study = micro("sft", 4);
    let head = |n: &str| vec![n.parse().expect("a head")];
    let z = asked(&["blocks.2.attn.hook_z"], &["zero"]);
    for (config, says) in [
        (asked(&["blocks.2.attn.hook_zz"], &["zero"]), "did you mean `blocks.0.attn.hook_z`"),
        (asked(&["blocks.9.attn.hook_z"], &["zero"]), "layer 9 does not exist"),
        (asked(&["blocks.2.attn.hook_z", "blocks.*.attn.hook_z"], &["zero"]), "`blocks.2.attn.hook_z` twice"),
        (asked(&["blocks.2.attn.hook_z@latent[0,1]"], &["zero"]), "from 1"),
        (asked(&["blocks.2.attn.hook_z[heads=0]"], &["zero"]), "[head=0,3]"),
        (asked(&["blocks.2.attn.hook_z[head=4]=zero"], &[]), "has 4 heads, 0 to 3"),
        (asked(&["blocks.2.attn.hook_z@latent=zeroo"], &[]), "did you mean `zero`"),
        (asked(&["blocks.2.attn.hook_z=swap:/no/such"], &[]), "/no/such: cannot read"),
        (Config { heads: head("4"), ..z.clone() }, "has 4 heads, 0 to 3"),
        (Config { heads: head("2"), hooks: vec!["blocks.2.attn.hook_k".into()], ..z.clone() }, "has 2 heads"),
        (Config { heads: head("0"), hooks: vec!["blocks.2.hook_mlp_out".into()], ..z.clone() }, "has no heads"),
        (Config { steps: vec![Steps::Only(40)], ..z.clone() }, "step 41 does not exist"),
        (asked(&["blocks.2.attn.hook_z"], &["zeroo"]), "did you mean `zero`"),
        (asked(&["blocks.2.attn.hook_z"], &["skip"]), "acts on latent inputs only"),
        (asked(&["blocks.2.attn.hook_z"], &["normal"]), "nothing to do"),
        (asked(&["blocks.2.ln1.hook_scale"], &["zero"]), "divided by it"),
        (asked(&["blocks.2.attn.hook_pattern"], &["mean"]), "its own length"),
        (asked(&["blocks.2.attn.hook_attn_scores"], &["resample"]), "its own length"),
        (
            Config { positions: vec![Select::Prompt], ..asked(&["latent.hook_injected"], &["zero"]) },
            "latent steps only",
        ),
    ] {
        let error = format!("{:#}", try_rows(&study, &config).expect_err(says));
        assert!(error.contains(says), "{says}: {error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("rows");
    let recipe = folder.path().join("recipe.toml");
    std::fs::write(&recipe, "[setting.head_patching]\nblocks = 1\n").expect("written");
    let recipe = recipe.display().to_string();
    for (args, says) in [
        (&["--hook", "blocks.2.attn.hook_q_z"][..], "did you mean"),
        (&["--hook", "blocks.2.attn.hook_z", "--positions", "promt"], "names no positions"),
        (&["--hook", "blocks.2.attn.hook_z", "--later", "frozen"], "always recomputed"),
        (&["--heads", "0"], "need --hook"),
        (&["--hook", "blocks.2.attn.hook_z=zero", "--modes", "mean"], "--modes does nothing here"),
        (&["--only", "switch_benefit", "--modes", "zero"], "--modes does nothing here"),
        (&["--only", "latent_intervention", "--pairs", "3"], "--pairs does nothing here"),
        (&["--modes", "zero,skip", "--draws", "3"], "--draws does nothing here: none of the modes (zero, skip) draws"),
        (&["--hook", "blocks.2.attn.hook_z=zero", "--draws", "3"], "none of the modes (zero) draws"),
        (
            &["--modes", "normal,skip", "--at", "kv"],
            "--at does nothing here: none of the modes (normal, skip) replaces",
        ),
        (&["--only", "latent_intervention", "--later", "frozen,frozen"], "later: frozen is named twice"),
        (&["--hook", "blocks.2.attn.hook_z=zero,blocks.1.attn.hook_z=zero"], "unknown mode `zero,blocks.1.attn"),
        (&["--hook", "blocks.2.attn.hook_z[head=0]", "--heads", "1"], "--heads does nothing here"),
        (&["--hook", "blocks.2.attn.hook_z@latent[*,2]=zero", "--steps", "3"], "--steps does nothing here"),
        (&["--only", "hook_intervention"], "needs a hook point"),
        (&["--recipe", &recipe], "did you mean `settings`?"),
    ] {
        let mut command = program("intervene");
        command.args(["fixtures/micro", "--phase", "sft", "--problems", "4", "--out"]).arg(&out).args(args);
        refused(&mut command, &[says]);
        assert!(!out.exists(), "{args:?} left {}", out.display());
    }
}
