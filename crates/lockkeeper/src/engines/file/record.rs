//! The contents of a lock file: a head that never changes, counters, and one record per claim.
//!
//! Everything is text, so that `cat` shows it. The counters end where the first record starts, so
//! that an uncontended grant is one write. No part crosses a page boundary: a process that is
//! killed while it writes leaves the old or the new text of each part, not a mixture.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::core::admission;
use crate::engine::{Fence, Mode, Request, YieldRequest};
use crate::error::{Error, Result};
use crate::key::Key;

const COUNTERS: usize = 128;
/// The offset of the records.
pub(super) const HEAD: usize = 1024;
/// The length of a record.
pub(super) const RECORD: usize = 512;
/// The offset of the counters.
pub(super) const COUNTERS_AT: usize = HEAD - COUNTERS;

/// The first line of a lock file.
pub(super) const MAGIC: &str = "lockkeeper lock file 1";

/// A whole lock file.
#[derive(Debug, PartialEq)]
pub(super) struct LockFile {
    pub(super) key: Key,
    /// The number of the next claim.
    pub(super) next: u64,
    /// The last fence granted to anything but a reader.
    pub(super) fence: Fence,
    /// By position in the file; a position may be empty, or contain the record of a dead claim.
    pub(super) records: Vec<Option<Left>>,
}

/// A record as it is in the file: the number of its claim, and the text, which is parsed only if
/// that claim is alive.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Left {
    pub(super) number: u64,
    text: String,
}

/// Something else exists under a lock file's name.
#[derive(Debug, thiserror::Error)]
#[error("it is not a lock file of this version; if nobody uses it, remove it")]
pub(super) struct NotOurs;

/// One claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record {
    /// Its place in the queue, and which bytes of the file it keeps locked as long as it lives.
    pub(super) number: u64,
    pub(super) state: State,
    pub(super) mode: Mode,
    pub(super) token: String,
    pub(super) owner: Option<String>,
    pub(super) fence: Fence,
    pub(super) slots: Vec<u32>,
    pub(super) since: SystemTime,
    pub(super) who: String,
    pub(super) note: Option<String>,
    /// The request to give way.
    pub(super) asked: Option<YieldRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Granted,
    /// An operator broke it.
    Broken,
}

impl LockFile {
    pub(super) fn new(key: &Key) -> Self {
        // Readers carry the last writer's fence, and there may have been writers before this file
        // existed.
        let fence = Fence::default().after(SystemTime::now());
        Self { key: key.clone(), next: 1, fence, records: Vec::new() }
    }

    /// The part before the counters.
    pub(super) fn head(&self) -> Vec<u8> {
        pad(format!("{MAGIC}\nkey {}\n", self.key), COUNTERS_AT)
    }

    /// The counters, always of one length.
    pub(super) fn counters(&self) -> Vec<u8> {
        let text = format!(
            "next {:020}\nfence {:020}\nrecords {:06}\n",
            self.next,
            self.fence.get(),
            self.records.len()
        );
        pad(text, COUNTERS)
    }

    /// Finds a position for a new record, given those in use, and drops the records behind the last
    /// one.
    pub(super) fn make_room(&mut self, used: &[usize]) -> usize {
        let at = (0..).find(|at| !used.contains(at)).expect("some position is free");
        let last = used.iter().copied().fold(at, usize::max);
        self.records.resize(last + 1, None);
        at
    }

    /// How many records the counters announce, to know how much to read.
    pub(super) fn announced(text: &[u8]) -> Option<usize> {
        let counters = std::str::from_utf8(text.get(COUNTERS_AT..HEAD)?).ok()?;
        field(counters, "records")?.parse().ok()
    }

    /// Parses a whole file. Garbage is an error: it is never taken for a free lock.
    pub(super) fn parse(text: &[u8], expected: Option<&Key>) -> Result<Self> {
        Self::read(text, expected).ok_or_else(|| Error::broken("file", "read", NotOurs))
    }

