//! `probe adapter`: writes what training changed in a model as a PEFT adapter over its base.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{ModelArgs, print};
use switchyard::latent::reasoning;
use switchyard::model::checkpoint::peft::{Difference, difference, save_adapter};
use switchyard::model::checkpoint::{Dtype, ModelFiles};
use switchyard::model::heads;

/// Write what training changed in a model as a PEFT adapter over its base.
///
/// For whole models: after full training, or with LoRA factors that `train` merged under checkpoint.whole=true (without it, the
/// checkpoints of a run with LoRA are such folders already). The folder opens with --adapter, here and in PEFT (resize the base to the
/// tokenizer's length first). Prints the share of the change that the rank drops.
#[derive(Args, Debug)]
pub struct AdapterArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The model that the training began with: a folder, a .gguf file or a hub id
    #[arg(long, value_name = "MODEL")]
    base: String,
    /// Rank of the factors. Each merged phase of `train` needs its own: three phases of lora.rank 8 need 24
    #[arg(long, value_name = "R", default_value_t = 16)]
    rank: usize,
    /// Type of the stored values
    #[arg(long, default_value = "bf16", value_parser = PossibleValuesParser::new(["f32", "bf16"]).map(parse_dtype))]
    dtype: Dtype,
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn parse_dtype(name: String) -> Dtype {
    if name == "f32" { Dtype::F32 } else { Dtype::BF16 }
}

impl AdapterArgs {
    pub fn run(&self) -> Result<()> {
        ensure!((1..=1024).contains(&self.rank), "--rank must be from 1 to 1024, found {}", self.rank);
        ensure!(!self.out.exists(), "{}: already exists; name a new folder with --out", self.out.display());
        let opened = self.model.open()?;
        let trained = &opened.files;
        let base = ModelFiles::open(&self.base)?;
        let heads = opened.heads_folder().join(heads::FILE);
        ensure!(!heads.is_file(), "{}: an adapter cannot contain a method's own heads", heads.display());
        let Difference { mut adapter, lost } = difference(&base, trained, self.rank)?;
        // As typed, so that it can be found again; an absolute path is of this machine only.
        let typed = Path::new(&self.base);
        let name = if typed.is_absolute() { typed.file_name() } else { Some(typed.as_os_str()) };
        adapter.config.base_model = name.map(|name| name.to_string_lossy().into_owned());
        let mut files = trained.text_files(None)?;
        if let Some(reasoning) = opened.reasoning.as_ref().filter(|_| !opened.is_released) {
            files.push((reasoning::FILE.to_owned(), serde_json::to_vec_pretty(reasoning)?));
        }
        save_adapter(&self.out, &adapter, self.dtype, &files, false)?;
        print(&format!(
            "{}\n{} matrices of rank {}, {} token rows, {} whole weights; the rank leaves out {:.2e} of the squared change\n",
            self.out.display(),
            adapter.factors.len(),
            adapter.config.r,
            adapter.config.token_rows.len(),
            adapter.replaced.len(),
            lost
        ))
    }
}
