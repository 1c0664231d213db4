//! The page's laboratory: small checkpoints that run in the reader's browser. Knows the files of checkpoints and runs, and how bytes are
//! embedded in a page; never opens a model. The other half is JavaScript: `decoder.js` computes, `experiment.js` defines changes and predicted
//! answers, `bench.js` stores choices, `draw.js` and `lab.js` display, `start.js` begins.

pub(crate) mod explorer;
mod runs;
mod weights;

use anyhow::Result;
use serde_json::{Value, json};

use super::folder::Folder;
use runs::Run;
use weights::Exact;
pub(super) use weights::zipped;

pub(super) const STYLE: &str = include_str!("lab.css");

const SCRIPTS: [&str; 6] = [
    include_str!("decoder.js"),
    include_str!("experiment.js"),
    include_str!("draw.js"),
    include_str!("bench.js"),
    include_str!("lab.js"),
    include_str!("start.js"),
];

/// Maximum characters of all weights in a page; further models are skipped. The rest of a page fits into 3 MB with them.
const ROOM: usize = 1_500_000;

/// Embedded models of a page.
#[derive(Default)]
pub(crate) struct Live {
    runs: Vec<Value>,
    /// Number of the folder that the first model belongs to.
    at: Option<usize>,
    /// The weights: id of their element, and gzip in base64.
    blobs: Vec<(String, String)>,
    /// Messages for the terminal: embedded models, and skipped ones with reasons.
    pub said: Vec<String>,
}

impl Live {
    /// Embeds every checkpoint of these folders that exists with the weights of its records and that a browser can run, within the limit. The
    /// first one exactly, others to 13 bits of mantissa (three more than 16-bit floats have).
    pub fn new(folders: &[Folder]) -> Self {
        let mut live = Self::default();
        let mut room = ROOM;
        for (number, folder) in folders.iter().enumerate() {
            let (found, left_out) = runs::runs(folder);
            live.said.extend(left_out);
            for run in found {
                live.add(&run, number, &mut room);
            }
        }
        live
    }

    fn add(&mut self, run: &Run, folder: usize, room: &mut usize) {
        let mut models = vec![];
        for model in &run.models {
            let name = format!("{}/{}", run.name, model.phase);
            let exact = if self.blobs.is_empty() { Exact::Yes } else { Exact::Rounded };
            let packed = match weights::pack(&model.weights, exact) {
                Ok(packed) if packed.base64.len() <= *room => packed,
                Ok(_) => {
                    self.said.push(format!("{name} does not run in the page: there is no room left for its weights"));
                    continue;
                }
                Err(why) => {
                    self.said.push(format!("{name} does not run in the page: {why:#}"));
                    continue;
                }
            };
            *room -= packed.base64.len();
            let id = format!("lab-weights-{}", self.blobs.len());
            let size = packed.base64.len() as f64 / 1e6;
            self.said.push(format!("{name} runs in the page ({size:.2} MB{})", exact.note()));
            models.push(json!({
                "phase": model.phase, "title": titled(&model.phase), "config": model.config, "reasoning": model.reasoning,
                "stop": model.stop, "index": packed.index, "data": id, "rounded": exact.note(),
            }));
            self.blobs.push((id, packed.base64));
        }
        if !models.is_empty() {
            self.at.get_or_insert(folder);
            self.runs.push(json!({
                "name": run.name, "path": run.path, "tokenizer": run.tokenizer, "prefix": run.prefix, "modulus": run.modulus,
                "problems": run.problems, "answers": run.answers, "models": models,
            }));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether the laboratory is in this folder's article.
    pub(super) fn stands_in(&self, folder: usize) -> bool {
        self.at == Some(folder)
    }

    /// Models and problems as elements that no browser runs or shows.
    pub(super) fn data(&self) -> Result<String> {
        if self.is_empty() {
            return Ok(String::new());
        }
        let about = json!({ "runs": self.runs }).to_string();
        let mut out = element("lab-data", &zipped(about.as_bytes())?);
        for (id, base64) in &self.blobs {
            out += &element(id, base64);
        }
        Ok(out)
    }

    /// The script that runs them; empty without models.
    pub(super) fn script(&self) -> String {
        if self.is_empty() { String::new() } else { format!("(() => {{\n{}}})();\n", SCRIPTS.concat()) }
    }
}

fn element(id: &str, base64: &str) -> String {
    format!("<script type=\"application/octet-stream\" id=\"{id}\">{base64}</script>\n")
}

/// A checkpoint's title by its phase.
fn titled(phase: &str) -> String {
    match phase {
        "sft" => "after supervised training".into(),
        "grpo_start" => "where reinforcement learning starts".into(),
        "grpo" => "after reinforcement learning".into(),
        other => other.into(),
    }
}

/// The link to it at the top of the page.
pub(super) const INVITATION: &str = "<p><a class=\"lab-link\" href=\"#try\">Try it yourself: put another thought into the model, and \
    see its answer change</a></p>\n";

/// Marker of the laboratory in an article.
pub(super) const SECTION: &str = "<section class=\"lab\" id=\"try\" aria-labelledby=\"try-title\">\n\
    <h2 id=\"try-title\">Try it: change what the model thinks</h2>\n\
    <p>In the pink chips the model writes nothing and thinks in hidden states. Put the thought of another problem there, and see which \
    answer comes out. The model runs in this page; nothing is sent anywhere.</p>\n\
    <div id=\"try-lab\"><noscript><p>This part needs JavaScript: the model itself runs in it. All else on the page is readable \
    without.</p></noscript></div></section>\n";
