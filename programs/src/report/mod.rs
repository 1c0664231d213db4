//! Tables, figures and pages, from records alone. Knows nothing of tensors.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`folder`] | a folder of results in memory; a missing file has no rows |
//! | [`paper`] | the paper's numbers, and its claims as comparisons |
//! | `cells` | our numbers for the paper's cells, and those that several exhibits share |
//! | [`exhibits`] | every table and figure, one file each: its records, cells, note and drawing |
//! | [`verdicts`] | tests whether a claim holds on our records; `claims_list` writes them |
//! | [`tables`] | tables whose numbers have interval and n, as Markdown, CSV and LaTeX |
//! | [`paper_tables`] | the paper's tables with ours next to them |
//! | [`figures`] | charts as SVG and PNG |
//! | [`compare`] | checkpoints of several folders side by side |
//! | [`journal`] | outcomes next to the records of a third party |
//! | `findings` | a checkpoint's findings, a sentence and a number each, for the page's cards |
//! | `letters` | replaces characters that are unsafe in a page, figure or table |
//! | [`front`], `picture` | the numbers and the picture of the README |
//! | [`recipes`] | the commands for each table and figure |
//! | `live` | the page's laboratory: small checkpoints that run in the reader's browser |
//! | [`page`], [`render`] | the page; from folders to all of it |

/// Names of a struct's fields as text, each checked by the compiler: `columns!(AccuracyRow: group, accuracy)`.
macro_rules! columns {
    ($row:ty: $($field:ident),+ $(,)?) => {{
        #[allow(dead_code)]
        fn fields(row: &$row) { $(let _ = &row.$field;)+ }
        &[$(stringify!($field)),+]
    }};
}

mod cells;
mod claims;
mod claims_list;
pub mod compare;
pub mod curves;
pub mod exhibits;
pub mod figures;
pub mod findings;
pub mod folder;
pub mod front;
mod generic;
pub mod journal;
mod letters;
mod live;
mod mixture;
pub mod page;
mod paired;
pub mod paper;
pub mod paper_tables;
mod picture;
pub mod recipes;
pub mod render;
mod render_table;
pub mod tables;
pub mod verdicts;

pub(crate) use live::explorer;
