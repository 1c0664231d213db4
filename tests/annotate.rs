//! The span rule against its definition, and annotation of a corpus: batches, resume, errors.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::Path;

use proptest::prelude::*;
use switchyard::method::curriculum::{At, staged};
use switchyard::recipe::Latent;
use switchyard::tasks::{Affine, Chains, Split, Task};
use switchyard::text::annotate::{AnnotateSettings, annotate, batches};
use switchyard::text::spans::{ScoredResponse, SpanSettings, mean};
use switchyard::text::tagging::{Annotation, read_tagged};
use switchyard::text::{Problem, Sample, Template, Vocabulary, read_problems};

fn scored<'a>(
    entropies: &'a [f32],
    clauses: &'a [Range<usize>],
    answer: Option<&'a Range<usize>>,
) -> ScoredResponse<'a> {
    ScoredResponse { entropies, clauses, answer }
}

fn spans(
    settings: &SpanSettings,
    entropies: &[f32],
    answer: Option<Range<usize>>,
    threshold: f32,
) -> Vec<(usize, usize)> {
    ends(&settings.choose(scored(entropies, &[], answer.as_ref()), threshold).spans)
}

/// Start and end of each span.
fn ends(spans: &[Range<usize>]) -> Vec<(usize, usize)> {
    spans.iter().map(|span| (span.start, span.end)).collect()
}

#[test]
fn runs_merge_over_small_gaps_and_stop_at_the_answer() {
    let rule = SpanSettings::default();
    let high = |positions: &[usize], length: usize| -> Vec<f32> {
        (0..length).map(|position| if positions.contains(&position) { 2.0 } else { 0.0 }).collect()
    };
    assert_eq!(spans(&rule, &high(&[1, 3], 9), None, 1.0), [(1, 4)]);
    assert_eq!(spans(&rule, &high(&[1, 4], 9), None, 1.0), []);
    assert_eq!(spans(&SpanSettings { merge_gap: 2, ..rule.clone() }, &high(&[1, 4], 9), None, 1.0), [(1, 5)]);
    // Position 2 is the answer: no span contains it or crosses it.
    assert_eq!(spans(&rule, &high(&[0, 1, 2, 3, 4], 9), Some(2..3), 1.0), [(0, 2), (3, 5)]);
    assert_eq!(spans(&rule, &high(&[1, 3], 9), Some(2..3), 1.0), []);
    // A single position is below the default minimum length; the report counts it.
    let chosen = rule.choose(scored(&high(&[5], 9), &[], None), 1.0);
    assert_eq!((chosen.spans.len(), chosen.too_short), (0, 1));
}

#[test]
fn long_runs_keep_their_most_uncertain_window_and_the_cap_keeps_the_best_spans() {
    let rule = SpanSettings { max_length: 3, ..SpanSettings::default() };
    assert_eq!(spans(&rule, &[2.0, 2.0, 3.0, 9.0, 3.0, 2.0], None, 1.0), [(2, 5)]);
    let five = |value: f32| [value, value, value, 0.0, 0.0];
    let entropies: Vec<f32> = [2.0, 5.0, 3.0, 4.0].iter().flat_map(|value| five(*value)).collect();
    let rule = SpanSettings { latent_cap: 13, ..rule };
    let chosen = rule.choose(scored(&entropies, &[], None), 1.0);
    assert_eq!(ends(&chosen.spans), [(5, 8), (15, 18)], "the two most uncertain of four, six latents each");
    assert_eq!(chosen.over_cap, 2);
}

#[test]
fn clauses_are_tagged_whole_and_never_the_answers() {
    let rule = SpanSettings { snap_to_clause: true, ..SpanSettings::default() };
    let entropies = [0.0, 0.1, 0.1, 1.7, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 9.0];
    let (clauses, answer) = ([1..4, 5..8, 10..12], 10..12);
    let sample = scored(&entropies, &clauses, Some(&answer));
    let threshold = rule.threshold([sample].into_iter()).unwrap();
    assert_eq!(
        ends(&rule.choose(sample, threshold).spans),
        [(1, 4)],
        "the lower of two clauses is the quantile itself"
    );
    let none = rule.threshold([scored(&entropies, &[], None)].into_iter()).unwrap_err().to_string();
    assert!(none.contains("spans.snap_to_clause"), "{none}");
}

