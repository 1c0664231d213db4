//! Every kind of chart is drawn to SVG and PNG with its text, marks and intervals, or fails with an error that names it.
//!
//! `SWITCHYARD_FIGURES=/some/folder cargo test --test suite figures::` keeps the files.

use std::path::PathBuf;

use switchyard::stats::{Estimate, wilson};
use switchyard_programs::report::figures::*;

/// Draws a chart. Returns the SVG's text and the PNG's size.
fn draw(name: &str, panels: &[Figure]) -> (String, (u32, u32)) {
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("SWITCHYARD_FIGURES").map(PathBuf::from);
    let files = save(&kept.unwrap_or(temporary.path().to_path_buf()).join(name), panels).unwrap();
    let svg = std::fs::read_to_string(&files.svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "a shape has no place");
    let png = std::fs::read(files.png.expect("asked for")).unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    (svg, (number(16), number(20)))
}

fn wobble(i: usize) -> f64 {
    ((i * 7919 % 101) as f64 / 101.0 - 0.5) * 2.0
}

fn chart(lines: Vec<Line>) -> Figure {
    Figure::Lines(LineChart { title: "t".into(), lines, ..LineChart::default() })
}

fn window() -> Figure {
    let line = |name: &str, peak: f64| {
        let points = (-8i32..=8).map(|k| {
            let y =
                if k == 0 { peak } else { 2e-3 * (1.0 + 0.8 * wobble((k + 30) as usize)) * 10f64.powi(-k.clamp(0, 3)) };
            Point { x: f64::from(k), y, low: y * 0.6, high: (y * 1.5).min(1.0) }
        });
        Line::band(name, points.collect())
    };
    Figure::Lines(LineChart {
        title: "p(<swi>) around annotated boundaries".into(),
        x: Axis::new("offset from the boundary (tokens)"),
        y: Axis::new("p(<swi>)").log(),
        lines: vec![line("after SFT", 0.85), line("after Switch-GRPO", 0.48)],
        marks: vec![0.0],
        ..LineChart::default()
    })
}

fn probe() -> Figure {
    let line = |name: &str, top: f64, interval: bool| {
        let points = [-24, -20, -16, -12, -8, -4, -1].iter().enumerate().map(|(i, &x)| {
            let y = 0.52 + (top - 0.52) * (i as f64 / 6.0).powf(1.3);
            let half = if interval { 0.03 } else { 0.0 };
            Point { x: f64::from(x), y, low: y - half, high: y + half }
        });
        Line::bars(name, points.collect())
    };
    Figure::Lines(LineChart {
        title: "Linear probe for \"next token is <swi>\"".into(),
        x: Axis::new("layer offset from the last"),
        y: Axis::new("balanced accuracy").range(0.4, 1.0),
        lines: vec![
            line("ours, SFT", 0.86, true),
            line("ours, GRPO", 0.81, true),
            line("paper, SFT", 0.919, false),
            line("control", 0.51, true),
        ],
        levels: vec![0.5],
        ..LineChart::default()
    })
}

fn bars() -> Figure {
    let of = |k: [usize; 5], n| k.iter().map(|&k| Some(wilson(k, n, 0.95).unwrap())).collect::<Vec<_>>();
    Figure::Bars(BarChart {
        title: "Latent-state interventions".into(),
        y: Axis::new("accuracy"),
        categories: ["normal", "zero", "random-norm", "skip", "another problem"].map(String::from).to_vec(),
        series: vec![
            BarSeries {
                name: "all (n=500)".into(),
                values: of([436, 184, 187, 459, 190], 500),
                paper: vec![Some(0.70), Some(0.42), Some(0.72), Some(0.70), None],
            },
            BarSeries {
                name: "diagnostic (n=326)".into(),
                values: of([326, 70, 68, 311, 75], 326),
                paper: vec![Some(1.0), Some(0.333), Some(0.905), Some(0.81), None],
            },
        ],
    })
}

fn samples() -> Vec<(String, Vec<f64>)> {
    let sample = |shift: f64, n: usize| {
        (0..n).map(|i| shift + 400.0 * (wobble(i) + wobble(3 * i + 1) + wobble(7 * i + 5) + 1.5).powi(2)).collect()
    };
    vec![
        ("SFT".into(), sample(600.0, 500)),
        ("GRPO".into(), sample(900.0, 480)),
        ("+ brevity".into(), sample(300.0, 500)),
    ]
}

