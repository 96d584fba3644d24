//! The files of the page, which are part of this program, each with its path and its type.

/// A file that a browser may ask for.
pub(super) struct File {
    pub(super) path: &'static str,
    pub(super) content_type: &'static str,
    pub(super) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// All files of the page.
pub(super) const FILES: &[File] = &[
    File { path: "/", content_type: HTML, text: include_str!("index.html") },
    File { path: "/dashboard.css", content_type: CSS, text: include_str!("dashboard.css") },
    File { path: "/dashboard.js", content_type: SCRIPT, text: include_str!("dashboard.js") },
    File { path: "/tables.js", content_type: SCRIPT, text: include_str!("tables.js") },
    File { path: "/history.js", content_type: SCRIPT, text: include_str!("history.js") },
    File { path: "/charts.js", content_type: SCRIPT, text: include_str!("charts.js") },
    File { path: "/parts.js", content_type: SCRIPT, text: include_str!("parts.js") },
    File { path: "/text.js", content_type: SCRIPT, text: include_str!("text.js") },
    File { path: "/icon.svg", content_type: SVG, text: include_str!("icon.svg") },
];
