//! A network of nodes on a grid, with weighted links. Knows columns, rows and weights.

use anyhow::{Result, ensure};

use super::fonts::width;
use super::legend::{self, Key};
use super::scene::{Anchor, At, Scene, Shape};
use super::style::{GRID, INK, PAD, PAPER_WHITE, WIDTH, colour};

/// A node. Nodes of one place (column and row) are adjacent, in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkNode {
    pub column: usize,
    pub row: usize,
    /// Two or three characters inside the node.
    pub name: String,
}

/// A link between two nodes, by their index.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    pub from: usize,
    pub to: usize,
    /// Its size is the line's width, its sign the line's colour.
    pub weight: f64,
    /// Text alternative.
    pub says: String,
}

/// A network; the first row is the lowest.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    pub nodes: Vec<NetworkNode>,
    pub links: Vec<Link>,
    /// Dashed lines from a node to one of a later column, by index.
    pub flows: Vec<(usize, usize)>,
    /// Legend of positive and negative links, and of dashed lines.
    pub positive: String,
    pub negative: String,
    pub flow: String,
}

/// Text and sizes in pixels.
const TEXT: f64 = 27.0;
const INSIDE: f64 = 21.0;
const ROW_HEIGHT: f64 = 74.0;
const RADIUS: f64 = 20.0;
/// Width of the strongest link and of one of weight 0.
const STRONGEST: f64 = 15.0;
const WEAKEST: f64 = 2.0;

impl Network {
    pub(super) fn scene(&self) -> Result<Scene> {
        super::fonts::register()?;
        self.check()?;
        let mut scene = Scene::new(WIDTH, 0.0);
        let top = scene.title(&self.title);
        let top = legend::draw(&mut scene, &self.legend(), top + 4.0) + 12.0;
        let widest = |names: &[String]| names.iter().map(|n| width(n, TEXT, false)).fold(0.0, f64::max);
        let left = PAD + widest(&self.rows) + 14.0;
        let bottom = top + ROW_HEIGHT * self.rows.len() as f64;
        let edges = self.column_edges(left, WIDTH - PAD - STRONGEST);
        let y = |row: usize| bottom - (row as f64 + 0.5) * ROW_HEIGHT;
        for (row, name) in self.rows.iter().enumerate() {
            scene.line(&[(left, y(row)), (WIDTH - PAD - STRONGEST, y(row))], GRID, 1.0, None);
            scene.text((left - 10.0, y(row)), name, TEXT, false, Anchor::Right);
        }
        for &x in &edges {
            scene.line(&[(x, top), (x, bottom)], GRID, 3.0, None);
        }
        for (pair, name) in edges.windows(2).zip(&self.columns) {
            scene.text((0.5 * (pair[0] + pair[1]), bottom + 12.0), name, TEXT, false, Anchor::UpwardsEnd);
        }
        let places: Vec<At> =
            (0..self.nodes.len()).map(|node| (self.x(node, &edges), y(self.nodes[node].row))).collect();
        for &(from, to) in &self.flows {
            let (a, b, border) = (places[from], places[to], edges[self.nodes[to].column]);
            scene.line(&[a, (border, a.1), (border, b.1), b], INK, 3.0, Some((6.0, 9.0)));
        }
        self.draw_links(&mut scene, &places, &edges);
        for (node, &at) in self.nodes.iter().zip(&places) {
            scene.shapes.push(Shape::Dot { at, radius: RADIUS, colour: INK });
            scene.shapes.push(Shape::Dot { at, radius: RADIUS - 2.5, colour: PAPER_WHITE });
            scene.text(at, &node.name, INSIDE, false, Anchor::Centre);
        }
        scene.height = bottom + 18.0 + widest(&self.columns) + PAD;
        Ok(scene)
    }

    /// The links in words, the strongest first.
    pub(super) fn description(&self) -> String {
        let says: Vec<&str> = self.by_weight().into_iter().map(|link| link.says.as_str()).collect();
        format!("{}: {}.", self.title, says.join("; "))
    }

