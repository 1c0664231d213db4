//! `probe lens` and `probe patterns`: read a user's text layer by layer, without generation.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::{Value, json};

use super::device::MachineArgs;
use super::hooks::HookArgs;
use super::request::{KnownRows, Prompt, PromptArgs, Subject};
use super::table::{WIDTH, fitted};
use super::unknown_words::warn_of_unknown;
use super::{ModelArgs, print};
use switchyard::guard::read_text;
use switchyard::latent::{HiddenState, Sequence};
use switchyard::loading::{Loaded, Reading};
use switchyard::machine::threads;
use switchyard::model::Hooks;
use switchyard::model::hooks::{RecordedTensor, parse_specs};
use switchyard::progress::say;
use switchyard::store::output_path;
use switchyard::study::circuits::lens::{Fitting, JacobianLens};

#[derive(Args, Debug)]
struct TextArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: PromptArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    edit: HookArgs,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Readout of states.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum LensKind {
    /// Final norm and head on the state itself
    #[default]
    Logit,
    /// The same on the state times the mean Jacobian of the final state (Gurnee et al. 2026)
    Jacobian,
}

/// Read a text through a lens: the next token that each layer's output predicts.
///
/// A Jacobian lens is loaded from a file of its authors' code or of TransformerLens (--lens), or fitted on your texts (--fit) and optionally
/// saved in the same format (--save).
#[derive(Args, Debug)]
pub struct LensArgs {
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    lens: LensChoice,
    /// Most probable tokens of each layer and position
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    top: u16,
}

/// Positions that a fit leaves out, and dimensions per backward pass.
const FIT: (usize, u16) = (16, 32);

/// Which lens.
#[derive(Args, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LensChoice {
    /// Readout of states
    #[arg(long, default_value = "logit")]
    kind: LensKind,
    /// A Jacobian lens: `{J, n_prompts, source_layers, d_model}` of torch.save
    #[arg(long, value_name = "FILE.pt", conflicts_with = "fit")]
    lens: Option<PathBuf>,
    /// Texts to fit a Jacobian lens on, one per line
    #[arg(long, value_name = "FILE.txt")]
    fit: Option<PathBuf>,
    /// Output file of the fitted lens
    #[arg(long, value_name = "FILE.pt", requires = "fit")]
    save: Option<PathBuf>,
    /// First positions of each text that the fit leaves out
    #[arg(long, default_value_t = FIT.0, value_name = "N", requires = "fit")]
    skip: usize,
    /// Dimensions of the final state per backward pass of the fit
    #[arg(long, default_value_t = FIT.1, value_name = "N", requires = "fit", value_parser = clap::value_parser!(u16).range(1..))]
    together: u16,
}

impl Default for LensChoice {
    fn default() -> Self {
        Self { kind: LensKind::Logit, lens: None, fit: None, save: None, skip: FIT.0, together: FIT.1 }
    }
}

/// Show the attention patterns of a text: each head's weights from one position.
#[derive(Args, Debug)]
pub struct PatternArgs {
    #[command(flatten)]
    text: TextArgs,
    /// The position that looks; -1 is the last
    #[arg(long, default_value_t = -1, value_name = "POSITION", allow_negative_numbers = true)]
    from: i64,
    /// The most attended positions of each head
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    top: u16,
}

/// A text that has been run.
struct TextRun<T> {
    tokens: Vec<String>,
    row: Sequence,
    found: T,
}

impl TextArgs {
    /// Loads the model and runs the text with hooks; `fits` checks the text before any weight is read.
    fn run<T: Send>(
        &self,
        fits: impl Fn(&Sequence) -> Result<()> + Send + Sync,
        work: impl Fn(&Loaded, &Sequence, Hooks) -> Result<T> + Send + Sync,
    ) -> Result<TextRun<T>> {
        self.machine.compute(|machine| {
            let opened = self.model.open()?;
            let prompt = self.text.read()?.context("nothing to read: give --prompt or --ids")?;
            let mut known = KnownRows::check(&Subject::from(&opened), &[prompt], &self.edit.hook)?;
            fits(&known.rows[0])?;
            let loaded = opened.load_on(machine)?;
            let (found, _) = known.run(|hooks| work(&loaded, &known.rows[0], hooks))?;
            let row = known.rows.remove(0);
            Ok(TextRun { tokens: tokens(&loaded, &row), row, found })
        })
    }
}

