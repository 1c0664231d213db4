//! The programs of `examples/`, included as modules so that no test starts cargo: their output and the calls that they use. Numbers of
//! the committed checkpoint are not asserted, because it may be retrained. And the program `switchyard`, which combines all four.

#[allow(dead_code)]
#[path = "../examples/attribute.rs"]
mod attribute;
#[allow(dead_code)]
#[path = "../examples/capture.rs"]
mod capture;
#[allow(dead_code)]
#[path = "../examples/patch.rs"]
mod patch;
#[allow(dead_code)]
#[path = "../examples/steer.rs"]
mod steer;

#[cfg(unix)]
use std::{path::Path, process::Command};

use switchyard::loading::Loaded;
use switchyard::model::Hooks;

const MICRO: &str = "fixtures/micro/sft/checkpoint";

fn number(text: &str, after: &str) -> f64 {
    let rest = text.split_once(after).expect(after).1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-').unwrap_or(rest.len());
    rest[..end].parse().expect(after)
}

#[test]
fn capture_has_a_line_for_every_position() {
    let found = capture::found().expect("found");
    println!("{found}");
    let lines: Vec<&str> = found.lines().skip(1).collect();
    for (position, line) in lines.iter().enumerate() {
        let (norm, mass) = (number(line, "norm "), number(line, "("));
        assert!(number(line, "") == position as f64 && number(line, "looks at") <= position as f64, "{line}");
        assert!(norm > 0.0 && mass > 0.0 && mass <= 1.0, "{line}");
    }
    for step in ["prompt", "text[0]", "latent[1,1]"] {
        assert!(lines.iter().any(|line| line.contains(step)), "no {step}: {found}");
    }
}

#[test]
fn patch_continues_from_another_problems_state() {
    let found = patch::found().expect("found");
    println!("{found}");
    let lines: Vec<&str> = found.lines().collect();
    let [normal, donor] = [0, 1].map(|i: usize| lines[i].split_once("→ ").expect("an answer").1);
    let patched: Vec<&str> = lines[2..].iter().map(|line| line.split_once(": ").expect("an answer").1).collect();
    assert!(normal != donor && !patched.is_empty());
    assert!(patched.iter().any(|said| *said != normal), "no latent of the donor changes the answer");
}

#[test]
fn attribute_names_five_places_and_patches_them() {
    let found = attribute::found().expect("found");
    println!("{found}");
    assert!(number(&found, "is ") > 0.0 && number(&found, "run, ") < 0.0, "each run prefers its own answer");
    let lines: Vec<&str> = found.lines().skip(1).collect();
    let effects: Vec<f64> = lines.iter().map(|line| number(line, ": ").abs()).collect();
    assert!(lines.len() == 5 && effects.windows(2).all(|two| two[0] >= two[1]));
    assert!(lines.iter().any(|line| number(line, "gradient, ").abs() > 0.05), "no patch does anything");
}

#[test]
fn steer_begins_with_the_answer_itself() {
    let found = steer::found().expect("found");
    println!("{found}");
    let said: Vec<&str> = found.lines().map(|line| line.split_once(": ").expect("an answer").1).collect();
    let loaded = Loaded::open(MICRO).expect("opens");
    let trace = loaded.generate("<bos> a = 5 ; h = a + 4 ; ? h :", &mut Hooks::none()).expect("a trace");
    let normal = loaded.said(&trace).expect("text");
    assert!(said.iter().step_by(4).all(|dose_of_0| *dose_of_0 == normal), "{found}");
    assert!(
        said.len() == 4 * loaded.layers() && said.iter().any(|other| *other != said[0]),
        "no dose changes the answer"
    );
}

