//! Answers that are words: sentences, names, yes and no, dates, times, letters of a choice. Knows where a text states such an
//! answer and which spellings are the same; nothing of mathematics.
//!
//! An answer is looked for, in this order: in a closing line `#### …`, in the last box, after a single `#` (generated
//! tasks), after "the answer is" or "Answer:", or it is the whole text.

use super::boxed::{self, Boxes};
use super::kind;

/// Words that introduce the reasons of a statement.
const REASONS: [&str; 8] = [" because ", " since ", " as ", " for ", " so ", " which ", " – ", " — "];
/// Words and marks between "answer" and the answer itself.
const VERBS: [&str; 8] = [" is", ":", " would be", " must be", " should be", " was", " =", " are"];
/// Characters between "answer" and its verb: "the answer to the question is".
const BETWEEN: usize = 80;
/// Maximum mentions of "answer" that are read, from the end.
const MENTIONS: usize = 20;
/// Characters before the last box in which boxes that belong to it begin.
const BOXES: usize = 400;
/// Maximum bytes of an answer in words.
const LONGEST: usize = 4_000;
/// Pairs of delimiters that are removed from a text.
const LAYERS: usize = 8;

/// The answer that a text states, in several spellings if its end is uncertain: the line, its first sentence, its first clause.
#[derive(Debug, Default)]
pub(super) struct Statement {
    spellings: Vec<String>,
    /// Whether it is marked as the answer.
    pub(super) marked: bool,
    /// Whether the first spelling is a text of several lines.
    lines: bool,
}

impl Statement {
    fn marked<'a>(spellings: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all: Vec<String> = vec![];
        for spelling in spellings.into_iter().filter(|text| text.len() <= LONGEST) {
            let joined = spelling.split_whitespace().collect::<Vec<_>>().join(" ");
            if !joined.is_empty() && !all.contains(&joined) {
                all.push(joined);
            }
        }
        Self { spellings: all, marked: true, lines: false }
    }

    /// The answer as it is shown; `None` if none is marked and the text is long.
    pub fn shown(self) -> Option<String> {
        let short = |text: &String| self.marked || text.split(' ').count() <= 12;
        let shown = if self.marked { self.spellings.get(1).or(self.spellings.first()) } else { self.spellings.first() };
        shown.filter(|text| short(text)).map(|text| text.trim_end_matches('.').to_owned())
    }
}

/// Whether a response states `gold` in words; if strict, only a marked answer or the whole response counts.
pub(super) fn states(response: &str, gold: &str, strict: bool) -> bool {
    let (gold, stated) = (words(gold), stated(response));
    let counted = if strict && !stated.marked { 1 } else { stated.spellings.len() };
    !gold.is_empty() && stated.spellings.iter().take(counted).any(|said| words(said) == gold)
}

/// Whether a response, or what it marks as its answer, repeats `gold` letter by letter; strictly, with all the text
/// next to it.
pub(super) fn repeats(response: &str, gold: &str, strict: bool) -> bool {
    let styled = kind::is_delimited(gold);
    let (gold, bare) = (plain(gold), plain(&unstyled(gold)));
    let same = |said: &str| plain(said) == gold || !styled && plain(&unstyled(said)) == bare;
    if gold.is_empty() || bare.is_empty() {
        return false;
    }
    let stated = stated(response);
    let counted = match strict {
        true => usize::from(last_box(response).is_none()),
        false => stated.spellings.len(),
    };
    same(response) || stated.marked && stated.spellings.iter().take(counted).any(|said| same(said))
}

/// A text with one space between words, without surrounding delimiters and without the final stop.
fn plain(text: &str) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut bare = joined.as_str();
    // Each layer is a pass over the text.
    for _ in 0..LAYERS {
        let stop = bare.strip_suffix('.').unwrap_or(bare).trim();
        let pairs = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("**", "**")];
        let inside = pairs.iter().find_map(|(open, close)| stop.strip_prefix(open)?.strip_suffix(close));
        match inside.map(str::trim) {
            Some(inside) if !inside.is_empty() && inside.matches('{').count() == inside.matches('}').count() => {
                bare = inside
            }
            _ => return stop.to_owned(),
        }
    }
    bare.to_owned()
}

/// The answer that a response states in words.
pub(super) fn stated(text: &str) -> Statement {
    if let Some(line) = closing_line(text) {
        return Statement::marked([line]);
    }
    if let Some(content) = last_box(text) {
        return Statement::marked([content.as_str()]);
    }
    if let Some(rest) = behind_hash(text) {
        return Statement::marked([rest]);
    }
    let said = said(text);
    if said.is_empty() { unmarked(text.trim()) } else { Statement::marked(said) }
}