impl LensArgs {
    pub fn run(&self) -> Result<()> {
        let top = usize::from(self.top);
        let held = self.lens.open()?;
        let TextRun { tokens, row, found } = self.text.run(
            |_| Ok(()),
            |loaded, row, hooks| {
                let readings = self.lens.read(loaded, row, (top, held.as_ref()), hooks)?;
                Ok(readings.iter().map(|(layer, readings)| (*layer, named(loaded, readings))).collect::<Vec<_>>())
            },
        )?;
        let (layers, found): (Vec<usize>, Vec<_>) = found.into_iter().unzip();
        if self.text.json {
            let mut all = json!({ "ids": row.ids, "tokens": tokens, "layers": found });
            if self.lens.kind == LensKind::Jacobian {
                all["read_layers"] = json!(layers);
            }
            return print(&format!("{all}\n"));
        }
        let mut out = "| position | token |".to_owned();
        layers.iter().for_each(|layer| out += &format!(" blocks.{layer} |"));
        out += &format!("\n|{}\n", " --- |".repeat(found.len() + 2));
        for (position, token) in tokens.iter().enumerate() {
            out += &format!("| {position} | {} |", token_cell(token));
            for layer in &found {
                let cells = layer[position].iter().map(|(token, p)| format!("{} {p:.2}", token_cell(token)));
                out += &format!(" {} |", cells.collect::<Vec<_>>().join(", "));
            }
            out.push('\n');
        }
        let name = if self.lens.kind == LensKind::Jacobian { "Jacobian lens" } else { "logit lens" };
        print(&format!(
            "The next token that each layer's output predicts, and its probability ({name}).\n\n{}",
            fitted(&out, WIDTH)
        ))
    }
}

impl LensChoice {
    /// Checks the options; returns the lens of the file, if one is named.
    fn open(&self) -> Result<Option<JacobianLens>> {
        let given = self.lens.is_some() || self.fit.is_some();
        ensure!(
            given == (self.kind == LensKind::Jacobian),
            "--kind jacobian needs a lens: give --lens FILE.pt or --fit FILE.txt, and neither without it"
        );
        // Requests of a session have not met the command line's rules.
        ensure!(self.lens.is_none() || self.fit.is_none(), "`lens` and `fit` exclude each other: give one");
        ensure!(self.save.is_none() || self.fit.is_some(), "`save` needs `fit`: only a fitted lens is saved");
        // A fit takes long: its file is checked before.
        self.save.as_deref().map(output_path).transpose().context("--save")?;
        self.lens.as_deref().map(JacobianLens::load).transpose()
    }

    /// Reads a row, `top` tokens per position, through the loaded lens, else through one fitted now, else through the logit lens.
    fn read(
        &self,
        loaded: &Loaded,
        row: &Sequence,
        (top, held): (usize, Option<&JacobianLens>),
        hooks: Hooks,
    ) -> Result<Vec<(usize, Vec<Reading>)>> {
        let fitted = self.fit.as_deref().map(|texts| self.fitted(loaded, texts)).transpose()?;
        let Some(lens) = held.or(fitted.as_ref()) else {
            return Ok(loaded.lens(row, top, hooks)?.into_iter().enumerate().collect());
        };
        lens.check_fits(loaded.model.config().hidden_size, loaded.layers())?;
        loaded.lens_through(row, top, hooks, |layer, states| lens.carry(layer, states))
    }

    /// A lens fitted on the texts of a file, saved if requested.
    fn fitted(&self, loaded: &Loaded, texts: &Path) -> Result<JacobianLens> {
        let text = read_text(texts).with_context(|| format!("--fit {}: cannot read", texts.display()))?;
        let vocabulary = loaded.vocabulary.as_ref().context("the model has no tokenizer to read texts with")?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        warn_of_unknown(vocabulary, "texts", lines.iter().copied())?;
        let row = |(i, line): (usize, &&str)| {
            let ids = vocabulary.encode_row(line)?;
            let prompt = ids.len();
            Sequence::new(i, ids, prompt, None)
        };
        let rows: Vec<Sequence> = lines.iter().enumerate().map(row).collect::<Result<_>>()?;
        let how = Fitting { skip: self.skip, together: self.together.into(), threads: threads() };
        let lens = JacobianLens::fit(&loaded.model, &HiddenState, &rows, how)
            .with_context(|| format!("{}: fitting a Jacobian lens", texts.display()))?;
        let (all, few) = (rows.len(), lens.prompts < rows.len());
        let (warning, why) = if few { ("warning: ", ": the others are too short") } else { ("", "") };
        say(&format!("{warning}fitted on {} of {all} texts{why}", lens.prompts));
        if let Some(path) = &self.save {
            lens.save(path)?;
        }
        Ok(lens)
    }
}

