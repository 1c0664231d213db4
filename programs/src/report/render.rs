//! `report [FOLDER]...`: from folders of records to tables, figures and the page. Knows where files go, not their content. Opens no model.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::claims_list::{self, counted};
use super::exhibits::{self, Drawing, MissingFigure};
use super::figures::{FigureFiles, laid_out, write};
use super::findings;
use super::folder::{Folder, once};
use super::live::Live;
use super::page;
use super::paper::Paper;
use super::paper_tables::{self, PaperTable};
use super::recipes::{self, ExhibitRecipe};
use super::tables::{Formats, Table};
use super::verdicts::{self, TestedClaim};
use switchyard::guard::{read_bytes, read_text};
use switchyard::store::{Inside, Lock, ensure_inside, output_path, program, remove_listed, subfolder, write_atomic};

/// A drawn figure, with its SVG for the page.
pub struct RenderedFigure {
    pub drawing: Drawing,
    pub files: FigureFiles,
    pub svg: String,
}

/// Tables, figures and claims of one folder.
pub struct Rendering<'a> {
    pub folder: &'a Folder,
    pub paper_tables: Vec<PaperTable>,
    pub own_tables: Vec<Table>,
    pub figures: Vec<RenderedFigure>,
    pub undrawn: Vec<MissingFigure>,
    pub claims: Vec<TestedClaim<'a>>,
}

/// Result of a report, for the terminal.
pub struct RenderedReport {
    pub page: PathBuf,
    pub summary: String,
}

/// Default folders of a report: those in a folder of reports with records.
pub fn default_folders(reports: &Path) -> Result<Vec<PathBuf>> {
    let holds_rows = |path: &PathBuf| {
        let files = std::fs::read_dir(path).into_iter().flatten().flatten();
        files.into_iter().any(|f| f.path().extension().is_some_and(|e| e == "parquet"))
    };
    let entries = std::fs::read_dir(reports).into_iter().flatten().flatten().map(|e| e.path());
    let mut folders: Vec<PathBuf> = entries.filter(|p| p.is_dir()).filter(holds_rows).collect();
    folders.sort();
    if folders.is_empty() {
        bail!(
            "{}: no folder with rows; run `probe` first ({}), or name a folder, for example reports/micro",
            reports.display(),
            program("probe").trim_end_matches(" --")
        );
    }
    Ok(folders)
}

/// Writes tables and figures into each folder and one page over all.
pub fn report(folders: &[Folder], page: &Path) -> Result<RenderedReport> {
    report_as(folders, page, Formats::default())
}

/// [`report`] in further formats; files of an earlier report in other formats are removed, because they may be outdated.
pub fn report_as(folders: &[Folder], page: &Path, formats: Formats) -> Result<RenderedReport> {
    once(folders)?;
    // A pipe would block the read.
    output_path(page).context("--page")?;
    ours_or_new(page, folders)?;
    let paper = Paper::embedded()?;
    let recipes = recipes::all()?;
    // Waits for other reports on these folders, in a fixed order, so that no two wait for each other.
    let mut rooms = BTreeSet::new();
    for folder in folders {
        ensure_inside(&folder.path.join(FIGURES))?;
        rooms.insert(subfolder(&folder.path, TABLES)?);
    }
    let _locks: Vec<Lock> = rooms.iter().map(|room| Lock::wait(room)).collect::<Result<_>>()?;
    let rendered: Vec<Rendering<'_>> =
        folders.iter().map(|f| render(&paper, f, &recipes, formats)).collect::<Result<_>>()?;
    let live = Live::new(folders);
    let html = page::html(&paper, &rendered, &recipes, &places(page, folders), &live)?;
    write_atomic(page, html.as_bytes())?;
    let found = rendered.iter().flat_map(|r| findings::first(r.folder)).collect::<Vec<_>>();
    let found = if found.is_empty() { String::new() } else { found.join("\n") + "\n\n" };
    let mut summary = found + &rendered.iter().map(summary).collect::<Vec<_>>().join("\n");
    live.said.iter().for_each(|said| summary += &format!("  page     {said}\n"));
    Ok(RenderedReport { page: page.to_path_buf(), summary })
}

