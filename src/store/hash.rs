//! SHA-256 of files.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::guard::regular;

/// The digits of a hash.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Hash of the concatenated bytes of these files, read in chunks.
pub fn sha256<P: AsRef<Path>>(files: &[P]) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files.iter().map(AsRef::as_ref) {
        let read =
            regular(file).and_then(|_| File::open(file)).and_then(|mut open| std::io::copy(&mut open, &mut hash));
        read.with_context(|| format!("{}: cannot read", file.display()))?;
    }
    Ok(hex(&hash.finalize()))
}
