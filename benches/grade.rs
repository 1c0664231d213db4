//! Speed of the grader: pairs per second on one core, over the fixture's pairs (and the development pairs, if present).

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::Value;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use switchyard::grade;

fn pairs(path: &Path) -> Vec<(String, String)> {
    let Ok(text) = std::fs::read_to_string(path) else { return vec![] };
    let rows = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    rows.filter_map(|r| Some((r["gold"].as_str()?.to_string(), r["pred"].as_str()?.to_string()))).collect()
}

fn grade(c: &mut Criterion) {
    let root = Path::new(".");
    let data = std::env::var_os("SWITCHYARD_DATA").map_or_else(|| root.join("../shared/data"), PathBuf::from);
    let files = [("fixture", root.join("fixtures/grader/pairs.jsonl")), ("development", data.join("grader/dev.jsonl"))];
    let mut group = c.benchmark_group("grade");
    for (name, path) in files {
        let pairs = pairs(&path);
        if pairs.is_empty() {
            println!("skipped {name}: no pairs at {}", path.display());
            continue;
        }
        group.throughput(Throughput::Elements(pairs.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                for (gold, pred) in &pairs {
                    black_box(grade::grade(gold, pred));
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, grade);
criterion_main!(benches);