/// All of a text, its last line, its last sentence, that sentence's predicate, and a short first clause ("Yes, because …").
fn unmarked(whole: &str) -> Statement {
    let last = whole.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let sentence = stops(last).next_back().map_or(last, |at| last[at..].trim());
    let mut spellings = vec![whole, last, sentence];
    spellings
        .extend([" is ", "'s ", " are "].iter().filter_map(|verb| sentence.rsplit_once(verb)).map(|(_, rest)| rest));
    let so = ["So ", "Therefore, ", "Thus, ", "Hence, ", "Therefore ", "Thus ", "Hence "];
    spellings.extend(so.iter().filter_map(|word| sentence.strip_prefix(word)));
    let count = |text: &str| text.split_whitespace().count();
    let first = clause(whole, &[',', '.', ':', ';', '!']);
    if (count(sentence) > 3 || sentence == whole) && count(first) <= 3 {
        spellings.push(first);
    }
    Statement { marked: false, lines: whole.contains('\n'), ..Statement::marked(spellings) }
}

/// The answer in a line `#### …`, unless a box follows. A line of prose with text after it is a heading.
pub(super) fn closing_line(text: &str) -> Option<&str> {
    let at = text.rfind("####")?;
    let after = text[at..].trim_start_matches('#');
    let (line, rest) = after.split_once('\n').unwrap_or((after, ""));
    let line = line.trim();
    let heading = !rest.trim().is_empty() && (line.ends_with(':') || has_word(line));
    (!line.is_empty() && !heading && !text[at..].contains("\\boxed")).then_some(line)
}

/// Whether a text has a word of a natural language. Names of LaTeX commands and environments do not count.
pub(super) fn has_word(text: &str) -> bool {
    let letter = |c: char| c.is_alphabetic() || c == '\'';
    let is_named = |at: usize| ["\\", "\\begin{", "\\end{"].iter().any(|opening| text[..at].ends_with(opening));
    let mut at = 0;
    text.split(|c: char| !letter(c)).any(|part| {
        let start = at;
        at += part.len() + text[at + part.len()..].chars().next().map_or(0, char::len_utf8);
        kind::is_word(part) && !is_named(start)
    })
}

/// The content of the last box, or of the last boxes that belong together.
pub(super) fn last_box(text: &str) -> Option<String> {
    let start = text.rfind("\\boxed").max(text.rfind("\\fbox"))?;
    let from = text[..start].char_indices().rev().nth(BOXES).map_or(0, |(at, _)| at);
    let content = boxed::boxed(&text[from..], Boxes::Last);
    (content != text[from..]).then_some(content)
}

/// The text after the last `#` (or `###`) that is a separate word and not the start of a heading: in the middle of a line, or in the last
/// line.
fn behind_hash(text: &str) -> Option<&str> {
    let free = |c: Option<char>| c.is_none_or(char::is_whitespace);
    let own =
        |at: usize| free(text[..at].trim_end_matches('#').chars().next_back()) && free(text[at + 1..].chars().next());
    let (at, _) = text.rmatch_indices('#').find(|(at, _)| own(*at))?;
    let (line, later) = text[at + 1..].split_once('\n').unwrap_or((&text[at + 1..], ""));
    let before = text[..at].trim_end_matches('#').rsplit('\n').next().unwrap_or_default();
    (!before.trim().is_empty() || later.trim().is_empty()).then_some(line)
}

/// The text after the last "answer is" or "answer:": the line, its first sentence, that without its reasons, its first clause.
fn said(text: &str) -> Vec<&str> {
    let lower = text.to_ascii_lowercase();
    for at in lower.rmatch_indices("answer").map(|(at, word)| at + word.len()).take(MENTIONS) {
        let line = lower[at..].split('\n').next().unwrap_or_default();
        let reach = line.char_indices().nth(BETWEEN).map_or(line.len(), |(at, _)| at);
        let verb = VERBS.iter().filter_map(|verb| Some((line[..reach].find(verb)?, verb.len()))).min();
        let Some((place, length)) = verb else { continue };
        let rest = text[at + place + length..].trim_start_matches([':', '*', '_', ' ', '\t']);
        let line = rest.trim_start().lines().next().unwrap_or_default().trim();
        if words(line).is_empty() {
            continue;
        }
        let sentence = stops(line).next().map_or(line, |at| &line[..at]);
        let reason = REASONS.iter().filter_map(|word| sentence.find(word)).min().map_or(sentence, |at| &sentence[..at]);
        return vec![line, sentence, reason, clause(sentence, &[',', ';', '('])];
    }
    vec![]
}