fn histogram() -> Figure {
    let x = Axis::new("visible tokens per problem").range(0.0, 6000.0);
    Figure::Histogram(Histogram {
        title: "Visible tokens per problem".into(),
        x,
        of: "problems".into(),
        samples: samples(),
        bins: 30,
    })
}

fn ecdf() -> Figure {
    Figure::Ecdf(Ecdf {
        title: "Cumulative distribution".into(),
        x: Axis::new("visible tokens per problem"),
        of: "problems".into(),
        samples: samples(),
    })
}

fn heat() -> HeatMap {
    let names = |what: &str, n: usize| (0..n).map(|i| format!("{what}{i}")).collect::<Vec<_>>();
    HeatMap {
        title: "Logit lens: rank of </swi> by layer and latent step".into(),
        x: "latent step".into(),
        y: "layer".into(),
        unit: "log₁₀ rank".into(),
        columns: names("", 8),
        rows: names("", 12),
        cells: (0..12)
            .map(|r| (0..8).map(|c| (r + c != 5).then_some((f64::from(r) - f64::from(c)) * 0.31)).collect())
            .collect(),
        range: None,
        print: true,
    }
}

#[test]
fn a_log_chart_with_bands() {
    let (svg, size) = draw("window", &[window()]);
    assert_eq!(size.0, 1020);
    for text in ["10⁻⁶", "after Switch-GRPO", "offset from the boundary (tokens)", "p(&lt;swi&gt;)"] {
        assert!(svg.contains(text), "no '{text}' in the figure");
    }
    assert!(svg.contains("font-family=\"DejaVu Sans, Verdana, sans-serif\""));
    assert!(svg.matches("<polygon").count() >= 2, "two bands");
}

#[test]
fn intervals_are_drawn_if_present() {
    let bare = |low: f64| {
        let points = vec![Point { x: 0.0, y: 1.0, low, high: 1.0 }, Point::bare(1.0, 2.0)];
        let chart = LineChart {
            lines: vec![Line::bars("a", points)],
            y: Axis::new("y").range(0.0, 3.0),
            ..LineChart::default()
        };
        draw("bare", &[Figure::Lines(chart)]).0.matches("<polyline").count()
    };
    assert_eq!(bare(0.5), bare(1.0) + 3, "a bar and two caps");
}

/// Six series at one x: the first and the last have the same marker.
fn beside(x: Axis) -> (Vec<String>, String) {
    let line = |name: &str| Line::bars(name, vec![Point { x: 1.0, y: 10.0, low: 5.0, high: 15.0 }]);
    let lines = ["a", "b", "c", "d", "e", "f"].map(line).to_vec();
    let (svg, _) = draw("beside", &[Figure::Lines(LineChart { title: "t".into(), x, lines, ..LineChart::default() })]);
    let place = |circle: &str| circle[..circle.find('"').expect("its end")].to_owned();
    let mut places: Vec<String> = svg.split("<circle cx=\"").skip(1).map(place).collect();
    (places.split_off(places.len() - 2), svg)
}

#[test]
fn series_are_offset_only_if_nothing_is_between() {
    let (places, svg) = beside(Axis::new("latent step").whole());
    assert_ne!(places[0], places[1], "their bars overlap");
    assert!(svg.contains("\n1\n") && !svg.contains("\n0.8\n"), "a tick between whole numbers");
    let (places, svg) = beside(Axis::new("dose"));
    assert_eq!(places[0], places[1], "an x of one dose has another's label");
    assert!(svg.contains("\n0.8\n"));
}

#[test]
fn panels_in_a_row_and_an_accessible_title() {
    let (svg, _) = draw("title", &[probe()]);
    assert!(
        svg.starts_with("<svg role=\"img\"")
            && svg.contains("<title>Linear probe for \"next token is &lt;swi&gt;\"</title>")
    );
}

#[test]
fn points_with_bars_and_published_values() {
    let (svg, _) = draw("probe", &[probe()]);
    assert!(svg.contains("−24") || svg.contains("−20"));
    let (svg, _) = draw("bars", &[bars()]);
    assert!(svg.contains("paper"));
    assert!(svg.contains("random-") && svg.contains("diagnostic (n=326)"));
}

