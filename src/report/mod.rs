//! Tables, figures and pages, from rows alone. Knows nothing of tensors.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`folder`] | a folder of results in memory; a missing file is no rows |
//! | [`paper`] | what the paper reports, and its claims as comparisons |
//! | [`cells`] | our number for a cell of the paper |
//! | [`verdicts`] | does a claim hold on our rows, and by which test; `claims_list` writes them |
//! | [`tables`] | tables whose numbers keep interval and n, as Markdown, CSV and LaTeX |
//! | [`beside`], [`own`] | the paper's tables with ours beside them; tables of ours |
//! | [`figures`], [`drawings`] | charts as SVG and PNG; which charts the rows suffice for |
//! | [`compare`] | checkpoints of several folders side by side |
//! | `dependence` | methods under the same interventions: do answers depend on what is in the latents |
//! | `findings` | what a checkpoint's rows say in a sentence and a number: the page's cards |
//! | `places` | named places of rows, in the order in which a reader meets them |
//! | [`front`], `picture` | what the README shows |
//! | [`recipes`] | which commands make which table and figure |
//! | [`page`], [`render`] | the page; from folders to all of it |

pub mod beside;
pub mod cells;
mod claims;
mod claims_list;
pub mod compare;
pub mod curves;
mod dependence;
pub(crate) mod drawings;
pub mod figures;
mod findings;
pub mod folder;
pub mod front;
mod generic;
mod mixture;
pub mod own;
pub mod page;
mod paired;
pub mod paper;
mod picture;
mod places;
pub mod recipes;
pub mod render;
mod render_table;
mod seeds;
pub mod tables;
pub mod verdicts;
mod versus;