#[test]
fn contradictory_settings_are_refused_by_name() {
    let good = SpanSettings::default();
    good.check().unwrap();
    for (settings, name) in [
        (SpanSettings { top_share: 0.0, ..good.clone() }, "spans.top_share"),
        (SpanSettings { top_share: f64::NAN, ..good.clone() }, "spans.top_share"),
        (SpanSettings { clause_quantile: 1.0, ..good.clone() }, "spans.clause_quantile"),
        (SpanSettings { min_length: 0, ..good.clone() }, "spans.min_length"),
        (SpanSettings { min_length: 9, ..good.clone() }, "spans.min_length"),
        (SpanSettings { max_length: 9, ..good.clone() }, "spans.max_length"),
        (SpanSettings { latents_per_token: 0.0, ..good.clone() }, "spans.latents_per_token"),
        (SpanSettings { latent_cap: 3, ..good.clone() }, "spans.latent_cap"),
    ] {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(name), "{error:?} does not name {name}");
    }
    let unknown = toml::from_str::<AnnotateSettings>("[spans]\ntop_shares = 0.1").unwrap_err().to_string();
    assert!(unknown.contains("top_shares"), "{unknown}");
}

/// The token rule by its definition, one position at a time, before windows and cap.
fn reference(entropies: &[f32], answer: &Range<usize>, threshold: f32, gap: usize) -> Vec<bool> {
    let high: Vec<bool> = (0..entropies.len()).map(|at| entropies[at] > threshold && !answer.contains(&at)).collect();
    let mut inside = high.clone();
    for (at, inside) in inside.iter_mut().enumerate() {
        let left = (0..=at).rev().find(|i| high[*i]);
        let right = (at..high.len()).find(|i| high[*i]);
        if let (Some(left), Some(right)) = (left, right)
            && right - left <= gap + 1
            && !(left..right).any(|i| answer.contains(&i))
        {
            *inside = true;
        }
    }
    inside
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spans_satisfy_every_rule(
        entropies in prop::collection::vec(prop_oneof![Just(0.0f32), 0.0f32..3.0], 1..120),
        (start, length) in (0usize..120, 0usize..10),
        merge_gap in 0usize..4, min_length in 1usize..4, max_length in 4usize..9, latent_cap in 16usize..60,
    ) {
        let rule = SpanSettings { merge_gap, min_length, max_length, latent_cap, ..SpanSettings::default() };
        rule.check().unwrap();
        let answer = start.min(entropies.len())..(start + length).min(entropies.len());
        let threshold = rule.threshold([scored(&entropies, &[], Some(&answer))].into_iter()).unwrap();
        let above = entropies.iter().filter(|e| **e > threshold).count();
        prop_assert!(above as f64 <= 0.2 * entropies.len() as f64);
        let next = entropies.iter().filter(|e| **e >= threshold).count();
        prop_assert!(next as f64 > 0.2 * entropies.len() as f64, "a lower threshold would do");

        let chosen = rule.choose(scored(&entropies, &[], Some(&answer)), threshold);
        let inside = reference(&entropies, &answer, threshold, merge_gap);
        for span in &chosen.spans {
            prop_assert!((min_length..=max_length).contains(&span.len()));
            prop_assert!(span.clone().all(|at| inside[at] && !answer.contains(&at)));
        }
        for pair in chosen.spans.windows(2) {
            prop_assert!(pair[0].end + merge_gap < pair[1].start || answer.start < pair[1].start && pair[0].end <= answer.start);
        }
        let latents: usize = chosen.spans.iter().map(|span| rule.latents(span)).sum();
        prop_assert!(latents <= latent_cap);
        if chosen.over_cap == 0 {
            // Every run that is long enough has a span: the run or a window of it.
            let mut at = 0;
            while at < inside.len() {
                let end = (at..inside.len()).find(|i| !inside[*i]).unwrap_or(inside.len());
                if end - at >= min_length {
                    let found = chosen.spans.iter().find(|span| at <= span.start && span.end <= end);
                    prop_assert_eq!(found.map(|span| span.len()), Some((end - at).min(max_length)));
                }
                at = end + 1;
            }
        } else {
            prop_assert!(latents + rule.latents(&(0..max_length)) > latent_cap, "a left-out span would have fitted");
        }
    }
}

fn corpus(rows: u64) -> (Vocabulary, Vec<Sample>) {
    let tasks = [Task::Chains(Chains::default()), Task::Affine(Affine::default())];
    let mut vocabulary = Vocabulary::from_words(tasks.iter().flat_map(Task::words)).unwrap();
    vocabulary.add_switch_tokens().unwrap();
    let rows = tasks.iter().flat_map(|task| task.rows(Split::Train, 0, 0..rows).unwrap());
    let sample = |row| Sample::new(&Problem::from(row), &vocabulary, &Template::Words.into()).unwrap();
    let samples = rows.map(sample).collect();
    (vocabulary, samples)
}

/// High after `=`, as in a model that has not learned to calculate yet; a little noise from the ids.
fn pretend(sample: &Sample) -> Vec<f32> {
    let after_equals = |at: usize| at > 0 && sample.token(at - 1) == "=";
    let noise = |at: usize| (sample.response[at] as usize * 31 + at * 17) as f32 % 97.0 / 1000.0;
    (0..sample.response.len()).map(|at| noise(at) + if after_equals(at) { 1.7 } else { 0.0 }).collect()
}