#[test]
fn distributions_and_heat_maps() {
    assert!(draw("histogram", &[histogram()]).0.contains("GRPO (n=480, mean "));
    assert!(draw("ecdf", &[ecdf()]).0.contains("share of problems ≤ x"));
    assert!(draw("heat", &[Figure::HeatMap(heat())]).0.contains("log₁₀ rank"));
}

#[test]
fn a_heat_map_names_every_place() {
    let places =
        ["source", "swi", "latent[1]", "latent[2]", "latent[3]", "latent[4]", "latent[5]", "swi_end", "readout"];
    let columns = places.map(String::from).to_vec();
    let cells = vec![vec![Some(0.5); places.len()]];
    let map = HeatMap { columns, rows: vec!["blocks.0".into()], cells, ..heat() };
    let (svg, size) = draw("places", &[Figure::HeatMap(map)]);
    assert!(places.iter().all(|place| svg.contains(&format!("\n{place}\n"))), "{svg}");
    assert!(size.1 > draw("numbers", &[Figure::HeatMap(heat())]).1.1, "room for upright names");
}

#[test]
fn panels_are_stacked() {
    let one = draw("one", &[histogram()]).1;
    let two = draw("two", &[histogram(), ecdf()]).1;
    assert!(two.1 > one.1 + 500);
}

#[test]
fn long_names_are_wrapped_or_rotated() {
    let subjects = [
        "Algebra",
        "Prealgebra",
        "Number Theory",
        "Precalculus",
        "Counting & Probability",
        "Intermediate Algebra",
        "Geometry",
    ];
    let values: Vec<Option<Estimate>> =
        [110, 66, 49, 38, 23, 55, 22].iter().map(|&k| wilson(k, 124, 0.95).ok()).collect();
    let series = BarSeries { name: "after Switch-GRPO".into(), values, paper: vec![] };
    let chart = BarChart {
        title: "Accuracy by subject".into(),
        y: Axis::new("accuracy"),
        categories: subjects.map(String::from).to_vec(),
        series: vec![series],
    };
    assert!(draw("subjects", &[Figure::Bars(chart)]).0.contains("rotate"));
}

#[test]
fn the_same_chart_gives_the_same_bytes() {
    let bytes = |name: &str| {
        let folder = tempfile::tempdir().unwrap();
        let files = save(&folder.path().join(name), &[bars()]).unwrap();
        (std::fs::read(files.svg).unwrap(), std::fs::read(files.png.expect("asked for")).unwrap())
    };
    assert!(bytes("a") == bytes("b"));
}

#[test]
fn undrawable_charts_are_errors_by_name() {
    #[track_caller]
    fn says(figure: Figure, what: &str) {
        let folder = tempfile::tempdir().unwrap();
        let message = format!("{:#}", save(&folder.path().join("f"), &[figure]).expect_err("an error"));
        assert!(message.contains(what), "'{message}' does not say '{what}'");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a failed chart leaves no file");
    }
    says(chart(vec![]), "chart 't' has no points");
    says(chart(vec![Line::band("a", vec![Point::bare(0.0, f64::NAN)])]), "no finite values");
    says(Figure::HeatMap(HeatMap { cells: vec![vec![]], ..heat() }), "cells are not 12 rows × 8 columns");
    let samples = vec![("a".into(), vec![])];
    let ecdf = Ecdf { title: "t".into(), x: Axis::default(), of: "x".into(), samples };
    says(Figure::Ecdf(ecdf), "sample 'a' is empty");
    let Figure::Bars(mut chart) = bars() else { unreachable!() };
    chart.series[0].values.pop();
    says(Figure::Bars(chart), "'all (n=500)' has 4 values for 5 categories");
    let network = |column: usize, to: usize| {
        let node = NetworkNode { column, row: 0, name: "in".into() };
        let link = Link { from: 0, to, weight: 0.5, says: "a → b".into() };
        let (columns, rows) = (vec!["a".into()], vec!["b".into()]);
        Figure::Network(Network {
            title: "t".into(),
            columns,
            rows,
            nodes: vec![node],
            links: vec![link],
            ..Network::default()
        })
    };
    says(Figure::Network(Network { title: "t".into(), ..Network::default() }), "network 't' has no links");
    says(network(1, 0), "a node outside 1 columns × 1 rows");
    says(network(0, 1), "a link to a node outside the 1");
    assert!(save(std::path::Path::new("f"), &[]).is_err());
}