/// A text up to the first of these marks. A mark between two digits (`1,234`, `3:45`) is part of a number.
fn clause<'t>(text: &'t str, marks: &[char]) -> &'t str {
    let digit = |c: char| c.is_ascii_digit();
    let inside = |at: usize, mark: &str| text[..at].ends_with(digit) && text[at + mark.len()..].starts_with(digit);
    let end = text.match_indices(marks).find(|(at, mark)| !inside(*at, mark));
    end.map_or(text, |(at, _)| &text[..at])
}

/// Ends of a line's sentences: after a stop or a mark with a space after it.
fn stops(line: &str) -> impl DoubleEndedIterator<Item = usize> + '_ {
    line.match_indices(['.', '!', '?', ';']).map(|(at, _)| at + 1).filter(|at| line[*at..].starts_with(' '))
}

/// Normalizes a text for comparison: without LaTeX and Markdown around words, without case, quotes and closing marks, with one
/// space between them.
pub(super) fn words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in unstyled(text).chars() {
        match c {
            '*' | '`' | '"' | '“' | '”' | '$' => {}
            '’' | '‘' => out.push('\''),
            '~' | '\u{a0}' => out.push(' '),
            _ => out.extend(c.to_lowercase()),
        }
    }
    let joined = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let closed = joined.trim_end_matches(['.', ',', ';', ':', '!', '?', ' ']).trim_matches(['\'', '_']);
    let inside = closed.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let bare = inside.filter(|inside| !inside.contains(['(', ')'])).unwrap_or(closed).trim_end_matches('.');
    time(bare).unwrap_or_else(|| bare.to_owned())
}

/// `3:45 PM`, `03:45 p.m.` and `3:45pm` as one spelling; `None` if it is not a time of day.
pub(super) fn time(text: &str) -> Option<String> {
    let lower = text.trim().to_lowercase().replace(['.', ' '], "");
    let half = ["am", "pm"].into_iter().find(|half| lower.ends_with(half)).unwrap_or_default();
    let body = lower.strip_suffix(half)?;
    let parts: Vec<&str> = body.split(':').collect();
    let number = |part: &&str| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
    let sixty = parts.iter().skip(1).all(|part| part.len() == 2 && *part < "60");
    let known = parts.iter().all(number) && sixty && parts.len() <= 3 && (parts.len() > 1 || !half.is_empty());
    known.then(|| format!("{}{half}", body.strip_prefix('0').filter(|rest| !rest.starts_with(':')).unwrap_or(body)))
}

const STYLES: [&str; 16] = [
    "\\textnormal",
    "\\textbf",
    "\\textit",
    "\\textrm",
    "\\texttt",
    "\\textsf",
    "\\text",
    "\\mathrm",
    "\\mathbf",
    "\\mathit",
    "\\mathsf",
    "\\mbox",
    "\\boxed",
    "\\fbox",
    "\\emph",
    "\\underline",
];
const SPACES: [&str; 10] = ["\\(", "\\)", "\\[", "\\]", "\\,", "\\;", "\\!", "\\ ", "\\quad", "\\displaystyle"];

/// A text without LaTeX styles and delimiters: `\text{(C)}` becomes `(C)`.
pub(super) fn unstyled(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // For each open brace, the replacement of its closing one: empty for a style, a space for a box, so that boxes are not joined.
    let mut braces = vec![];
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{', '}']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let body = STYLES.iter().find_map(|style| {
            let body = rest.strip_prefix(style)?.trim_start().strip_prefix('{')?;
            Some((body, if ["\\boxed", "\\fbox"].contains(style) { " " } else { "" }))
        });
        let space = SPACES.iter().find_map(|space| rest.strip_prefix(space));
        if let Some((body, gap)) = body {
            out.push_str(gap);
            braces.push(gap);
            rest = body;
        } else if let Some(after) = space {
            out.push(' ');
            rest = after;
        } else {
            out.push_str(match rest.as_bytes()[0] {
                b'{' => {
                    braces.push("}");
                    "{"
                }
                b'}' => braces.pop().unwrap_or("}"),
                _ => &rest[..1],
            });
            rest = &rest[1..];
        }
    }
    out + rest
}

/// The letter that a text chooses: `C`, `(C)`, `C.`, `C) 42`, `\text{(C)}`, "option C".
pub(super) fn choice(text: &str) -> Option<char> {
    if formula(text).is_some_and(|formula| is_signed(&formula)) {
        return None;
    }
    let Statement { spellings, lines, .. } = stated(text);
    let spellings: Vec<String> = spellings.iter().skip(usize::from(lines)).map(|said| words(said)).collect();
    let sure = spellings.iter().rev().find_map(|said| alone(said));
    sure.or_else(|| spellings.iter().rev().find_map(|said| leading(said).or_else(|| named(said))))
}

