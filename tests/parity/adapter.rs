//! PEFT adapters: merged and attached factors give the same model.

use std::collections::BTreeMap;
use std::path::Path;

use burn::optim::GradientsParams;
use burn::tensor::Device;
use switchyard::loading::Checkpoint;
use switchyard::machine::Compute;
use switchyard::model::checkpoint::peft::{AdapterConfig, AdapterWeights, Apply, Factors, Targets, save_adapter};
use switchyard::model::checkpoint::{Dtype, HostTensor, ModelFiles, expected_parameters};
use switchyard::model::gradients::gradients_by_name;
use switchyard::model::lora::TARGETS;
use switchyard::model::{Decoder, Hooks};

use super::reference::{fixture, read, relative, rows, values};

/// Pseudo-random numbers, small enough that the adapter changes the logits without dominating them.
fn numbers(shape: &[usize], salt: usize) -> HostTensor {
    let data = (0..shape.iter().product()).map(|i| ((i * 37 + salt * 101) % 211) as f32 / 422.0 - 0.25).collect();
    HostTensor::new(shape.to_vec(), data).expect("fits")
}

/// Rank-stabilised factors on some projections of some layers.
fn save(dir: &Path, base: &str, r: usize, use_rslora: bool, chosen: impl Fn(&str) -> bool) {
    let config = ModelFiles::open(base).expect("opens").config;
    let named = expected_parameters(&config).into_iter().enumerate().filter(|(_, (name, _))| chosen(name));
    let factors: BTreeMap<String, Factors> = named
        .map(|(i, (name, s))| (name, Factors { a: numbers(&[r, s[1]], i), b: numbers(&[s[0], r], i + 7) }))
        .collect();
    let targets = TARGETS.iter().map(|t| (*t).to_owned()).filter(|t| factors.keys().any(|n| n.contains(t.as_str())));
    let config = AdapterConfig {
        r,
        alpha: 3.0,
        use_rslora,
        targets: Targets::Pattern(format!(r".*\.({})", targets.collect::<Vec<_>>().join("|"))),
        ..AdapterConfig::default()
    };
    let all = AdapterWeights { config, factors, replaced: BTreeMap::new(), token_rows: None, head_rows: None };
    save_adapter(dir, &all, Dtype::F32, &[], false).expect("saves");
}

fn load(base: &str, adapter: Option<&Path>, apply: Apply) -> Decoder {
    let opened = Checkpoint::open(base, adapter, apply).expect("opens");
    opened.load(&Device::flex().autodiff()).expect("loads").model
}

/// Name, rank, whether rank-stabilised, and weights with factors.
type Case<'a> = (&'a str, usize, bool, &'a dyn Fn(&str) -> bool);

#[test]
fn merged_and_attached_adapters_give_the_same_logits() {
    let root = tempfile::tempdir().expect("a folder");
    for name in ["qwen3_tied", "qwen2_tied", "llama_gqa", "olmo2_gqa", "gemma2_window"] {
        let base = fixture(&format!("tiny/{name}")).display().to_string();
        let rows = rows(&read(&format!("tiny/{name}/reference.safetensors")));
        let cases: [Case; 3] = [
            ("all", 4, false, &|n| TARGETS.iter().any(|t| n.ends_with(&format!("{t}.weight")))),
            ("q_only", 2, true, &|n| n.ends_with("q_proj.weight")),
            ("one_layer", 3, false, &|n| n.contains("layers.1.") && n.ends_with("down_proj.weight")),
        ];
        for (case, r, rslora, chosen) in cases {
            let dir = root.path().join(format!("{name}-{case}"));
            save(&dir, &base, r, rslora, chosen);
            let [plain, merged, attached] = [
                load(&base, None, Apply::Merged),
                load(&base, Some(&dir), Apply::Merged),
                load(&base, Some(&dir), Apply::ReplacedOnly),
            ];
            let trained: Vec<_> = attached.parameters().into_iter().filter(|p| p.trained).collect();
            assert!(
                !trained.is_empty() && trained.iter().all(|p| p.name.contains("lora")),
                "{name}, {case}: {trained:?}"
            );
            let loss = attached.logits(&rows[..1], &mut Hooks::none()).expect("a forward").square().mean();
            let grads = gradients_by_name(&attached, &GradientsParams::from_grads(loss.backward(), &attached));
            let names: Vec<String> = grads.expect("gradients").into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, trained.into_iter().map(|p| p.name).collect::<Vec<_>>(), "{name}, {case}");
            for row in &rows {
                let logits = |model: &Decoder| {
                    let ids = std::slice::from_ref(row);
                    values(&model.logits(ids, &mut Hooks::none()).expect("a forward"))
                };
                let (merged, attached) = (logits(&merged), logits(&attached));
                let off = relative(&attached, &merged, case);
                assert!(off <= 1e-5, "{name}, {case}: merged and attached differ by {off:e}");
                assert!(relative(&merged, &logits(&plain), case) > 1e-3, "{name}, {case}: the adapter has no effect");
            }
        }
    }
}

