//! The README's trace, findings and picture match the committed rows.
//!
//! After rows changed: `SWITCHYARD_WRITE_README=1 cargo test --test suite readme::` rewrites them.

use std::path::Path;

use switchyard_programs::report::folder::Folder;
use switchyard_programs::report::front::{filled, parts, picture};

#[test]
fn the_readme_matches_the_rows() {
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
fn the_picture_matches_the_rows() {
    let folder = Folder::open(&Path::new(".").join("reports/micro")).expect("the committed rows");
    let wanted = picture(&folder).expect("rows for the picture");
    let file = Path::new("docs/img/first-look.svg");
    if std::env::var_os("SWITCHYARD_WRITE_README").is_some() {
        std::fs::write(file, &wanted).expect("the picture is written");
        return;
    }
    assert!(std::fs::read_to_string(file).expect("the picture") == wanted, "docs/img/first-look.svg is of other rows");
}

#[test]
fn the_readme_is_short() {
    let readme = std::fs::read_to_string("README.md").expect("the README");
    let words = readme.split_whitespace().count();
    let longest = readme.lines().map(|line| line.chars().count()).max();
    let pictures = readme.matches("![").count();
    assert!(
        words <= 700 && longest <= Some(400) && pictures == 1,
        "{words} words, {pictures} pictures, line of {longest:?}"
    );
}

#[test]
fn a_readme_without_its_markers_is_an_error() {
    let folder = Folder::open(&Path::new(".").join("reports/micro")).expect("the committed rows");
    let parts = parts(&folder).expect("rows for every number");
    assert!(filled("no markers", &parts).is_err_and(|e| e.to_string().contains("<!-- trace -->")));
}
