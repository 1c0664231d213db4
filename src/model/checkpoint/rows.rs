//! Rows of embedding and head for a vocabulary that changes size: cut, extend, and start new tokens from old ones.

use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::HostTensor;
use crate::random::normal;

/// What a new row is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RowInit {
    /// The mean of the old rows.
    Mean,
    /// The mean of these old rows: one seed token, or several whose meaning the new one combines.
    Tokens(Vec<u32>),
}

/// Sets `table`, `[rows, width]`, to `rows` rows. Rows beyond the old ones, if any, are the mean of the old ones (what
/// `resize_token_embeddings` starts from), so that a padded row is never far out.
pub(crate) fn resize_rows(table: &mut HostTensor, rows: usize) -> Result<()> {
    let (old, width) = check(table)?;
    ensure!(rows > 0, "cannot resize a table of {old} rows to none");
    let mean = if rows > old { source(table, &RowInit::Mean)? } else { vec![] };
    table.data.truncate(rows * width);
    for _ in old..rows {
        table.data.extend(&mean);
    }
    table.shape[0] = rows;
    Ok(())
}

/// Sets row `row` to its source plus normal noise of `jitter` times the source's root mean square. The noise depends
/// on `seed` and `row` alone, not on the order of calls; the same seed on embedding and head gives different noise
/// only if the caller gives different seeds.
pub(crate) fn init_row(table: &mut HostTensor, row: usize, init: &RowInit, jitter: f32, seed: u64) -> Result<()> {
    let (rows, width) = check(table)?;
    ensure!(row < rows, "cannot set row {row} of a table of {rows}: resize it first");
    ensure!(jitter.is_finite() && jitter >= 0.0, "the jitter of a new row must be at least 0, found {jitter}");
    let source = source(table, init)?;
    table.data[row * width..(row + 1) * width].copy_from_slice(&jittered(&source, row, jitter, seed));
    Ok(())
}

/// The row that [`init_row`] makes of its source.
pub(crate) fn jittered(source: &[f32], row: usize, jitter: f32, seed: u64) -> Vec<f32> {
    let rms = (source.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / source.len() as f64).sqrt();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(row as u64);
    source.iter().map(|s| s + (f64::from(jitter) * rms * normal(&mut random)) as f32).collect()
}

/// `(rows, width)` of a matrix.
fn check(table: &HostTensor) -> Result<(usize, usize)> {
    match table.shape[..] {
        [rows, width] if rows > 0 && width > 0 && table.data.len() == rows * width => Ok((rows, width)),
        _ => anyhow::bail!("expected a table [rows, width], found shape {:?}", table.shape),
    }
}

/// Mean of the rows named, summed in 64 bits.
fn source(table: &HostTensor, init: &RowInit) -> Result<Vec<f32>> {
    let (rows, width) = check(table)?;
    let chosen: Vec<usize> = match init {
        RowInit::Mean => (0..rows).collect(),
        RowInit::Tokens(ids) => ids.iter().map(|id| *id as usize).collect(),
    };
    ensure!(!chosen.is_empty(), "a new row needs at least one seed token");
    let mut sum = vec![0.0f64; width];
    for row in &chosen {
        ensure!(*row < rows, "seed token {row} has no row: the table has {rows}");
        for (s, v) in sum.iter_mut().zip(&table.data[row * width..(row + 1) * width]) {
            *s += f64::from(*v);
        }
    }
    Ok(sum.into_iter().map(|s| (s / chosen.len() as f64) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Result<HostTensor> {
        HostTensor::new(vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 12.0])
    }

    #[test]
    fn rows_are_cut_and_extended_with_the_mean() -> Result<()> {
        let mut t = table()?;
        resize_rows(&mut t, 4)?;
        assert_eq!((t.shape.as_slice(), &t.data[6..]), (&[4, 2][..], &[3.0, 6.0][..]));
        resize_rows(&mut t, 1)?;
        assert_eq!(t, HostTensor::new(vec![1, 2], vec![1.0, 2.0])?);
        assert!(resize_rows(&mut t, 0).is_err());
        Ok(())
    }

    #[test]
    fn a_row_starts_from_its_seed_and_repeats_with_it() -> Result<()> {
        let mut t = table()?;
        init_row(&mut t, 2, &RowInit::Tokens(vec![0, 1]), 0.0, 7)?;
        assert_eq!(t.data[4..], [2.0, 3.0]);
        let (mut a, mut b, mut c) = (table()?, table()?, table()?);
        init_row(&mut a, 2, &RowInit::Tokens(vec![0]), 0.1, 7)?;
        init_row(&mut b, 2, &RowInit::Tokens(vec![0]), 0.1, 7)?;
        init_row(&mut c, 2, &RowInit::Tokens(vec![0]), 0.1, 8)?;
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert!((a.data[4] - 1.0).abs() < 1.0 && a.data[4] != 1.0);
        assert!(init_row(&mut a, 3, &RowInit::Mean, 0.0, 0).is_err());
        assert!(init_row(&mut a, 0, &RowInit::Tokens(vec![9]), 0.0, 0).is_err());
        Ok(())
    }
}
