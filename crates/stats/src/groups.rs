//! Which rows belong to the same problem. Knows row indices and problem ids, not the rows.

use anyhow::{Result, ensure};

/// Rows collected by group id. Groups are numbered by sorted id, so the numbering does not depend on row order.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    /// Group number of each row.
    pub of_row: Vec<usize>,
    /// Row indices of each group.
    pub members: Vec<Vec<usize>>,
}

impl Groups {
    /// Numbers the distinct ids; one id per row.
    pub fn new(ids: &[usize]) -> Result<Self> {
        ensure!(!ids.is_empty(), "no rows: the list of group ids is empty");
        let distinct = distinct(ids);
        let mut members = vec![Vec::new(); distinct.len()];
        let of_row: Vec<usize> = ids.iter().map(|id| distinct.partition_point(|d| d < id)).collect();
        for (row, &group) in of_row.iter().enumerate() {
            members[group].push(row);
        }
        Ok(Self { of_row, members })
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }
}

/// The distinct values, ascending.
pub(crate) fn distinct(values: &[usize]) -> Vec<usize> {
    let mut distinct = values.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}
