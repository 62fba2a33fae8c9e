//! What a node says of its holder: who, why, and for a semaphore how many.
//!
//! Others who share the lock write their address or nothing, which is shown as it is.

use std::time::{Duration, SystemTime};

use zookeeper_client as zk;

use crate::engine::{Entry, Fence, Mode, Request};
use crate::owner::whoami;

/// The data of a node whose holder is asked to give way, as Curator writes it.
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

const MARK: &str = "lockkeeper";

/// The word of one who came in later than its node was made.
const LATER: &str = "later";

/// The data of a node whose claim had to wait, once it is let in: it counts from now, not from its birth.
pub(super) fn write_later(request: &Request) -> Vec<u8> {
    let text = String::from_utf8(write(request, None)).expect("a record is text");
    text.replacen('\n', &format!(" {LATER}\n"), 1).into_bytes()
}

/// The data of a node. A lease of a semaphore carries the fence of the place in line before it.
pub(super) fn write(request: &Request, fence: Option<Fence>) -> Vec<u8> {
    let (take, limit) = match request.mode {
        Mode::Permits { take, limit } => (take, limit),
        _ => (0, 0),
    };
    let fence = fence.map_or(0, Fence::get);
    let (identity, who) = (request.identity(), whoami());
    let note = request.note.as_deref().unwrap_or_default();
    format!("{MARK} {take} {limit} {fence}\n{identity}\n{who}\n{note}").into_bytes()
}

/// What is known of a node, by its data and its birth, or the moment when it was let in.
pub(super) fn read(name: &str, mode: Mode, data: &[u8], stat: &zk::Stat) -> Entry {
    let at = |ms: i64| SystemTime::UNIX_EPOCH + Duration::from_millis(ms.try_into().unwrap_or(0));
    let mut entry = Entry {
        identity: name.to_owned(),
        mode,
        who: None,
        note: None,
        since: Some(at(stat.ctime)),
        left: None,
        fence: Some(Fence::new(stat.czxid.try_into().unwrap_or(0))),
        slots: Vec::new(),
    };
    let text = std::str::from_utf8(data).unwrap_or_default();
    let mut lines = text.splitn(4, '\n');
    let mut head = lines.next().unwrap_or_default().split(' ');
    if head.next() != Some(MARK) {
        let shown = !text.is_empty() && data != REVOKE && text.len() <= 256;
        entry.who = shown.then(|| text.escape_debug().to_string());
        return entry;
    }
    let mut number = || head.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    let (take, limit, fence) = (number(), number(), number());
    if head.next() == Some(LATER) {
        entry.since = Some(at(stat.mtime));
    }
    if matches!(mode, Mode::Permits { .. }) && limit > 0 {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        entry.mode = Mode::Permits { take: small(take), limit: small(limit) };
    }
    if fence > 0 {
        entry.fence = Some(Fence::new(fence));
    }
    let mut text = || lines.next().filter(|line| !line.is_empty()).map(str::to_owned);
    entry.identity = text().unwrap_or(entry.identity);
    entry.who = text();
    entry.note = text();
    entry
}

/// The data of a read-write lock's directory: the fence of its last writer, for readers to carry.
pub(super) fn write_fence(fence: Fence) -> Vec<u8> {
    format!("{MARK} fence {fence}").into_bytes()
}

/// The fence of the last writer; `None` if the directory holds something else.
pub(super) fn read_fence(data: &[u8]) -> Option<Fence> {
    if data.is_empty() {
        return Some(Fence::new(0));
    }
    let number = std::str::from_utf8(data).ok()?.strip_prefix("lockkeeper fence ")?;
    number.parse().ok().map(Fence::new)
}
