//! Which modules an adapter's settings select, as in PEFT's `check_target_module_exists`: factors of other modules in the file are not
//! used.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Result, anyhow, ensure};
use tokenizers::utils::SysRegex as Regex;

use super::{AdapterConfig, Targets};

/// PEFT's default targets for the kinds of models that we read, if `target_modules` is missing.
const USUAL: [&str; 3] = ["q_proj", "v_proj", "c_attn"];

impl AdapterConfig {
    /// Whether a module of this path in the base has factors.
    pub fn reaches(&self, module: &str) -> bool {
        let excluded = self.exclude.as_ref().is_some_and(|exclude| exclude.name(module));
        // A module that is saved whole never gets factors.
        let saved = |name: &String| match is_plain(name) {
            true => has_part(name, module),
            false => fits(&format!(r"(^|.*\.){name}($|\..*)"), module),
        };
        if excluded || self.modules_to_save.iter().any(saved) {
            return false;
        }
        // A full path matches in any layer; a pattern covers the layers itself.
        match &self.targets {
            Targets::Names(names) if names.iter().any(|name| name == module) => true,
            Targets::Pattern(_) => self.targets.name(module),
            _ => self.targets.name(module) && self.selects_layer(module),
        }
    }

    fn selects_layer(&self, module: &str) -> bool {
        let Some(layers) = &self.layers else { return true };
        // Everything up to the number's dot.
        let number = |pattern: String| {
            let (_, end) = compiled(format!("^(?:{pattern})")).ok()?.find_iter(module).next()?;
            module[..end].trim_end_matches('.').rsplit('.').next()?.parse::<usize>().ok()
        };
        let number = match self.layers_pattern.as_slice() {
            [] => number(r".*?\.[^.]*\.\d+\.".into()),
            patterns => patterns.iter().find_map(|p| number(format!(r"(?:^|.*?\.){p}\.\d+\."))),
        };
        number.is_some_and(|number| layers.contains(&number))
    }

    /// Whether the module is saved whole, as a trained copy next to the base's.
    pub(super) fn saves(&self, module: &str) -> bool {
        self.modules_to_save.iter().any(|name| module.ends_with(name.as_str()))
    }
}

impl Targets {
    fn name(&self, module: &str) -> bool {
        let ends = |name: &str| module == name || module.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
        match self {
            Targets::Names(names) => names.iter().any(|name| ends(name)),
            Targets::Usual => USUAL.iter().any(|name| ends(name)),
            Targets::Pattern(all) if all == "all-linear" => {
                !["lm_head", "embed_tokens", "wte", "wpe"].iter().any(|table| ends(table))
            }
            Targets::Pattern(pattern) => fits(pattern, module),
        }
    }
}

/// Whether the expression matches all of `text` (Python's `re.fullmatch`).
pub(super) fn matches_all(pattern: &str, text: &str) -> Result<bool> {
    if is_plain(pattern) {
        return Ok(pattern.len() == text.len() && matches_plain(pattern, text));
    }
    Ok(compiled(format!("^(?:{pattern})$"))?.find_iter(text).next().is_some())
}

/// Whether an expression is a name without operators except the dot.
fn is_plain(pattern: &str) -> bool {
    pattern.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-' | b'.'))
}

/// Whether a plain expression matches a text of its length. A dot matches any letter.
fn matches_plain(pattern: &str, text: &str) -> bool {
    text.is_ascii() && pattern.bytes().zip(text.bytes()).all(|(p, t)| p == t || (p == b'.' && t != b'\n'))
}

/// Whether a plain expression is a sequence of whole parts of a path.
fn has_part(pattern: &str, module: &str) -> bool {
    let starts = std::iter::once(0).chain(module.match_indices('.').map(|(at, _)| at + 1));
    let mut ends = starts.filter_map(|start| module[start..].split_at_checked(pattern.len()));
    ends.any(|(part, rest)| (rest.is_empty() || rest.starts_with('.')) && matches_plain(pattern, part))
}

/// Maximum number of expressions that are not plain names, and bytes of one: each is matched with every module and compiled once.
pub(super) const MOST_PATTERNS: usize = 64;
pub(super) const LONGEST_PATTERN: usize = 4096;

/// Checks that a list of patterns is short enough.
pub(super) fn check_patterns<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Result<()> {
    let expressions = patterns.into_iter().filter(|pattern| !is_plain(pattern));
    for (number, pattern) in expressions.enumerate() {
        ensure!(
            number < MOST_PATTERNS,
            "more than {MOST_PATTERNS} regular expressions: write plain names of modules, or fewer expressions"
        );
        ensure!(
            pattern.len() <= LONGEST_PATTERN,
            "a regular expression of {} bytes, at most {LONGEST_PATTERN} are read",
            pattern.len()
        );
    }
    Ok(())
}

/// Size of the cache of compiled expressions: some patterns occur in two forms.
const KEPT: usize = 4 * MOST_PATTERNS;

thread_local! {
    static COMPILED: RefCell<HashMap<String, Rc<Regex>>> = RefCell::default();
}

/// The compiled expression, cached: a long one takes a tenth of a second to compile.
fn compiled(pattern: String) -> Result<Rc<Regex>> {
    COMPILED.with_borrow_mut(|kept| {
        if let Some(regex) = kept.get(&pattern) {
            return Ok(regex.clone());
        }
        let regex = Rc::new(Regex::new(&pattern).map_err(|e| anyhow!("{e}"))?);
        if kept.len() == KEPT {
            kept.clear();
        }
        kept.insert(pattern, regex.clone());
        Ok(regex)
    })
}

fn fits(pattern: &str, text: &str) -> bool {
    matches_all(pattern, text).unwrap_or(false)
}

/// Whether the path is the expression or ends in `.` and it (PEFT's `get_pattern_key`).
pub(super) fn ends_in(pattern: &str, module: &str) -> bool {
    if is_plain(pattern) {
        let Some((before, end)) = module.len().checked_sub(pattern.len()).and_then(|at| module.split_at_checked(at))
        else {
            return false;
        };
        return (before.is_empty() || before.ends_with('.')) && matches_plain(pattern, end);
    }
    fits(&format!(r"(.*\.)?({pattern})"), module)
}