/// Paths of folders, relative to the page's folder if below it: then page and folders can be moved together.
fn places(page: &Path, folders: &[Folder]) -> Vec<String> {
    let whole = |path: &Path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
    };
    let home = whole(page.parent().unwrap_or(Path::new("")));
    let place = |folder: &Folder| {
        let path = whole(&folder.path);
        path.strip_prefix(&home).unwrap_or(&path).display().to_string()
    };
    folders.iter().map(place).collect()
}

/// Default path of the page: next to the first folder, or inside it if a page of other folders is there.
pub fn default_page(folders: &[Folder]) -> PathBuf {
    let first = folders.first().map_or(Path::new(""), |folder| &folder.path);
    let beside = first.parent().unwrap_or(Path::new("")).join("index.html");
    if ours_or_new(&beside, folders).is_ok() { beside } else { first.join("index.html") }
}

/// Maximum bytes of a page that is read before it is replaced.
const MOST_PAGE: u64 = 1 << 30;

/// Refuses to replace a file of another program, or a page with a folder that the new one would not show.
fn ours_or_new(page: &Path, folders: &[Folder]) -> Result<()> {
    let there = match read_bytes(page, MOST_PAGE) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("{}: cannot read", page.display())),
    };
    ensure!(
        there.contains(page::MARKER),
        "{}: is there and was not made by this version of `report`: move it away, or name another page with --page FILE",
        page.display()
    );
    let new = places(page, folders);
    let lost: Vec<String> = page::shown(&there).into_iter().filter(|place| !new.contains(place)).collect();
    ensure!(
        lost.is_empty(),
        "{}: is the page of {}, which would be lost: name these folders too, or another page with --page FILE",
        page.display(),
        lost.join(", ")
    );
    Ok(())
}

/// Folders of a report below that of its rows.
const TABLES: &str = "tables";
const FIGURES: &str = "figures";

/// The files that a report wrote into [`TABLES`] and [`FIGURES`], by folder: the only ones that a later report removes.
#[derive(Default, Serialize, Deserialize)]
struct WrittenFiles(BTreeMap<String, BTreeSet<Inside>>);

impl WrittenFiles {
    fn path(folder: &Path) -> PathBuf {
        folder.join(".report.json")
    }

    /// The list of the last report in a folder of records; empty without one.
    fn read(folder: &Path) -> Result<Self> {
        let path = Self::path(folder);
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        let failed = || format!("{}: not a list of a report's files; move it away", path.display());
        let files: Self = serde_json::from_str(&text).with_context(failed)?;
        ensure!(files.0.keys().all(|name| [TABLES, FIGURES].contains(&&**name)), failed());
        Ok(files)
    }

    fn new(written: &BTreeSet<PathBuf>) -> Result<Self> {
        let mut files = Self::default();
        for path in written {
            let name = |path: Option<&OsStr>| path.unwrap_or_default().to_string_lossy().into_owned();
            let folder = name(path.parent().and_then(Path::file_name));
            files.0.entry(folder).or_default().insert(Inside::parse(&name(path.file_name()))?);
        }
        Ok(files)
    }

    /// Replaces the list, and removes files that only the old one has: their records are gone.
    fn replace(&self, old: &Self, folder: &Path) -> Result<()> {
        for (below, names) in &old.0 {
            let stale = names.iter().filter(|name| !self.0.get(below).is_some_and(|new| new.contains(*name)));
            let stale: Vec<&str> = stale.map(|name| &**name).collect();
            if !stale.is_empty() {
                remove_listed(&folder.join(below), &stale)?;
            }
        }
        write_atomic(&Self::path(folder), &serde_json::to_vec_pretty(self)?)
    }
}