fn lines(names: &[&str], y: f64) -> Figure {
    let line = |name: &&str| Line::bars(name, vec![Point::bare(0.0, y), Point::bare(1.0, y + 0.02)]);
    chart(names.iter().map(line).collect())
}

/// Colours of the legend: for each name, the colour of the line before it.
fn colour_of(svg: &str, name: &str) -> String {
    let before = &svg[..svg.find(&format!("\n{name}\n")).expect("a name in a legend")];
    let line = before.rfind("<polyline").expect("a line in a legend");
    before[line..].split("stroke=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a colour").to_owned()
}

#[test]
fn a_name_has_one_colour_in_all_panels_and_fourteen_names_fourteen() {
    let (svg, _) = draw("panels", &[lines(&["sft", "grpo"], 0.1), lines(&["grpo (n=7)", "pause"], 0.2)]);
    assert_eq!(colour_of(&svg, "grpo"), colour_of(&svg, "grpo (n=7)"), "another n is not another series");
    assert_ne!(colour_of(&svg, "sft"), colour_of(&svg, "grpo (n=7)"), "the first of each panel");
    let names: Vec<String> = (0..14).map(|i| format!("s{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (svg, _) = draw("many", &[lines(&names, 0.1)]);
    let colours: std::collections::BTreeSet<String> = names.iter().map(|name| colour_of(&svg, name)).collect();
    assert_eq!(colours.len(), 14, "{colours:?}");
}

#[test]
fn a_legend_shows_only_drawn_lines() {
    let marks = |joined: bool| {
        let points = vec![Point::bare(0.0, 0.0), Point::bare(1.0, 1.0)];
        draw("marks", &[chart(vec![Line { joined, ..Line::bars("a", points) }])]).0
    };
    let coloured = |svg: &str| svg.matches("stroke=\"#0072B2\"").count();
    assert_eq!(coloured(&marks(true)), 2, "the line and its key");
    assert_eq!(coloured(&marks(false)), 0);
    // A single point has a marker and no line.
    for line in [Line::bars, Line::band] {
        let (svg, _) = draw("lone", &[chart(vec![line("a", vec![Point::bare(1.0, 1.0)])])]);
        assert_eq!((coloured(&svg), svg.matches("<circle").count()), (0, 2), "the point and its key");
    }
}

#[test]
fn an_axis_without_zero_is_marked() {
    let corner = |figure: Figure| {
        let (svg, _) = draw("cut", &[figure]);
        let axis = svg.rfind("<polyline").expect("the axes");
        svg[axis..]
            .split("points=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .expect("points")
            .split(' ')
            .count()
    };
    let zigzags = |y: f64, from: f64, x: Axis| {
        let points = [0.0, 10.0].map(|more| Point::bare(from + more, y + more / 500.0)).to_vec();
        (corner(Figure::Lines(LineChart { x, lines: vec![Line::bars("a", points)], ..LineChart::default() })) - 3) / 4
    };
    assert_eq!(zigzags(0.9, 0.0, Axis::new("x")), 1, "of y");
    assert_eq!(zigzags(0.0, 27.0, Axis::new("x")), 1, "of x");
    assert_eq!(zigzags(0.9, 27.0, Axis::new("x")), 2);
    assert_eq!(zigzags(0.009, 4.0, Axis::new("x")), 0, "zero is near enough to be shown");
    assert_eq!(zigzags(0.0, 27.0, Axis::new("x").whole()), 0, "steps are counted");
    let samples = vec![("a".into(), vec![80.0, 90.0])];
    let histogram = Histogram { title: "t".into(), x: Axis::new("x"), of: "problems".into(), samples, bins: 5 };
    assert_eq!((corner(Figure::Histogram(histogram)) - 3) / 4, 1);
}

#[test]
fn marks_are_next_to_the_axis() {
    let line = |name: &str| Line::bars(name, [1.0, 2.0].map(|x| Point { x, y: 0.5, low: 0.4, high: 0.6 }).to_vec());
    let lines = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"].map(line).to_vec();
    let x = Axis::new("latent step").whole();
    let (svg, _) = draw("aside", &[Figure::Lines(LineChart { x, lines, ..LineChart::default() })]);
    let axis = &svg[svg.rfind("points=\"").expect("the axes") + 8..];
    let ends = |text: &str| text.split([' ', ',']).next().and_then(|x| x.parse::<f64>().ok()).expect("a place");
    let marks = svg.split("<circle cx=\"").skip(1).filter_map(|c| c.split('"').next()?.parse::<f64>().ok());
    // Legends are left of the axis.
    let first = marks.filter(|x| *x > ends(axis)).fold(f64::INFINITY, f64::min);
    assert!(first > ends(axis) + 10.0, "{first} at an axis at {}", ends(axis));
}

#[test]
fn tiny_and_huge_ranges_have_an_axis() {
    for (low, high) in [
        (1e-320, 3e-320),
        (0.0, 1e-320),
        (0.0, 0.0),
        (5e-324, 1.0),
        (1.0, 1.0 + 1e-16),
        (-1e308, 1e308),
        (1e299, 2e299),
    ] {
        for log in [false, true] {
            let y = if log { Axis::new("y").log() } else { Axis::new("y") };
            let points = vec![Point::bare(0.0, low), Point::bare(1.0, high)];
            let chart =
                LineChart { title: "t".into(), y, lines: vec![Line::band("a", points)], ..LineChart::default() };
            let folder = tempfile::tempdir().unwrap();
            // Either a chart or an error: it terminates.
            match save(&folder.path().join("f"), &[Figure::Lines(chart)]) {
                Ok(files) => assert!(!std::fs::read_to_string(files.svg).unwrap().contains("NaN"), "{low} to {high}"),
                Err(why) => assert!(format!("{why:#}").contains("no finite values"), "{low} to {high}: {why:#}"),
            }
        }
    }
}

#[test]
fn rounded_zeros_have_no_sign_and_no_text_is_clipped() {
    let cells = vec![vec![Some(-0.001), Some(1.0)]];
    let (columns, rows) = (vec!["1".into(), "2".into()], vec!["0".into()]);
    let map = HeatMap { title: "t".into(), columns, rows, cells, print: true, ..HeatMap::default() };
    let (svg, _) = draw("zero", &[Figure::HeatMap(map)]);
    assert!(svg.contains("\n0.00\n") && !svg.contains("−0.00"), "a signed zero");
    let long = "checkpoint_of_somebody_with_a_name_without_a_single_blank_in_it_that_goes_on_and_on_and_on";
    let (svg, _) = draw("long", &[lines(&[long], 0.1)]);
    let pieces = svg.lines().filter(|line| line.len() > 3 && long.contains(*line)).count();
    assert!(!svg.contains(long) && pieces >= 2, "{pieces} pieces");
}

#[test]
fn the_largest_weights_are_as_wide_as_any() {
    let node = |row| NetworkNode { column: 0, row, name: "a".into() };
    let link = |to, weight| Link { from: 0, to, weight, says: "says".into() };
    let network = Network {
        title: "t".into(),
        columns: vec!["c".into()],
        rows: ["0", "1", "2"].map(String::from).to_vec(),
        nodes: vec![node(0), node(1), node(2)],
        links: vec![link(1, 1e308), link(2, -1e308)],
        ..Network::default()
    };
    assert!(draw("huge", &[Figure::Network(network)]).0.contains("stroke-width=\"15\""));
}

#[test]
fn all_zeros_are_a_bar_chart() {
    let zero = Some(Estimate { value: 0.0, low: 0.0, high: 0.0, n: 30 });
    let series = vec![BarSeries { name: "a".into(), values: vec![zero, zero], paper: vec![] }];
    let categories = vec!["x".into(), "y".into()];
    draw("zeros", &[Figure::Bars(BarChart { title: "t".into(), y: Axis::new("y"), categories, series })]);
}

#[test]
fn the_page_can_carry_the_font() {
    let css = fonts::font_face_css();
    assert_eq!(css.matches("@font-face").count(), 2);
    assert!(css.contains("base64,AAEAAA"), "a TrueType file starts with 00 01 00 00");
}