    fn read(text: &[u8], expected: Option<&Key>) -> Option<Self> {
        let head = text.get(..COUNTERS_AT)?.strip_prefix(MAGIC.as_bytes())?;
        let head = std::str::from_utf8(head).ok()?;
        let counters = std::str::from_utf8(text.get(COUNTERS_AT..HEAD)?).ok()?;
        let count: usize = field(counters, "records")?.parse().ok()?;
        let records = (0..count).map(|at| {
            let start = HEAD + at * RECORD;
            // A record that was never written completely belongs to no living claim.
            text.get(start..start + RECORD)
                .and_then(|text| std::str::from_utf8(text).ok())
                .and_then(Left::parse)
        });
        let name = field(head, "key")?;
        Some(Self {
            key: match expected.filter(|key| key.as_str() == name) {
                Some(key) => key.clone(),
                None => Key::new(name).ok()?,
            },
            next: field(counters, "next")?.parse().ok()?,
            fence: Fence::new(field(counters, "fence")?.parse().ok()?),
            records: records.collect(),
        })
    }
}

impl Left {
    fn parse(text: &str) -> Option<Self> {
        Some(Self { number: field(text, "number")?.parse().ok()?, text: text.to_owned() })
    }

    /// Parses the record; `None` if it is malformed.
    pub(super) fn read(&self) -> Option<Record> {
        Record::parse(&self.text)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl Record {
    pub(super) fn new(request: &Request, number: u64) -> Self {
        Self {
            number,
            state: State::Waiting,
            mode: request.mode,
            token: request.token.to_string(),
            owner: request.owner.as_ref().map(|owner| owner.id().to_owned()),
            fence: Fence::default(),
            slots: Vec::new(),
            since: SystemTime::now(),
            who: request.who.to_string(),
            note: request.note.as_deref().map(str::to_owned),
            asked: None,
        }
    }

    /// What the admission rule compares.
    pub(super) fn identity(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.token)
    }

    /// The start of the text of a granted record.
    pub(super) fn granted_text(number: u64) -> String {
        format!("number {number}\nstate granted\n")
    }

    /// The text of a record. `who` and `note` are truncated to what fits.
    pub(super) fn text(&self) -> Result<Vec<u8>> {
        let state = match self.state {
            State::Waiting => "waiting",
            State::Granted => "granted",
            State::Broken => "broken",
        };
        let mode = match self.mode {
            Mode::Permits { take, limit } => format!("permits {take} {limit}"),
            mode => mode.kind().to_owned(),
        };
        let since = self.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut text = String::with_capacity(RECORD);
        let _ = write!(
            text,
            "number {}\nstate {state}\nmode {mode}\ntoken {}\nfence {}\nsince {}\n",
            self.number,
            self.token,
            self.fence.get(),
            since.as_micros(),
        );
        if let Some(owner) = &self.owner {
            let _ = writeln!(text, "owner {owner}");
        }
        if !self.slots.is_empty() {
            let _ = writeln!(text, "slots {}", ranges(&self.slots));
        }
        if text.len() >= RECORD {
            return Err(Error::Config(format!(
                "the permits {} do not fit into a lock file; take fewer at once",
                ranges(&self.slots)
            )));
        }
        let asked = self.asked.as_ref().map(YieldRequest::line);
        for (name, value) in
            [("asked", asked.as_ref()), ("who", Some(&self.who)), ("note", self.note.as_ref())]
        {
            let room = RECORD.saturating_sub(text.len() + name.len() + 3);
            if let Some(value) = value.filter(|_| room > 0) {
                // A request has a tab between its parts.
                let line = value.replace(|c: char| c.is_control() && c != '\t', " ");
                let _ = writeln!(text, "{name} {}", &line[..line.floor_char_boundary(room)]);
            }
        }
        Ok(pad(text, RECORD))
    }

    /// The record as it is in a file.
    pub(super) fn left(&self) -> Result<Left> {
        let text = String::from_utf8(self.text()?).expect("it is made of text");
        Ok(Left { number: self.number, text })
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<_> = field(text, "mode")?.split(' ').collect();
        let mode = match words.as_slice() {
            ["mutex"] => Mode::Mutex,
            ["write"] => Mode::Write,
            ["read"] => Mode::Read,
            ["permits", take, limit] => {
                Mode::Permits { take: take.parse().ok()?, limit: limit.parse().ok()? }
            }
            _ => return None,
        };
        let state = match field(text, "state")? {
            "waiting" => State::Waiting,
            "granted" => State::Granted,
            "broken" => State::Broken,
            _ => return None,
        };
        let since = Duration::from_micros(field(text, "since")?.parse().ok()?);
        Some(Self {
            number: field(text, "number")?.parse().ok()?,
            state,
            mode,
            token: field(text, "token")?.to_owned(),
            owner: field(text, "owner").map(str::to_owned),
            fence: Fence::new(field(text, "fence")?.parse().ok()?),
            slots: field(text, "slots").map_or(Some(Vec::new()), admission::slots_in)?,
            since: SystemTime::UNIX_EPOCH.checked_add(since)?,
            who: field(text, "who").unwrap_or_default().to_owned(),
            note: field(text, "note").map(str::to_owned),
            asked: field(text, "asked").map(YieldRequest::parse),
        })
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split('\n').find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

/// Pads with one long blank line, which is cheap to read.
fn pad(text: String, length: usize) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.resize(length, b' ');
    if let Some(last) = bytes.last_mut() {
        *last = b'\n';
    }
    bytes
}

/// `0-3,7`: ascending numbers, adjacent ones joined.
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |(first, last)| {
        if first == last { format!("{first}") } else { format!("{first}-{last}") }
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::owner::Token;

    fn record(mode: Mode, slots: Vec<u32>, note: Option<&str>) -> Record {
        let (key, ttl) = (Key::new("k").unwrap(), Duration::from_secs(30));
        let mut request = Request::new(key, Token::fresh(), mode, ttl);
        request.note = note.map(Into::into);
        let mut record = Record::new(&request, 7);
        record.since = SystemTime::UNIX_EPOCH + Duration::from_micros(1_794_775_251_093_962);
        record.slots = slots;
        record
    }

    fn whole(file: &LockFile) -> Vec<u8> {
        let mut text = file.head();
        text.extend(file.counters());
        for record in file.records.iter().flatten() {
            text.extend(record.text.as_bytes());
        }
        text
    }

    fn left(record: &Record) -> Option<Left> {
        record.left().ok()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut file = LockFile::new(&Key::new("x".repeat(512)).unwrap());
        let records = [
            record(Mode::Write, vec![], Some("nightly backup")),
            record(Mode::Permits { take: 4, limit: 9 }, vec![0, 1, 2, 7], None),
        ];
        file.records = records.iter().map(left).collect();
        let text = whole(&file);
        assert_eq!(text.len(), HEAD + 2 * RECORD);
        assert_eq!(LockFile::announced(&text), Some(2));
        for expected in [None, Some(&file.key)] {
            assert_eq!(LockFile::parse(&text, expected).unwrap(), file);
        }
        let back: Vec<_> = file.records.iter().flatten().filter_map(Left::read).collect();
        assert_eq!(back, records);
    }

    #[test]
    fn a_long_note_is_cut_and_a_line_break_in_it_forges_nothing() {
        let note = format!("a\nstate granted\n{}", "é".repeat(400));
        let record = record(Mode::Mutex, vec![], Some(&note));
        let text = record.text().unwrap();
        assert_eq!(text.len(), RECORD);
        let back = left(&record).unwrap().read().unwrap();
        assert_eq!(back.state, State::Waiting);
        assert!(back.note.unwrap().starts_with("a state granted é"));
    }

    #[test]
    fn garbage_is_an_error_and_a_torn_record_is_ignored() {
        for garbage in [&b""[..], b"hello", &[0xff; 4096], &[b'\n'; 4096]] {
            assert!(LockFile::parse(garbage, None).is_err());
        }
        let mut file = LockFile::new(&Key::new("k").unwrap());
        file.records = vec![left(&record(Mode::Mutex, vec![], None))];
        let text = whole(&file);
        let torn = LockFile::parse(&text[..HEAD + 100], None).unwrap();
        assert_eq!(torn.records, [None]);
    }

    proptest! {
        #[test]
        fn slots_survive(slots in prop::collection::btree_set(0u32..200, 1..40)) {
            let slots: Vec<u32> = slots.into_iter().collect();
            prop_assert_eq!(admission::slots_in(&ranges(&slots)).unwrap(), slots);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in prop::collection::vec(any::<u8>(), 0..3000)) {
            let _ = LockFile::parse(&text, None);
            let _ = LockFile::announced(&text);
        }
    }
}
