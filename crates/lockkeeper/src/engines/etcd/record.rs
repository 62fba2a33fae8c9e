//! What a place in line says about who stands there. Etcd's own clients leave it empty.
//!
//! Everything is text, so that `etcdctl get` shows it; the note comes last and may hold anything.

use std::time::{Duration, SystemTime};

use crate::engine::{Mode, Request};
use crate::owner::whoami;

const MAGIC: &str = "lockkeeper ";

/// What is written to a place whose holder is asked to give way.
const ASKED: &str = "asked to give way\n";

/// Who stands in line, how and why.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    pub(super) mode: Mode,
    pub(super) who: Option<String>,
    pub(super) note: Option<String>,
    /// By the wall clock of that one's machine.
    pub(super) since: Option<SystemTime>,
    /// Whether it was asked to give way.
    pub(super) asked: bool,
}

impl Record {
    pub(super) fn of(request: &Request) -> Self {
        Self {
            mode: request.mode,
            who: Some(whoami()),
            note: request.note.as_deref().map(str::to_owned),
            since: Some(SystemTime::now()),
            asked: false,
        }
    }

    /// As it is stored.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{MAGIC}{}\n", mode_text(self.mode));
        if let Some(who) = &self.who {
            text += &format!("who {who}\n");
        }
        if let Some(since) = self.since.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok())
        {
            text += &format!("since {}\n", since.as_millis());
        }
        if self.asked {
            text += ASKED;
        }
        if let Some(note) = &self.note {
            text += &format!("note {note}\n");
        }
        text
    }

    /// What is stored: ours, or nothing, which is a mutex of etcd's own clients. `None` for other data.
    pub(super) fn read(stored: &[u8]) -> Option<Self> {
        let mut record =
            Self { mode: Mode::Mutex, who: None, note: None, since: None, asked: false };
        if stored.is_empty() {
            return Some(record);
        }
        let text = std::str::from_utf8(stored).ok()?;
        let (mode, mut rest) = text.strip_prefix(MAGIC)?.split_once('\n')?;
        record.mode = read_mode(mode)?;
        while let Some((word, _)) = rest.split_once(' ') {
            if word == "note" {
                let note = &rest[word.len() + 1..];
                record.note = Some(note.strip_suffix('\n').unwrap_or(note).to_owned());
                break;
            }
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            let value = line.get(word.len() + 1..).unwrap_or_default();
            match word {
                "who" => record.who = Some(value.to_owned()),
                "since" => {
                    let since = value.parse().ok().map(Duration::from_millis);
                    record.since = since.and_then(|s| SystemTime::UNIX_EPOCH.checked_add(s));
                }
                "asked" => record.asked = true,
                // A later version may say more.
                _ => {}
            }
            rest = after;
        }
        Some(record)
    }
}

fn mode_text(mode: Mode) -> String {
    match mode {
        Mode::Permits { take, limit } => format!("permits {take} of {limit}"),
        other => other.kind().to_owned(),
    }
}

fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "mutex" => Some(Mode::Mutex),
        "write" => Some(Mode::Write),
        "read" => Some(Mode::Read),
        other => {
            let (take, limit) = other.strip_prefix("permits ")?.split_once(" of ")?;
            Some(Mode::Permits { take: take.parse().ok()?, limit: limit.parse().ok()? })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_others_leave_empty_is_a_mutex_and_other_data_is_not() {
        assert_eq!(Record::read(b"").map(|record| record.mode), Some(Mode::Mutex));
        for data in [&b"hello"[..], b"\xff\xfe", b"lockkeeper", b"lockkeeper tower\nwho me\n"] {
            assert_eq!(Record::read(data), None);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            mode in prop_oneof![
                Just(Mode::Mutex), Just(Mode::Write), Just(Mode::Read),
                (1u32.., 1u32..).prop_map(|(take, limit)| Mode::Permits { take, limit }),
            ],
            who in prop::option::of("[a-z]{1,9}@[a-z]{1,9} [0-9]{1,6}"),
            note in prop::option::of(any::<String>()),
            since in prop::option::of(0u64..4_000_000_000_000),
            asked in any::<bool>(),
        ) {
            let since = since.map(|ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
            let record = Record { mode, who, note, since, asked };
            prop_assert_eq!(Record::read(record.text().as_bytes()), Some(record));
        }

        #[test]
        fn garbage_is_read_without_a_panic(bytes in any::<Vec<u8>>(), tail in any::<String>()) {
            Record::read(&bytes);
            Record::read(format!("lockkeeper mutex\n{tail}").as_bytes());
        }
    }
}