#[test]
fn modules_to_save_are_the_trained_weights() {
    let reference = read("tiny/qwen3_untied_peft_modules/reference.safetensors");
    let base = fixture("tiny/qwen3_untied").display().to_string();
    for apply in [Apply::Merged, Apply::ReplacedOnly] {
        let model = load(&base, Some(&fixture("tiny/qwen3_untied_peft_modules")), apply);
        for r in 0..2 {
            let ids: Vec<u32> = reference[&format!("row{r}.ids")].data.iter().map(|&id| id as u32).collect();
            let ours = values(&model.logits(&[ids], &mut Hooks::none()).expect("a forward"));
            let off = relative(&ours, &reference[&format!("row{r}.logits")].data, "logits");
            assert!(off <= 1e-5, "row {r}: off by {off:e}");
            let original = relative(&ours, &reference[&format!("row{r}.original.logits")].data, "logits");
            assert!(original > 1e-2, "row {r}: the untrained modules were read");
        }
    }
}

/// Rows of new tokens and of an old one, as PEFT's `trainable_token_indices` saves them; over weights in their stored format too.
#[test]
fn token_rows_have_the_logits_of_peft() {
    let folder = fixture("tiny/qwen3_tied_peft_tokens");
    let reference = read("tiny/qwen3_tied_peft_tokens/reference.safetensors");
    let base = fixture("tiny/qwen3_tied").display().to_string();
    let opened = |apply| Checkpoint::open(&base, Some(&folder), apply).expect("opens");
    let device = Device::flex();
    let models = [
        opened(Apply::Merged).load(&device).expect("loads").model,
        opened(Apply::ReplacedOnly).load(&device).expect("loads").model,
        opened(Apply::Merged).load_as(Compute::Stored, &device).expect("loads").model,
    ];
    for (how, model) in models.iter().enumerate() {
        for r in 0..2 {
            let ids: Vec<u32> = reference[&format!("row{r}.ids")].data.iter().map(|&id| id as u32).collect();
            let ours = values(&model.logits(&[ids], &mut Hooks::none()).expect("a forward"));
            let off = relative(&ours, &reference[&format!("row{r}.logits")].data, "logits");
            assert!(off <= 1e-5, "model {how}, row {r}: off by {off:e}");
        }
    }
}

/// Settings other than the list of projections: tied, omitted, excluded, scaled or default modules. Each case is a folder that PEFT
/// wrote, over a base of each family, with PEFT's logits.
#[test]
fn settings_agree_with_peft() {
    let reference = read("peft/reference.safetensors");
    let ids: Vec<u32> = reference["ids"].data.iter().map(|&id| id as u32).collect();
    let cases = std::fs::read_to_string(fixture("peft/cases.json")).expect("reads");
    let cases: BTreeMap<String, String> = serde_json::from_str(&cases).expect("cases");
    assert!(cases.len() > 20);
    let device = Device::flex();
    for (case, base) in &cases {
        let (base, folder) = (fixture(&format!("tiny/{base}")).display().to_string(), fixture(&format!("peft/{case}")));
        let opened = |apply| Checkpoint::open(&base, Some(&folder), apply).expect(case);
        let told = !opened(Apply::Merged).files.notes.is_empty();
        assert_eq!(told, case.starts_with("narrowed") || case == "excluded_later", "{case}");
        let kept = switchyard::model::Decoder::load_kept_to_train(&opened(Apply::Merged).files, &device);
        let mut models = vec![opened(Apply::Merged).load(&device).expect(case).model, kept.expect(case)];
        // Factors of tables, and of several ranks, are merged with a message.
        let is_whole = ["factors", "own_ranks"].iter().any(|part| case.contains(part));
        match opened(Apply::ReplacedOnly).load(&device) {
            Ok(loaded) => models.push(loaded.model),
            Err(error) => {
                let text = format!("{error:#}");
                assert!(is_whole && ["apart", "unmerged"].iter().any(|word| text.contains(word)), "{case}: {text}");
            }
        }
        assert_eq!(models.len(), if is_whole { 2 } else { 3 }, "{case}");
        for (how, model) in models.iter().enumerate() {
            let ours = values(&model.logits(std::slice::from_ref(&ids), &mut Hooks::none()).expect("a forward"));
            let off = relative(&ours, &reference[&format!("{case}.logits")].data, "logits");
            assert!(off <= 1e-5, "{case}, model {how}: off by {off:e}");
        }
    }
}