fn render<'a>(
    paper: &'a Paper,
    folder: &'a Folder,
    recipes: &[(&'static str, ExhibitRecipe)],
    formats: Formats,
) -> Result<Rendering<'a>> {
    let what = || format!("rendering {}", folder.path.display());
    let at_scale = |label: &str| recipes::find_recipe(recipes, label).and_then(|r| r.at_scale.first().cloned());
    // The paper is not compared with a user's own model or with measurements of the workbench.
    let mut paper_tables = paper_tables::tables(paper, folder)?;
    let has_rows = paper_tables.iter().any(|table| table.ours > 0);
    let ours_alone = !folder.beside_paper() || !has_rows && !folder.is_paper_requested();
    if ours_alone && !has_rows {
        paper_tables.clear();
    }
    let silent = paper.silent();
    let claims = if ours_alone { vec![] } else { verdicts::test(paper, folder, at_scale) };
    let own_tables = exhibits::tables(folder)?;
    let stem = |room: &str, label: &str| folder.path.join(room).join(label.replace(':', "-"));
    let earlier = WrittenFiles::read(&folder.path)?;
    let mut made = BTreeSet::new();
    for table in paper_tables.iter().map(|b| &b.table).chain(&own_tables) {
        made.extend(table.save(&stem(TABLES, &table.label), formats).with_context(what)?);
    }
    if !claims.is_empty() {
        made.extend(claims_list::save(&claims, &stem(TABLES, "claims"), formats).with_context(what)?);
    }
    let (drawings, undrawn) = match ours_alone {
        _ if folder.is_calibration() => (vec![], vec![]),
        true => (exhibits::drawings(&silent, folder).0, vec![]),
        false => exhibits::drawings(paper, folder),
    };
    // Numbers that cannot be drawn remove their own figure, not the report.
    let saved = |drawing: Drawing| -> Result<Result<RenderedFigure, MissingFigure>> {
        let Drawing { label, title, panels, columns, .. } = &drawing;
        match laid_out(panels, *columns) {
            Ok(scene) => {
                let files = write(&stem(FIGURES, label), panels, &scene, formats.png)?;
                let svg = read_text(&files.svg)?;
                Ok(Ok(RenderedFigure { drawing, files, svg }))
            }
            Err(why) => Ok(Err(MissingFigure {
                label: label.clone(),
                title: title.clone(),
                reason: format!("cannot be drawn: {why:#}"),
            })),
        }
    };
    let (mut figures, mut undrawn) = (vec![], undrawn);
    for figure in drawings.into_par_iter().map(saved).collect::<Result<Vec<_>>>().with_context(what)? {
        match figure {
            Ok(drawn) => figures.push(drawn),
            Err(not) => undrawn.push(not),
        }
    }
    made.extend(figures.iter().flat_map(|drawn| std::iter::once(&drawn.files.svg).chain(&drawn.files.png)).cloned());
    let graphs = exhibits::graphs(folder).into_iter().map(|graph| (FIGURES, graph));
    let cards = exhibits::cards(folder).into_iter().map(|card| (TABLES, card));
    for (below, (name, json)) in graphs.chain(cards) {
        let file = folder.path.join(below).join(format!("{name}.json"));
        write_atomic(&file, json.to_string().as_bytes()).with_context(what)?;
        made.insert(file);
    }
    WrittenFiles::new(&made)?.replace(&earlier, &folder.path)?;
    Ok(Rendering { folder, paper_tables, own_tables, figures, undrawn, claims })
}

fn summary(r: &Rendering<'_>) -> String {
    let with_rows = r.paper_tables.iter().filter(|b| b.ours > 0).count();
    let missing: Vec<&str> =
        r.undrawn.iter().filter(|u| u.reason.contains("needs")).map(|u| u.label.as_str()).collect();
    let of_paper = if r.paper_tables.is_empty() {
        String::new()
    } else {
        format!("{} of the paper ({with_rows} with rows of ours), ", r.paper_tables.len())
    };
    let mut out = format!(
        "{} ({})\n  tables   {of_paper}{} of ours  → {}\n  figures  {}  → {}\n",
        r.folder.name,
        r.folder.dataset(),
        r.own_tables.len(),
        r.folder.path.join(TABLES).display(),
        r.figures.len(),
        r.folder.path.join(FIGURES).display(),
    );
    if !missing.is_empty() {
        out += &format!("  no rows for {}\n", missing.join(", "));
    }
    if !r.claims.is_empty() {
        out += &format!("  claims   {}\n", counted(&r.claims));
    } else if !r.folder.is_calibration() {
        let what = if r.paper_tables.is_empty() { "tables and" } else { "other tables and its" };
        out += &format!(
            "  the paper's {what} claims are left out: no checkpoint of the paper's phases has rows for them (--paper shows them)\n"
        );
    }
    for MissingFigure { label, reason, .. } in r.undrawn.iter().filter(|u| u.reason.contains("cannot")) {
        out += &format!("  left out: {label} {reason}\n");
    }
    for why in r.folder.untrained() {
        out += &format!("  {why}\n");
    }
    for why in &r.folder.mixed {
        out += &format!("  MIXED    left out: {why}\n");
    }
    for why in &r.folder.unreadable {
        out += &format!("  left out: {why}\n");
    }
    out
}
