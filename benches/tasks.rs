//! Generated problems per second on one core. Goal (issue 4): at least 100,000.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use switchyard::tasks::{Affine, Chains, Graph, Levels, Multiply, Split, Task};

fn generate(criterion: &mut Criterion) {
    let multiply = Multiply { levels: Levels { min: 1, max: 4 } };
    let tasks = [
        Task::Chains(Chains::default()),
        Task::Affine(Affine::default()),
        Task::Graph(Graph::default()),
        Task::Multiply(multiply),
    ];
    let mut group = criterion.benchmark_group("tasks");
    group.throughput(Throughput::Elements(1000));
    for task in &tasks {
        for split in [Split::Train, Split::Test] {
            let mut index = 0;
            group.bench_function(format!("{}/{}", task.name(), split.name()), |bench| {
                bench.iter(|| {
                    index += 1000;
                    black_box(task.rows(split, 1, index..index + 1000).expect("rows"))
                })
            });
        }
    }
    group.finish();
}

criterion_group!(benches, generate);
criterion_main!(benches);
