//! `subspace` on organisms.

use switchyard::calibration::known::{Built, VALUES};
use switchyard::experiments::subspace::{Config, rows_by, table};
use switchyard::schema::{Donors, Rotation, SubspaceRow, Variable};

use crate::common::known::{Purpose, of};

fn found(which: Purpose, config: Config, threads: usize) -> Vec<SubspaceRow> {
    let built = Built::new(which);
    let mut study = of(&built, 300, 0);
    study.threads = threads;
    // The answer implied by the block's value, whether or not the model reads it.
    let predict = |_: usize, _: usize, value: i64| Some(built.answer_of(usize::try_from(value).ok()?).to_string());
    let (rows, directions) = rows_by(&study, &config, &predict).expect("rows");
    // Every learnt or random subspace has orthonormal columns.
    for of in
        directions.chunk_by(|a, b| (a.variable, a.rotation, a.rank, a.draw) == (b.variable, b.rotation, b.rank, b.draw))
    {
        assert_eq!(of.iter().map(|row| row.column).collect::<Vec<_>>(), Vec::from_iter(0..of[0].rank));
        for (a, b) in of.iter().flat_map(|a| of.iter().map(move |b| (a, b))) {
            let dot: f64 = a.direction.iter().zip(&b.direction).map(|(x, y)| x * y).sum();
            assert!((dot - f64::from(u8::from(a.column == b.column))).abs() < 1e-9, "{a:?} {b:?}");
        }
    }
    let learnt = |rotation| directions.iter().filter(|row| row.rotation == rotation && row.column == 0).count();
    assert_eq!(learnt(Rotation::Random), config.ranks.len() * config.draws);
    assert_eq!(learnt(Rotation::Shuffled), config.ranks.len());
    println!("{which:?}\n{}", table(&rows));
    rows
}

/// Seven values, one coordinate each: their states differ in six dimensions.
const DIMENSIONS: usize = VALUES - 1;

/// An exchange of r dimensions covers on average r/6 of the squared distance between values; beyond half, the other value is read.
#[test]
fn a_value_moves_within_its_dimensions_and_with_no_placebo() {
    let ranks = vec![1, 2, 3, 5, DIMENSIONS, 8];
    let config = Config { ranks: ranks.clone(), pairs: 200, judged: 200, unseen: 0.0, ..Config::default() };
    let rows = found(Purpose::Working, config, 2);
    let best = |rotation, rank| {
        let of = rows.iter().filter(|r| (r.rotation, r.rank, r.donors) == (rotation, rank, Donors::Seen));
        of.map(|r| r.hit_rate.value).fold(0.0, f64::max)
    };
    let whole = rows.iter().filter(|r| r.rotation == Rotation::Whole).map(|r| r.rank).max().expect("whole states");
    assert!(best(Rotation::Whole, whole) > 0.95);
    for rank in ranks {
        let learnt = best(Rotation::Trained, rank);
        let all = learnt >= best(Rotation::Whole, whole) - 0.02;
        assert_eq!(all, rank >= DIMENSIONS, "rank {rank}: {learnt}");
        let random: Vec<_> = rows.iter().filter(|r| (r.rotation, r.rank) == (Rotation::Random, rank)).collect();
        assert!(!random.is_empty() && random.iter().all(|r| !r.carries()), "rank {rank}");
        // Means of the wrong states are within the few dimensions in which these states differ.
        let shuffled = best(Rotation::Shuffled, rank);
        assert!(rank < 3 || shuffled < learnt - 0.15, "rank {rank}: {shuffled} against {learnt}");
    }
    assert!(!table(&rows).contains("training has not converged"), "{}", table(&rows));
    assert_eq!(SubspaceRow::dimensions(&rows, Variable::Value, 0.98), Some(DIMENSIONS));
    assert!(rows.iter().all(|r| (r.trained_on > 0) == matches!(r.rotation, Rotation::Trained | Rotation::Shuffled)));
}

#[test]
fn an_unconverged_search_is_reported_and_threads_change_nothing() {
    let config = Config { ranks: vec![1], updates: 1, pairs: 40, judged: 40, ..Config::default() };
    let rows = found(Purpose::Working, config.clone(), 1);
    assert!(table(&rows).contains("training has not converged"), "{}", table(&rows));
    assert_eq!(rows, found(Purpose::Working, config, 3));
}

#[test]
fn an_unread_value_has_no_effect() {
    let rows = found(Purpose::Inert, Config { ranks: vec![1, 8], updates: 60, ..Config::default() }, 1);
    assert!(rows.iter().all(|r| !r.carries()), "{}", table(&rows));
    assert_eq!(SubspaceRow::dimensions(&rows, Variable::Value, 0.9), None);
}
