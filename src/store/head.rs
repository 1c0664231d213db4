//! The commit of the source tree, read from git's files: no child process, which could hang, fail, or hold a lock for a moment after this
//! process was killed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// References that lead to references.
const LINKS: usize = 5;

/// Root folder of the checkout that this binary was built from.
pub const CHECKOUT: &str = env!("CARGO_MANIFEST_DIR");

/// The commit of the source tree of this binary, if its repository still exists; computed once per process.
pub fn commit() -> String {
    static COMMIT: OnceLock<String> = OnceLock::new();
    let read = || head(Path::new(CHECKOUT), std::env::var_os("GIT_DIR"));
    COMMIT.get_or_init(|| read().unwrap_or_else(|| "unknown".into())).clone()
}

/// The commit of a tree; `named` is the value of GIT_DIR.
fn head(tree: &Path, named: Option<OsString>) -> Option<String> {
    let git = named.map(PathBuf::from).or_else(|| tree.ancestors().find_map(folder_of))?;
    let read = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    // A worktree has its own HEAD and shares the other files.
    let common = read(git.join("commondir")).map_or_else(|| git.clone(), |path| git.join(path));
    let mut said = read(git.join("HEAD"))?;
    for _ in 0..LINKS {
        let Some(name) = said.strip_prefix("ref:").map(str::trim) else {
            return Some(said).filter(|hash| hash.len() >= 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
        };
        let packed = || {
            let list = read(common.join("packed-refs"))?;
            let hash = list.lines().find_map(|line| line.split_once(' ').filter(|(_, other)| *other == name))?.0;
            Some(hash.to_owned())
        };
        said = read(git.join(name)).or_else(|| read(common.join(name))).or_else(packed)?;
    }
    None
}

/// The repository's folder for a tree: `.git`, or the target of a file of that name.
fn folder_of(tree: &Path) -> Option<PathBuf> {
    let git = tree.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = fs::read_to_string(&git).ok()?;
    Some(tree.join(text.strip_prefix("gitdir:")?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_found_where_git_puts_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let hash = |digit: &str| digit.repeat(40);
        let of = |tree: &str| head(&folder.path().join(tree), None);
        write("main/.git/HEAD", "ref: refs/heads/main\n");
        assert_eq!(of("main/src"), None, "no commit yet");
        write("main/.git/packed-refs", &format!("# pack-refs\n{} refs/heads/main\n^{}\n", hash("a"), hash("b")));
        assert_eq!(of("main/src"), Some(hash("a")));
        write("main/.git/refs/heads/main", &format!("{}\n", hash("c")));
        assert_eq!(of("main"), Some(hash("c")));
        write("main/.git/worktrees/side/HEAD", "ref: refs/heads/side\n");
        write("main/.git/worktrees/side/commondir", "../..\n");
        write("main/.git/refs/heads/side", &hash("d"));
        write("side/.git", &format!("gitdir: {}\n", folder.path().join("main/.git/worktrees/side").display()));
        assert_eq!(of("side"), Some(hash("d")));
        write("main/.git/HEAD", &hash("e"));
        assert_eq!(of("main"), Some(hash("e")));
        write("main/.git/HEAD", "ref: refs/heads/round\n");
        write("main/.git/refs/heads/round", "ref: refs/heads/round\n");
        assert_eq!(of("main"), None, "a circle");
        assert_eq!(head(&folder.path().join("side"), Some("/dev/null".into())), None, "GIT_DIR is believed");
    }
}
