//! The claims with their verdicts. Knows how a verdict looks.

use std::fmt::Write;

use super::escape::{prose, text};
use crate::report::claims_list::{count, counted, in_paper};
use crate::report::verdicts::{READING, TestedClaim, Verdict};

pub(super) fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "yes",
        Verdict::NotReproduced => "no",
        Verdict::Undecided => "open",
        Verdict::NotTestable => "na",
    }
}

/// A mark next to the word, so that colour is not the only cue.
fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "✓",
        Verdict::NotReproduced => "✗",
        Verdict::Undecided => "~",
        Verdict::NotTestable => "∅",
    }
}

/// A bar of all verdicts and, folded below, every claim.
pub(super) fn html(claims: &[TestedClaim<'_>], id: &str) -> String {
    let mut bar = String::new();
    for v in Verdict::ALL.into_iter().filter(|v| count(claims, *v) > 0) {
        let _ = write!(
            bar,
            "<li class=\"{}\" style=\"flex-grow:{1}\"><b>{1}</b> <span>{2}</span></li>",
            class(v),
            count(claims, v),
            v.words()
        );
    }
    format!(
        "<section class=\"verdicts\"><h2>The paper’s claims, tested on these models</h2>\n<p class=\"note\">{}</p>\n<ul aria-label=\"Verdicts\">{bar}</ul>\n\
         <details class=\"part\" id=\"{id}-claims\"><summary>Every claim and its test</summary>\n{}</details></section>\n",
        text(&counted(claims)),
        list(claims, id)
    )
}

/// All claims, grouped by text.
fn list(claims: &[TestedClaim<'_>], id: &str) -> String {
    let mut out = String::from("<div class=\"filter\" role=\"group\" aria-label=\"Show claims\" hidden>");
    for v in Verdict::ALL {
        let _ = write!(
            out,
            "<label><input type=\"checkbox\" checked value=\"{}\"> {} ({})</label>",
            class(v),
            v.words(),
            count(claims, v)
        );
    }
    out += "</div>\n<ul class=\"claims\">\n";
    for tested in claims {
        let v = tested.verdict;
        let on = if tested.on.is_empty() {
            String::new()
        } else {
            format!(" <span class=\"on\">{}</span>", text(&tested.on))
        };
        let tests: String =
            tested.tests.iter().chain(&tested.calibrated).map(|t| format!("<li>{}</li>", prose(t))).collect();
        let notes: String = [("", &tested.claim.note), ("Not tested: ", &tested.claim.untested)]
            .iter()
            .filter(|(_, note)| !note.is_empty())
            .map(|(what, note)| format!("<p class=\"note\">{what}{}</p>", prose(note)))
            .collect();
        let _ = writeln!(
            out,
            "<li class=\"claim {0}\" data-verdict=\"{0}\"><details name=\"{id}-claims\"><summary><span class=\"verdict\">{1} {2}</span>{on} \
             <span>{3}</span></summary><p class=\"note\">Rests on {4}; the paper’s own numbers: {5}.</p>{notes}<ul>{tests}</ul></details></li>",
            class(v),
            mark(v),
            text(&tested.describe()),
            prose(&tested.claim.text),
            text(&tested.claim.rests_on.join(", ")),
            in_paper(tested),
        );
    }
    out + &format!("</ul>\n<p class=\"note\">{}</p>\n", prose(READING))
}
