//! The result as one page for a browser, which needs nothing else: no server, no other file.

use serde::Serialize;

use super::figures::Report;

mod timeline;

pub(super) use timeline::Timeline;

/// The page.
pub(super) fn page(report: &Report) -> String {
    #[derive(Serialize)]
    struct Data<'a> {
        #[serde(flatten)]
        report: &'a Report,
        created: String,
    }
    let now = std::time::SystemTime::now();
    let created = humantime::format_rfc3339_seconds(now).to_string();
    let data = serde_json::to_string(&Data { report, created }).expect("plain fields serialize");
    // A key may contain `</script>`. The data comes last: it may also contain a placeholder.
    include_str!("page.html")
        .replace("{style}", include_str!("style.css"))
        .replace("{script}", include_str!("page.js"))
        .replace("{data}", &data.replace('<', "\\u003c"))
}
