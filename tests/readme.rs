//! The README's trace, findings and table are what the committed rows say.
//!
//! After rows changed: `SWITCHYARD_WRITE_README=1 cargo test --test suite readme::` writes them anew.

use std::path::Path;

use switchyard::report::folder::Folder;
use switchyard::report::front::{filled, parts};

#[test]
fn the_readme_says_what_the_rows_say() {
    let folder = Folder::open(&Path::new(".").join("reports/micro")).expect("the committed rows");
    let file = Path::new(".").join("README.md");
    let readme = std::fs::read_to_string(&file).expect("the README");
    let wanted = filled(&readme, &parts(&folder).expect("rows for every number")).expect("markers");
    if std::env::var_os("SWITCHYARD_WRITE_README").is_some() {
        std::fs::write(&file, &wanted).expect("the README is written");
        return;
    }
    let first = readme.lines().zip(wanted.lines()).find(|(a, b)| a != b);
    assert!(readme == wanted, "the README and reports/micro disagree, first at {first:?}");
}

#[test]
fn a_readme_without_its_markers_is_refused() {
    let folder = Folder::open(&Path::new(".").join("reports/micro")).expect("the committed rows");
    let parts = parts(&folder).expect("rows for every number");
    assert!(filled("no markers", &parts).is_err_and(|e| e.to_string().contains("<!-- trace -->")));
}