    fn check(&self) -> Result<()> {
        let Self { title, nodes, links, columns, rows, flows, .. } = self;
        ensure!(!links.is_empty(), "network '{title}' has no links");
        let outside = nodes.iter().find(|n| n.column >= columns.len() || n.row >= rows.len());
        ensure!(outside.is_none(), "network '{title}': a node outside {} columns × {} rows", columns.len(), rows.len());
        let there = |from: usize, to: usize| from < nodes.len() && to < nodes.len();
        let joined = links.iter().all(|l| there(l.from, l.to)) && flows.iter().all(|&(from, to)| there(from, to));
        ensure!(joined, "network '{title}': a link to a node outside the {}", nodes.len());
        ensure!(links.iter().all(|l| l.weight.is_finite()), "network '{title}': a weight that is not finite");
        Ok(())
    }

    fn legend(&self) -> Vec<(String, Key)> {
        let negative = self.links.iter().any(|link| link.weight < 0.0);
        let mut out = vec![(self.positive.clone(), Key::Patch(colour(0)))];
        out.extend(negative.then(|| (self.negative.clone(), Key::Patch(colour(1)))));
        out.extend((!self.flows.is_empty()).then(|| (self.flow.clone(), Key::Dashes)));
        out
    }

    fn by_weight(&self) -> Vec<&Link> {
        let mut links: Vec<&Link> = self.links.iter().collect();
        links.sort_by(|a, b| b.weight.abs().total_cmp(&a.weight.abs()));
        links
    }

    /// Edges of the columns: each as wide as its widest row, at least two nodes.
    fn column_edges(&self, left: f64, right: f64) -> Vec<f64> {
        let broad = |column: usize| {
            let of_row = |row| self.nodes.iter().filter(|n| (n.column, n.row) == (column, row)).count();
            (0..self.rows.len()).map(of_row).max().unwrap_or(0).max(2) as f64
        };
        let all: f64 = (0..self.columns.len()).map(broad).sum();
        let mut edges = vec![left];
        let mut sum = 0.0;
        for column in 0..self.columns.len() {
            sum += broad(column);
            edges.push(left + sum / all * (right - left));
        }
        edges
    }

    fn x(&self, node: usize, edges: &[f64]) -> f64 {
        let NetworkNode { column, row, .. } = self.nodes[node];
        let beside = |n: &&NetworkNode| (n.column, n.row) == (column, row);
        let (before, all) =
            (self.nodes[..node].iter().filter(beside).count(), self.nodes.iter().filter(beside).count());
        let share = (before as f64 + 0.5) / all as f64;
        edges[column] + share * (edges[column + 1] - edges[column])
    }

    /// Draws thin links over thick ones. A link across rows is curved, so that it avoids the nodes between.
    fn draw_links(&self, scene: &mut Scene, places: &[At], edges: &[f64]) {
        let links = self.by_weight();
        let most = links.first().map_or(1.0, |link| link.weight.abs()).max(f64::MIN_POSITIVE);
        for (number, link) in links.into_iter().enumerate() {
            let (a, b) = (places[link.from], places[link.to]);
            let NetworkNode { column, row, .. } = self.nodes[link.from];
            let passed = self.nodes[link.to].row.abs_diff(row).saturating_sub(1);
            let side = if number % 2 == 0 { 1.0 } else { -1.0 };
            let room = 0.5 * (edges[column + 1] - edges[column]);
            let bend = if passed == 0 { 0.0 } else { side * (26.0 + 9.0 * passed as f64).min(room) };
            let middle = (0.5 * (a.0 + b.0) + 2.0 * bend, 0.5 * (a.1 + b.1));
            let width = WEAKEST + (STRONGEST - WEAKEST) * (link.weight.abs() / most);
            scene.line(&curve(a, middle, b), colour(usize::from(link.weight < 0.0)), width, None);
        }
    }
}

/// A quadratic Bézier curve.
fn curve(a: At, control: At, b: At) -> Vec<At> {
    let at = |t: f64| {
        let (p, q, r) = ((1.0 - t) * (1.0 - t), 2.0 * t * (1.0 - t), t * t);
        (p * a.0 + q * control.0 + r * b.0, p * a.1 + q * control.1 + r * b.1)
    };
    (0..=16).map(|i| at(f64::from(i) / 16.0)).collect()
}