#[test]
fn a_cache_equals_the_models_values() {
    let loaded = Loaded::open(MICRO).expect("opens");
    let row = loaded.row_of("<bos> a = 5 ; h = a + 4").expect("a row");
    let names = ["logits", "blocks.*.attn.hook_pattern", "blocks.1.attn.hook_z@pos[3]"];
    let cache = loaded.run_with_cache(&[row.clone(), row.clone()], &names, Hooks::none()).expect("a cache");
    assert_eq!(cache.len(), 2 + loaded.layers());
    let logits = crate::common::values(
        &loaded.model.logits(std::slice::from_ref(&row.ids), &mut Hooks::none()).expect("logits"),
    );
    assert!(crate::common::relative(&cache["logits"].data[logits.len()..], &logits) < 1e-5);
    let (z, heads) = (&cache["blocks.1.attn.hook_z@pos[3]"], loaded.model.config().num_attention_heads);
    assert_eq!(z.at(1, 3).expect("kept").len(), heads * loaded.model.config().head_dim);
    for (row, position) in [(0, 0), (1, 4), (1, 9)] {
        let pattern = cache["blocks.2.attn.hook_pattern"].at(row, position).expect("kept");
        let sums = pattern.chunks(pattern.len() / heads).map(|keys| keys.iter().sum::<f32>());
        assert!(sums.clone().count() == heads && sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }
    assert!(z.at(0, 4).is_err_and(|e| e.to_string().contains("position 4")));
    assert!(z.at(2, 3).is_err_and(|e| e.to_string().contains("row 2 of 2")));
}

#[test]
fn unknown_points_and_hooks_that_never_fire_are_errors() {
    let loaded = Loaded::open(MICRO).expect("opens");
    let rows = [loaded.row_of("<bos> a = 5 ;").expect("a row")];
    let refused = |names: &[&str], says: &str| {
        let error = loaded.run_with_cache(&rows, names, Hooks::none()).expect_err(says);
        assert!(format!("{error:#}").contains(says), "{error:#}");
    };
    refused(&[], "nothing to keep");
    refused(&["blocks.0.hook_resid_pots"], "did you mean");
    refused(&["latent.hook_injected"], "never fired");
    let mut hooks = Hooks::none();
    let never = "hook_embed@pos[40]".parse().expect("a hook");
    hooks.edit(&never, loaded.layers(), |_, _| Ok(())).expect("attached");
    assert!(loaded.run_with_cache(&rows, &["hook_embed"], hooks).is_err_and(|e| e.to_string().contains("pos[40]")));
    assert!(loaded.row_of("").is_err());
}

/// Replacing a state by its own values changes nothing; other values change the run, and the recording contains the values set.
#[test]
fn the_model_continues_from_an_edit() {
    let loaded = Loaded::open(MICRO).expect("opens");
    let prompt = "<bos> a = 5 ; h = a + 4 ; ? h :";
    let normal = loaded.generate(prompt, &mut Hooks::none()).expect("a trace");
    let rows = [loaded.row(&normal).expect("a row")];
    let name = "latent.hook_injected";
    let cache = loaded.run_with_cache(&rows, &[name], Hooks::none()).expect("a cache");
    let own = &cache[name];
    let edited = |factor: f32| {
        let mut hooks = Hooks::none();
        let put = move |site: &switchyard::model::Site, values: &mut [f32]| {
            let state = own.at(0, site.places[0].position)?;
            values.iter_mut().zip(state).for_each(|(x, own)| *x = factor * own);
            Ok(())
        };
        hooks.edit(&name.parse().expect("a hook"), loaded.layers(), put).expect("attached");
        hooks
    };
    assert_eq!(loaded.generate(prompt, &mut edited(1.0)).expect("a trace").visible(), normal.visible());
    // A `--hook` line is the same edit.
    let (halved, did) = loaded.generate_changed(prompt, &["latent.hook_injected=scale:0.5"]).expect("a trace");
    assert_eq!(halved.visible(), loaded.generate(prompt, &mut edited(0.5)).expect("a trace").visible());
    assert!(did[0].fired == halved.latent_calls() && did[0].mean_change > 0.0, "{did:?}");
    let never = loaded.generate_changed(prompt, &["latent.hook_injected@latent[9,1]=zero"]).expect_err("no block 9");
    assert!(never.to_string().contains("never fired"), "{never}");
    let kept = loaded.run_with_cache(&rows, &[name, "blocks.0.hook_resid_post"], edited(0.0)).expect("a cache");
    assert!(kept[name].data.iter().all(|x| *x == 0.0) && own.data.iter().any(|x| *x != 0.0));
}

/// `switchyard` behaves like each program, both under the program's name and with that name as the first argument.
#[cfg(unix)]
#[test]
fn one_binary_contains_all_four_programs() {
    let all = Path::new(env!("CARGO_BIN_EXE_switchyard"));
    let folder = all.parent().expect("a folder");
    let here = tempfile::tempdir().expect("a folder");
    let said = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().expect("a program");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    for name in ["train", "probe", "intervene", "report"] {
        let link = here.path().join(name);
        std::os::unix::fs::symlink(all, &link).expect("a link");
        for arguments in [&["--help"][..], &["--version"], &["--no-such-option"], &["--completions", "bash"]] {
            assert_eq!(said(&link, arguments), said(&folder.join(name), arguments), "{name} {arguments:?} by its name");
        }
        let (code, help, _) = said(all, &[name, "--help"]);
        let usage = format!("Usage: switchyard {name}");
        assert!(code == Some(0) && help.contains(&usage), "{help}");
        let (alone, through) =
            (said(&folder.join(name), &["--help"]).1, help.replace(&format!("switchyard {name}"), name));
        assert_eq!(through, alone, "{name}: `switchyard` prints the same");
        let wrong = said(all, &[name, "--no-such-option"]);
        assert!(wrong.0 == Some(2) && wrong.2.contains("--no-such-option"), "{wrong:?}");
    }
    let (code, out, _) = said(all, &[]);
    assert!(
        code == Some(0) && ["train", "probe", "intervene", "report"].iter().all(|name| out.contains(name)),
        "{out}"
    );
    let (code, out, error) = said(all, &["prob", "check"]);
    assert!(code == Some(2) && out.is_empty() && error.contains("probe"), "{error}");
}
