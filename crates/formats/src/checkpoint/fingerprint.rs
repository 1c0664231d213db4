//! Fingerprint of an adapter's base from file sizes and evenly sampled bytes, without reading all of it. Another training of the same
//! shape differs nearly everywhere; a base of 8 billion weights takes milliseconds.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::ModelFiles;
use crate::guard::{read_text, regular};
use crate::random::fnv1a;

/// File of the base's fingerprint in an adapter that `train` wrote.
pub const FILE: &str = "base.json";

/// Sampled blocks per file, and bytes per block.
const BLOCKS: u64 = 64;
const BLOCK: u64 = 4096;

/// Fingerprint of a model's weights files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    bytes: u64,
    /// FNV-1a of the size and of the blocks of each file, in the order of their paths.
    sample: String,
}

impl Fingerprint {
    /// The fingerprint stored in a folder, if any.
    pub(super) fn read_stored(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let text = read_text(&path).with_context(|| format!("{}: cannot read", path.display()))?;
        serde_json::from_str(&text)
            .map(Some)
            .with_context(|| format!("{}: not the fingerprint of a base", path.display()))
    }
}

impl Display for Fingerprint {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{} bytes, sample {}", self.bytes, self.sample)
    }
}

impl ModelFiles {
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let names = self.weights.names();
        let files: BTreeSet<PathBuf> = names.iter().map(|name| self.weights.file_of(name).to_path_buf()).collect();
        let (mut bytes, mut drawn) = (0, vec![]);
        for file in files {
            bytes += sample(&file, &mut drawn).with_context(|| format!("{}: cannot read", file.display()))?;
        }
        Ok(Fingerprint { bytes, sample: format!("{:016x}", fnv1a(drawn)) })
    }
}

/// Appends size and sampled blocks of a file; returns its size.
fn sample(file: &Path, drawn: &mut Vec<u8>) -> std::io::Result<u64> {
    regular(file)?;
    let mut open = File::open(file)?;
    let size = open.metadata()?.len();
    drawn.extend(size.to_le_bytes());
    let mut block = vec![0; BLOCK.min(size) as usize];
    for nth in 0..BLOCKS {
        open.seek(SeekFrom::Start((size - block.len() as u64) * nth / (BLOCKS - 1)))?;
        open.read_exact(&mut block)?;
        drawn.extend(&block);
    }
    Ok(size)
}
