//! Train/test splits of rows, by row or by group. Knows indices and group ids only.
//!
//! Splitting by row lets positions of one problem sit on both sides, and a probe then scores partly by recognising the
//! problem; splitting by group is the honest way and the default of our protocol.

use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::Groups;

/// Row indices of the two sides, each sorted upwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub train: Vec<usize>,
    pub test: Vec<usize>,
}

/// One split by row: `⌈test_share · n⌉` rows go to test (scikit-learn's `train_test_split` rounds the same way).
pub fn holdout(n: usize, test_share: f64, seed: u64) -> Result<Split> {
    grouped_holdout(&(0..n).collect::<Vec<_>>(), test_share, seed)
}

/// One split by group: `⌈test_share · groups⌉` groups go to test with all their rows (as `GroupShuffleSplit`).
pub fn grouped_holdout(groups: &[usize], test_share: f64, seed: u64) -> Result<Split> {
    ensure!(test_share > 0.0 && test_share < 1.0, "test share must lie between 0 and 1, got {test_share}");
    let groups = Groups::new(groups)?;
    let held = (test_share * groups.len() as f64).ceil() as usize;
    ensure!(
        held < groups.len(),
        "{} groups leave none for training if a share of {test_share} is held out",
        groups.len()
    );
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut in_test = vec![false; groups.len()];
    order[..held].iter().for_each(|&g| in_test[g] = true);
    Ok(divide(&groups, |g| in_test[g]))
}

/// `k` splits by group whose test sides cover every row once. Groups holding a positive label are dealt out first, round
/// robin after a shuffle, so that every fold gets its share of positives however rare they are. If that leaves a fold without a
/// negative, groups holding a negative are dealt out first.
pub fn grouped_kfold(groups: &[usize], labels: &[bool], k: usize, seed: u64) -> Result<Vec<Split>> {
    ensure!(groups.len() == labels.len(), "{} group ids but {} labels", groups.len(), labels.len());
    let groups = Groups::new(groups)?;
    ensure!(k >= 2, "k-fold needs k >= 2, got {k}");
    ensure!(groups.len() >= k, "{} groups cannot fill {k} folds", groups.len());
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let has = |g: usize, label: bool| groups.members[g].iter().any(|&r| labels[r] == label);
    order.sort_by_key(|&g| !has(g, true)); // stable: keeps the shuffle within each kind
    let mut fold = vec![0; groups.len()];
    order.iter().enumerate().for_each(|(i, &g)| fold[g] = i % k);
    let negatives = (0..groups.len()).filter(|&g| has(g, false)).count();
    if negatives >= k && (0..k).any(|f| (0..groups.len()).all(|g| fold[g] != f || !has(g, false))) {
        order.sort_by_key(|&g| (!has(g, false), !has(g, true)));
        order.iter().enumerate().for_each(|(i, &g)| fold[g] = i % k);
    }
    Ok((0..k).map(|f| divide(&groups, |g| fold[g] == f)).collect())
}

fn divide(groups: &Groups, in_test: impl Fn(usize) -> bool) -> Split {
    let (test, train) = (0..groups.of_row.len()).partition(|&row| in_test(groups.of_row[row]));
    Split { train, test }
}

#[cfg(test)]
mod tests {
    use super::grouped_kfold;

    #[test]
    fn every_fold_has_both_labels_however_rare_one_is() {
        // 60 problems, each with a row of the frequent label, six of them also with one of the other.
        let groups: Vec<usize> = (0..60).chain(0..6).collect();
        for frequent in [false, true] {
            let labels: Vec<bool> = (0..66).map(|row| (row < 60) == frequent).collect();
            for seed in 0..50 {
                for split in grouped_kfold(&groups, &labels, 3, seed).expect("folds") {
                    let positives = split.test.iter().filter(|&&row| labels[row]).count();
                    assert!((1..split.test.len()).contains(&positives), "seed {seed}: {positives} positives");
                }
            }
        }
    }
}