#[test]
fn tags_can_be_removed_and_ids_agree_with_text() {
    let (vocabulary, samples) = corpus(40);
    let switch = vocabulary.switch().unwrap();
    let settings = AnnotateSettings {
        spans: SpanSettings { snap_to_clause: true, ..SpanSettings::default() },
        ..AnnotateSettings::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let all = |batch: &[&Sample]| Ok(batch.iter().map(|sample| pretend(sample)).collect());
    let annotation = annotate(&samples, &settings, folder.path(), "test", all, |_, _| {}).unwrap();
    let mut tagged = 0;
    for (row, sample) in annotation.tagged.iter().zip(&samples) {
        assert_eq!(row.tagged_solution.replace("<swi>", "").replace("</swi>", ""), sample.solution);
        let ids = staged(&sample.response, &row.spans, &[], At::TEXT, &Latent::default(), switch);
        assert_eq!(vocabulary.encode(&row.tagged_solution).unwrap(), ids);
        for span in &row.spans {
            assert!(sample.clauses.contains(span), "{span:?} of {} is no clause", sample.id);
            tagged += 1;
        }
        assert_eq!(sample.clauses.len(), sample.solution.matches(';').count());
        let answer = sample.answer.clone().unwrap();
        assert_eq!((sample.token(answer.start), answer.len()), ("#", 2));
    }
    // Clauses above the 25 % quantile, minus those that the latent cap removes.
    let clauses: usize = samples.iter().map(|sample| sample.clauses.len()).sum();
    let kept = tagged + annotation.summary.over_cap;
    assert!((kept as f64 / clauses as f64 - 0.75).abs() < 0.1, "{kept} of {clauses}");
    let excerpt = annotation.excerpt(2);
    assert!(excerpt.contains("<swi>") && excerpt.lines().count() == 5, "{excerpt}");
}

fn outputs(folder: &Path) -> Vec<Vec<u8>> {
    ["tagged.jsonl", "summary.json", "entropies.parquet"].map(|name| std::fs::read(folder.join(name)).unwrap()).into()
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let (_, samples) = corpus(30);
    let settings = AnnotateSettings { batch_rows: 7, part_rows: 10, ..AnnotateSettings::default() };
    let whole = tempfile::tempdir().unwrap();
    let run = |folder: &Path, fail_after: usize, calls: &Cell<usize>| -> anyhow::Result<Annotation> {
        let score = |batch: &[&Sample]| {
            anyhow::ensure!(calls.get() < fail_after, "the machine went away");
            calls.set(calls.get() + 1);
            Ok(batch.iter().map(|sample| pretend(sample)).collect())
        };
        annotate(&samples, &settings, folder, "model A", score, |_, _| {})
    };
    let calls = Cell::new(0);
    let expected = run(whole.path(), usize::MAX, &calls).unwrap();
    let batches = calls.get();
    assert_eq!(batches, 60usize.div_ceil(7));

    let stopped = tempfile::tempdir().unwrap();
    let calls = Cell::new(0);
    assert!(run(stopped.path(), 3, &calls).unwrap_err().to_string().contains("went away"));
    assert!(!stopped.path().join("tagged.jsonl").exists());
    // A file left by a kill during a write is not a part.
    std::fs::write(stopped.path().join("entropies/.part-00003.parquet.1.tmp"), b"half").unwrap();
    let calls = Cell::new(0);
    let resumed = run(stopped.path(), usize::MAX, &calls).unwrap();
    assert_eq!(calls.get(), batches - 3, "stored scores are not recomputed");
    assert_eq!(resumed, expected);
    assert_eq!(outputs(stopped.path()), outputs(whole.path()));
    assert_eq!(read_tagged(&whole.path().join("tagged.jsonl")).unwrap(), expected.tagged);

    // All scores exist and only the span settings differ: no model call.
    let calls = Cell::new(0);
    run(stopped.path(), 0, &calls).unwrap();

    let other = annotate(&samples, &settings, stopped.path(), "model B", |_| unreachable!(), |_, _| {});
    let error = other.unwrap_err().to_string();
    assert!(error.contains("model A") && error.contains("model B"), "{error}");
    let mut changed = samples.clone();
    changed[4].response.pop();
    let error = annotate(&changed, &settings, stopped.path(), "model A", |_| unreachable!(), |_, _| {});
    assert!(error.unwrap_err().to_string().contains(&changed[4].id));
    std::fs::write(stopped.path().join("entropies/part-00000.parquet"), b"torn").unwrap();
    let error = format!("{:#}", run(stopped.path(), 0, &calls).unwrap_err());
    assert!(error.contains("part-00000.parquet"), "{error}");
}

#[test]
fn batches_have_similar_lengths_within_their_limits() {
    let (_, samples) = corpus(100);
    let longest = samples.iter().map(Sample::length).max().unwrap();
    let mut seen = 0;
    let mut before = 0;
    for batch in batches(samples.iter().collect(), 16, 4 * longest) {
        let width = batch.iter().map(|sample| sample.length()).max().unwrap();
        assert!(batch.len() <= 16 && batch.len() * width <= 4 * longest);
        assert!(batch.iter().all(|sample| sample.length() >= before));
        before = width;
        seen += batch.len();
    }
    assert_eq!(seen, samples.len());
    assert_eq!(
        batches(samples.iter().collect(), 16, 1).len(),
        samples.len(),
        "a sample too long for a batch goes alone"
    );
}

#[test]
fn wrong_scores_are_errors_by_sample() {
    let (_, samples) = corpus(3);
    let settings = AnnotateSettings::default();
    let refused = |change: &dyn Fn(&mut Vec<Vec<f32>>)| {
        let folder = tempfile::tempdir().unwrap();
        let order = RefCell::new(String::new());
        let score = |batch: &[&Sample]| {
            let mut scores = batch.iter().map(|sample| pretend(sample)).collect();
            change(&mut scores);
            *order.borrow_mut() = batch[0].id.clone();
            Ok(scores)
        };
        let error = annotate(&samples, &settings, folder.path(), "m", score, |_, _| {}).unwrap_err().to_string();
        error.replace(&order.into_inner(), "FIRST")
    };
    assert!(refused(&|scores| scores[0][2] = f32::NAN).contains("sample FIRST: entropy NaN at response token 2"));
    assert!(refused(&|scores| scores[0][1] = -0.5).contains("sample FIRST: entropy -0.5"));
    assert!(refused(&|scores| scores[0].push(0.0)).contains("sample FIRST: expected"));
    assert!(refused(&|scores| scores.truncate(1)).contains("6 samples, got 1"));
    let twice = [samples[0].clone(), samples[0].clone()];
    let folder = tempfile::tempdir().unwrap();
    let error = annotate(&twice, &settings, folder.path(), "m", |_| unreachable!(), |_, _| {}).unwrap_err();
    assert!(error.to_string().contains(&samples[0].id));
}

#[test]
fn real_solutions_round_trip_under_the_real_tokenizer() {
    let Some(data) = crate::common::real_data("real solutions") else { return };
    let mut vocabulary = Vocabulary::load(data.join("qwen3_tokenizer")).unwrap();
    let switch = vocabulary.add_switch_tokens().unwrap();
    let mut samples = Vec::new();
    for file in ["math500/test.jsonl", "prosqa/prosqa_valid.json", "gsm8k_equations/gsm_eq_valid.jsonl"] {
        for problem in &read_problems(data.join(file)).unwrap()[..150] {
            samples.push(Sample::new(problem, &vocabulary, &Template::Qwen3.into()).unwrap());
        }
    }
    let pretend = |batch: &[&Sample]| {
        let noise = |id: &u32| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
        Ok(batch.iter().map(|sample| sample.response.iter().map(noise).collect()).collect())
    };
    for snap_to_clause in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let spans = SpanSettings { snap_to_clause, ..SpanSettings::default() };
        let settings = AnnotateSettings { spans, ..AnnotateSettings::default() };
        let annotation = annotate(&samples, &settings, folder.path(), "noise", pretend, |_, _| {}).unwrap();
        assert!(annotation.summary.spans > 100, "{:?}", annotation.summary);
        for ((row, sample), entropies) in annotation.tagged.iter().zip(&samples).zip(&annotation.entropies) {
            assert_eq!(row.tagged_solution.replace("<swi>", "").replace("</swi>", ""), sample.solution);
            let ids = staged(&sample.response, &row.spans, &[], At::TEXT, &Latent::default(), switch);
            let visible: Vec<u32> = ids.iter().copied().filter(|id| *id < switch.swi).collect();
            assert_eq!(visible, sample.response);
            assert_eq!(vocabulary.decode(&ids).unwrap(), row.tagged_solution, "{}", row.id);
            assert!(row.latents <= 48);
            assert!(row.spans.iter().all(|span| mean(entropies, span) >= 0.0));
            let answer = sample.answer.clone().unwrap();
            let bytes = sample.offsets[answer.start].0..sample.offsets[answer.end - 1].1;
            let stated = sample.solution[bytes].trim_start();
            assert!(stated.starts_with('#') || stated.contains("\\boxed"), "{stated:?}");
            assert!(row.spans.iter().all(|span| span.end <= answer.start || answer.end <= span.start));
        }
    }
}
