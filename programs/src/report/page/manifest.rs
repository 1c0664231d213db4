//! Provenance of the records: files, and the unmodified manifest. Knows JSON, not the meaning of its fields.

use std::fmt::Write;

use super::escape::text;
use crate::report::folder::Folder;

pub(super) fn html(folder: &Folder) -> String {
    let mut out = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Files of rows of {}\"><table><caption>Files of rows, and the commands that wrote them</caption><thead><tr><th scope=\"col\">experiment</th>\
         <th scope=\"col\">checkpoint</th><th scope=\"col\" class=\"num\">rows</th><th scope=\"col\">command</th></tr></thead><tbody>\n",
        text(&folder.name)
    );
    for (experiment, checkpoint, rows) in folder.files() {
        let name = if checkpoint.is_empty() { experiment.to_owned() } else { format!("{experiment}-{checkpoint}") };
        let command = folder.manifest.as_ref().and_then(|m| m.get(&name)?.get("command")?.as_str()).unwrap_or("");
        let command = if command.is_empty() { String::new() } else { format!("<code>{}</code>", text(command)) };
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"num\">{rows}</td><td>{command}</td></tr>",
            text(experiment),
            text(checkpoint)
        );
    }
    out += "</tbody></table></div>\n";
    for why in &folder.unreadable {
        let _ = writeln!(out, "<p class=\"note\">Left out: {}</p>", text(why));
    }
    match &folder.manifest {
        Some(manifest) => {
            let pretty = serde_json::to_string_pretty(manifest).unwrap_or_default();
            let _ = writeln!(out, "<details><summary>manifest.json</summary><pre>{}</pre></details>", text(&pretty));
        }
        None => out += "<p class=\"note\">This folder has no manifest.json.</p>\n",
    }
    out
}
