//! Exact Markdown, CSV and LaTeX of tables, and an error for a measured number without interval and n.

use switchyard::stats::{Estimate, wilson};
use switchyard_programs::report::tables::{Cell, ColumnKind, Formats, Heading, Table};

fn table() -> Table {
    let columns = vec![
        Heading::new("Mode", ColumnKind::Text),
        Heading::new("step", ColumnKind::Count),
        Heading::new("paper", ColumnKind::Published(3)),
        Heading::new("ours", ColumnKind::Measured(3)),
    ];
    let mut table = Table::new("tab:x", "Effect of <swi> & 100 % more", columns);
    let ours = wilson(436, 500, 0.95).unwrap();
    table
        .push(vec![
            Cell::Text("zero | \"all\", a_b".into()),
            Cell::Count(-4),
            Cell::Published(2e-6),
            Cell::Measured(ours),
        ])
        .unwrap();
    let missing = || Cell::Missing("not testable here".into());
    table
        .push(vec![Cell::Text("skip".into()), Cell::Missing(String::new()), Cell::Published(-0.19), missing()])
        .unwrap();
    table
}

#[test]
fn markdown() {
    let want = "\
**Effect of &lt;swi> &amp; 100 % more** (`tab:x`)

| Mode | step | paper | ours [95 %] | n |
| --- | ---: | ---: | ---: | ---: |
| zero \\| \"all\", a_b | -4 | 2.0e-6 | 0.872 [0.840, 0.898] | 500 |
| skip | – | -0.190 | not testable here |  |
";
    assert_eq!(table().markdown(), want);
}

#[test]
fn csv_keeps_every_digit() {
    let e = wilson(436, 500, 0.95).unwrap();
    let want = format!(
        "Mode,step,paper,ours,ours low,ours high,ours n\n\"zero | \"\"all\"\", a_b\",-4,0.000002,0.872,{},{},500\nskip,,-0.19,not testable here,,,\n",
        e.low, e.high
    );
    assert_eq!(table().csv(), want);
}

#[test]
fn latex() {
    let want = "\
\\begin{table}[t]
\\centering
\\small
\\begin{tabular}{lrrrr}
\\toprule
Mode & step & paper & ours [95 \\%] & n \\\\
\\midrule
zero \\textbar{} \"all\", a\\_b & $-$4 & 2.0e-6 & 0.872 [0.840, 0.898] & 500 \\\\
skip & -- & $-$0.190 & not testable here &  \\\\
\\bottomrule
\\end{tabular}
\\caption{Effect of \\textless{}swi\\textgreater{} \\& 100 \\% more.}
\\label{tab:x}
\\end{table}
";
    assert_eq!(table().latex(), want);
}

/// Text of records that Markdown or LaTeX would change, lose or refuse.
#[test]
fn text_of_records_is_shown_as_it_is() {
    let mut table = Table::new("tab:x", "T", vec![Heading::new("a", ColumnKind::Text)]);
    table.note = "`<swi>` forbidden, p ≤ .05, a <b>.".into();
    let texts = [
        "[2] first",
        "*star",
        "a ` <b",
        "\\{1,2\\}",
        "x \\| y",
        "two\n\nlines",
        "− ≥ ≤ ≈ → \u{7}",
        "2*3*4",
        "`<swi> | x`",
    ];
    for text in texts {
        table.push(vec![Cell::Text(text.into())]).unwrap();
    }
    let markdown = table.markdown();
    let rows: Vec<&str> = markdown.lines().skip(4).take(texts.len()).collect();
    let want = [
        "| [2] first |",
        "| \\*star |",
        "| a ` &lt;b |",
        "| \\\\{1,2\\\\} |",
        "| x \\\\\\| y |",
        "| two  lines |",
        "| − ≥ ≤ ≈ → \u{fffd} |",
        "| 2\\*3\\*4 |",
        "| `<swi> \\| x` |",
    ];
    assert_eq!(rows, want);
    assert!(markdown.ends_with("\n`<swi>` forbidden, p ≤ .05, a &lt;b>.\n"), "{markdown}");
    let latex = table.latex();
    let rows: Vec<&str> = latex.lines().skip(7).take(texts.len()).collect();
    let want = [
        "{}[2] first \\\\",
        "{}*star \\\\",
        "a ` \\textless{}b \\\\",
        "\\textbackslash{}\\{1,2\\textbackslash{}\\} \\\\",
        "x \\textbackslash{}\\textbar{} y \\\\",
        "two  lines \\\\",
        "$-$ $\\geq$ $\\leq$ $\\approx$ $\\rightarrow$ ? \\\\",
        "2*3*4 \\\\",
        "\\texttt{\\textless{}swi\\textgreater{} \\textbar{} x} \\\\",
    ];
    assert_eq!(rows, want);
    assert!(
        latex.contains("\\caption{T. \\texttt{\\textless{}swi\\textgreater{}} forbidden, p $\\leq$ .05, a"),
        "{latex}"
    );
}

#[test]
fn a_shared_n_is_printed_once() {
    let two = |n1: usize, n2: usize| {
        let columns = vec![Heading::new("a", ColumnKind::Measured(2)), Heading::new("b", ColumnKind::Measured(2))];
        let mut table = Table::new("t", "t", columns);
        let cell = |n| Cell::Measured(wilson(1, n, 0.95).unwrap());
        table.push(vec![cell(n1), cell(n2)]).unwrap();
        table.markdown().lines().nth(2).unwrap().to_string()
    };
    assert_eq!(two(10, 10), "| a [95 %] | b [95 %] | n |");
    assert_eq!(two(10, 11), "| a [95 %] | n | b [95 %] | n |");
}

#[test]
fn a_table_creates_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let stem = folder.path().join("deep/main");
    let files = table().save(&stem, Formats::default()).unwrap();
    assert!(files == [stem.with_extension("md")] && !stem.with_extension("csv").exists());
    assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), table().markdown());
    let files = table().save(&stem, Formats::ALL).unwrap();
    assert!(files.len() == 3 && files.iter().all(|file| file.exists()));
}

#[test]
fn a_measured_number_needs_interval_and_n() {
    #[track_caller]
    fn says(cell: Cell, what: &str) {
        let mut table = Table::new("tab:y", "", vec![Heading::new("ours", ColumnKind::Measured(3))]);
        let message = format!("{:#}", table.push(vec![cell]).expect_err("an error"));
        assert!(message.contains("tab:y, row 0, column 'ours'") && message.contains(what), "{message}");
    }
    says(Cell::Published(0.5), "in a column of Measured");
    says(Cell::Count(5), "in a column of Measured");
    says(Cell::Measured(Estimate { value: 0.5, low: 0.4, high: 0.6, n: 0 }), "interval and n");
    says(Cell::Measured(Estimate { value: 0.5, low: f64::NAN, high: 0.6, n: 3 }), "interval and n");
    says(Cell::Measured(Estimate { value: 0.5, low: 0.6, high: 0.7, n: 3 }), "interval and n");
    let mut table = table();
    assert!(table.push(vec![]).unwrap_err().to_string().contains("row 2: 0 cells for 4 columns"));
    let folder = tempfile::tempdir().unwrap();
    assert!(Table::new("t", "t", Vec::<Heading>::new()).save(&folder.path().join("x"), Formats::ALL).is_err());
}
