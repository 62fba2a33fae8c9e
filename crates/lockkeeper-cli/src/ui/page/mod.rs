//! The page's own files. They are part of the program, so there is no directory to escape from.

/// The kind and the content of a file.
pub(crate) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_str!("index.html")),
        "/style.css" => ("text/css; charset=utf-8", include_str!("style.css")),
        "/icon.svg" => ("image/svg+xml", include_str!("icon.svg")),
        "/app.js" => (SCRIPT, include_str!("app.js")),
        "/dom.js" => (SCRIPT, include_str!("dom.js")),
        "/live.js" => (SCRIPT, include_str!("live.js")),
        "/table.js" => (SCRIPT, include_str!("table.js")),
        "/detail.js" => (SCRIPT, include_str!("detail.js")),
        "/timeline.js" => (SCRIPT, include_str!("timeline.js")),
        "/blocking.js" => (SCRIPT, include_str!("blocking.js")),
        "/actions.js" => (SCRIPT, include_str!("actions.js")),
        _ => return None,
    })
}