impl PatternArgs {
    pub fn run(&self) -> Result<()> {
        let TextRun { tokens, row, found } = self.text.run(
            |row| self.position(row.ids.len()).map(drop),
            |loaded, row, hooks| {
                let from = self.position(row.ids.len())?;
                Ok((from, patterns(loaded, row, from, hooks)?))
            },
        )?;
        let (from, patterns) = found;
        if self.text.json {
            let all = json!({ "ids": row.ids, "tokens": tokens, "from": from, "patterns": patterns });
            return print(&format!("{all}\n"));
        }
        let mut out = "| head | looks at |\n| --- | --- |\n".to_owned();
        for (layer, heads) in patterns.iter().enumerate() {
            for (head, weights) in heads.iter().enumerate() {
                let mut order: Vec<usize> = (0..=from.min(weights.len() - 1)).collect();
                order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
                let best = order.iter().take(usize::from(self.top));
                let best: Vec<String> =
                    best.map(|at| format!("{at} {} {:.2}", token_cell(&tokens[*at]), weights[*at])).collect();
                out += &format!("| L{layer}H{head} | {} |\n", best.join(", "));
            }
        }
        print(&format!(
            "Attention of each head from position {from}, {}: position, token, weight.\n\n{}",
            token_cell(&tokens[from]),
            fitted(&out, WIDTH)
        ))
    }

    fn position(&self, length: usize) -> Result<usize> {
        let at = if self.from < 0 { self.from + length as i64 } else { self.from };
        let found = usize::try_from(at).ok().filter(|at| *at < length);
        found.with_context(|| format!("--from {}: the text has positions 0 to {}", self.from, length - 1))
    }
}

/// The attention of every head from one position: `[layer][head][position]`.
pub(super) fn patterns(loaded: &Loaded, row: &Sequence, from: usize, hooks: Hooks) -> Result<Vec<Vec<Vec<f32>>>> {
    let specs = parse_specs(&format!("blocks.*.attn.hook_pattern@pos[{from}]"))?;
    let recorded = loaded.record(std::slice::from_ref(row), &specs, false, hooks)?;
    let heads = loaded.model.config().num_attention_heads;
    let of_layer = |layer: &RecordedTensor| {
        let pattern = layer.at(0, from)?;
        Ok(pattern.chunks(pattern.len() / heads).map(<[f32]>::to_vec).collect())
    };
    recorded.iter().map(of_layer).collect()
}

/// A text through a lens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LensRequest {
    prompt: Prompt,
    #[serde(default)]
    lens: LensChoice,
    top: Option<usize>,
    #[serde(default)]
    hooks: Vec<String>,
}

impl LensRequest {
    pub fn run(&self, loaded: &Loaded) -> Result<Value> {
        let Self { prompt, lens, top, hooks } = self;
        let (held, top) = (lens.open()?, top.unwrap_or(5));
        ensure!((1..=1000).contains(&top), "top: {top} is not between 1 and 1000");
        let known = KnownRows::check(&Subject::from(loaded), std::slice::from_ref(prompt), hooks)?;
        let row = &known.rows[0];
        let (found, fired) = known.run(|hooks| lens.read(loaded, row, (top, held.as_ref()), hooks))?;
        let (read, layers): (Vec<usize>, Vec<_>) = found.into_iter().unzip();
        let layers: Vec<_> = layers.iter().map(|layer| named(loaded, layer)).collect();
        Ok(json!({ "tokens": tokens(loaded, row), "layers": layers, "read": read, "hooks": fired }))
    }
}

/// The texts of a row's tokens.
pub(super) fn tokens(loaded: &Loaded, row: &Sequence) -> Vec<String> {
    row.ids.iter().map(|id| token(loaded, *id)).collect()
}

/// Readings with the tokens' texts.
pub(super) fn named(loaded: &Loaded, layer: &[Reading]) -> Vec<Vec<(String, f64)>> {
    let position = |reading: &Reading| reading.iter().map(|(id, p)| (token(loaded, *id), *p)).collect();
    layer.iter().map(position).collect()
}

/// A token's text; without a vocabulary its id.
pub(super) fn token(loaded: &Loaded, id: u32) -> String {
    let text = loaded.vocabulary.as_ref().and_then(|vocabulary| vocabulary.decode(&[id]).ok());
    text.filter(|text| !text.is_empty())
        .or_else(|| loaded.vocabulary.as_ref()?.token(id))
        .unwrap_or_else(|| id.to_string())
}

/// A token as a table cell: spaces and control characters are visible, and a bar does not end the cell.
pub(super) fn token_cell(token: &str) -> String {
    let shown = |c: char| match c {
        '\n' => "⏎".to_owned(),
        '\r' => "␍".to_owned(),
        '\t' => "⇥".to_owned(),
        ' ' => "␣".to_owned(),
        '|' => "¦".to_owned(),
        // Tables trim their cells.
        c if c.is_control() || c.is_whitespace() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    token.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_visible_in_a_table() {
        assert_eq!(token_cell(" a|b\r\n"), "␣a¦b␍⏎");
        assert_eq!(token_cell("\u{b}\u{a0}é"), "\\u000b\\u00a0é");
    }
}
