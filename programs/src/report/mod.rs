//! Tables, figures and pages, from rows alone. Knows nothing of tensors.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`folder`] | a folder of results in memory; a missing file has no rows |
//! | [`paper`] | what the paper reports, and its claims as comparisons |
//! | `cells` | our numbers next to the paper's, and those that several exhibits share |
//! | [`exhibits`] | every table and figure, a file each: its rows, cells, note and drawing |
//! | [`verdicts`] | whether a claim holds on our rows, and by which test; `claims_list` writes them |
//! | [`tables`] | tables whose numbers keep interval and n, as Markdown, CSV and LaTeX |
//! | [`paper_tables`] | the paper's tables with ours next to them |
//! | [`figures`] | charts as SVG and PNG |
//! | [`compare`] | checkpoints of several folders side by side |
//! | [`journal`] | outcomes next to the records of a third party |
//! | `findings` | a checkpoint's findings, a sentence and a number each: the page's cards |
//! | `letters` | characters that no row may bring into a page, figure or table |
//! | `places` | named places of rows, in the order in which a reader meets them |
//! | [`front`], `picture` | what the README shows |
//! | [`recipes`] | which commands make which table and figure |
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
mod places;
pub mod recipes;
pub mod render;
mod render_table;
pub mod tables;
pub mod verdicts;

pub(crate) use live::explorer;
