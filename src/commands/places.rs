//! Where rows go, and whether they may go there; checked before any work. Shared by `probe` and `intervene`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::chosen::Chosen;
use crate::store::{Manifest, writable};

/// One file of rows that is to be made.
pub(crate) struct Place {
    pub folder: PathBuf,
    /// `<experiment>-<checkpoint>`.
    pub name: String,
    /// Of the manifest.
    pub setup: Value,
}

/// Refuses what must not be written; makes the folders.
///
/// # Errors
/// Two files of one name, rows that would stand beside rows of another origin or in the place of more, `--resume` where
/// nothing was begun, a folder that cannot be written.
pub(crate) fn prepare(places: &[Place], chosen: &Chosen) -> Result<()> {
    let mut seen = BTreeSet::new();
    for Place { folder, name, setup } in places {
        ensure!(
            seen.insert((folder, name)),
            "{}: {name} would be written twice, of {} too: leave --out away, or examine one at a time",
            folder.display(),
            setup["checkpoint"]
        );
    }
    let folders: BTreeSet<&PathBuf> = places.iter().map(|place| &place.folder).collect();
    let begun = folders.iter().any(|folder| folder.is_dir());
    ensure!(
        !chosen.resume || begun,
        "--resume: there is no folder {}: nothing was begun there; leave --resume away to begin",
        folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
    );
    for Place { folder, name, setup } in places {
        Manifest::open(folder)?.admits(name, setup, chosen.replace)?;
    }
    for folder in folders {
        writable(folder)?;
    }
    if chosen.replace {
        places.iter().try_for_each(|place| Manifest::open(&place.folder)?.remove_strangers(&place.setup))?;
    }
    Ok(())
}