/// The formula of a text: its closing line, its last box, or the whole text if it is nothing but a formula.
fn formula(text: &str) -> Option<String> {
    let whole = || Some(text.trim()).filter(|whole| kind::is_delimited(whole) || whole.chars().count() < 5);
    closing_line(text).map(str::to_owned).or_else(|| last_box(text)).or_else(|| whole().map(str::to_owned))
}

/// Whether a formula is a letter with a factorial, a prime or a power: `n!`, `A'`, `x^2`. "C!" is an exclamation.
fn is_signed(formula: &str) -> bool {
    let bare: String = unstyled(formula).chars().filter(|c| !c.is_whitespace() && *c != '$').collect();
    let mut chars = bare.chars();
    let Some(letter) = chars.next().filter(char::is_ascii_alphabetic) else { return false };
    match chars.next() {
        Some('!') => letter.is_lowercase() || formula.contains('$'),
        Some('\'' | '’' | '′' | '^') => true,
        _ => false,
    }
}

/// The letter that is all of a text, in its case; brackets, quotes and a stop around it are dropped. `n!` and `A'` are not letters.
fn lone(text: &str) -> Option<char> {
    let mut bare = unstyled(text);
    bare.retain(|c| !c.is_whitespace() && !"*`\"“”$_~".contains(c));
    let mut bare = bare.trim_end_matches(['.', ',', ';', ':']);
    for (open, close) in [('\'', '\''), ('‘', '’'), ('(', ')'), ('[', ']')] {
        bare = bare.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)).unwrap_or(bare);
    }
    let mut chars = bare.trim_end_matches('.').chars();
    chars.next().filter(|c| c.is_ascii_alphabetic() && chars.next().is_none())
}

/// Whether a response states the letter of the gold answer in another case, where both are letters of a formula: `x` is not `X`.
/// Options are compared without case: capitals to J, and letters in brackets.
pub(super) fn other_letter(gold: &str, response: &str) -> bool {
    let stated = stated(response);
    let said = stated.spellings.iter().rev().find_map(|said| lone(said));
    let bracketed = |text: &str| text.contains(['(', '[', ')']);
    match (lone(&kind::stated(gold)), said) {
        (Some(gold_letter), Some(said)) => {
            gold_letter != said
                && gold_letter.eq_ignore_ascii_case(&said)
                && !('A'..='J').contains(&gold_letter)
                && !bracketed(gold)
                && !stated.spellings.iter().any(|text| bracketed(text))
        }
        _ => false,
    }
}

/// A single letter and no other text.
fn alone(said: &str) -> Option<char> {
    let mut chars = said.chars();
    chars.next().filter(|c| c.is_ascii_alphabetic() && chars.next().is_none()).map(|c| c.to_ascii_uppercase())
}

/// The letter that an answer begins with: `c) 42`, `(c) 42`, `c. Paris`, `c: Paris`, "c is right".
fn leading(said: &str) -> Option<char> {
    let said = said.trim_start_matches(['(', '[']);
    let mut chars = said.chars();
    let letter = chars.next().filter(char::is_ascii_alphabetic)?;
    let rest = chars.as_str();
    let right = [" is right", " is correct", " is the "].iter().any(|right| rest.starts_with(right));
    (right || rest.starts_with([')', ']', '.', ':', ','])).then(|| letter.to_ascii_uppercase())
}

/// The last letter that a text names as an option: "option c", "choose c", "(c)".
fn named(said: &str) -> Option<char> {
    let letter = |at: usize| {
        let mut chars = said[at..].trim_start_matches(['(', '[']).chars();
        let letter = chars.next().filter(char::is_ascii_alphabetic)?;
        chars.next().is_none_or(|c| !c.is_alphanumeric() && c != '\'').then_some((at, letter))
    };
    let names = ["option ", "choice ", "letter ", "choose ", "pick ", "select "];
    let options = names.iter().flat_map(|name| said.match_indices(name).map(|(at, _)| at + name.len()));
    let marked = said.match_indices('(').map(|(at, _)| at).filter(|at| said[*at..].chars().nth(2) == Some(')'));
    options.chain(marked).filter_map(letter).max().map(|(_, letter)| letter.to_ascii_uppercase())
}

/// Whether a gold answer is a letter to choose: `C`, `(C)`, `C)`, `(C) Paris`.
pub(super) fn is_letter(gold: &str) -> bool {
    let unstyled = unstyled(gold);
    let second = unstyled.trim().trim_start_matches('(').chars().nth(1) == Some(')');
    lone(gold).is_some() || second && leading(unstyled.trim()).is_some()
}
