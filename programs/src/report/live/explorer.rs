//! The page of `probe explore`: a report's laboratory, computed by this program instead of `decoder.js`.

use crate::report::figures::fonts::font_face_css;
use crate::report::page::{self, escape::text};

const SCRIPTS: [&str; 2] = [include_str!("draw.js"), include_str!("explore.js")];

/// The page for a model of this name. A browser runs only this script and connects only to this program.
pub(crate) fn html(model: &str) -> String {
    let script = format!("(() => {{\n{}}})();\n", SCRIPTS.concat());
    let style = format!("{}{}{}", font_face_css(), page::STYLE, super::STYLE);
    let policy = page::policy(&script, "connect-src 'self'; ");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         {policy}\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>Switchyard: explore</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<header><p class=\"brand\">Switchyard</p></header>\n<main id=\"main\">\n\
         <section class=\"lab\" aria-labelledby=\"title\"><h1 id=\"title\">Explore {}</h1>\n\
         <p>The model is loaded on this machine; nothing leaves it. Give it a prompt, change what it computes, and compare.</p>\n\
         <div id=\"explore\"><noscript><p>This page needs JavaScript.</p></noscript></div></section>\n</main>\n\
         <script>{script}</script>\n</body>\n</html>\n",
        text(model)
    )
}
