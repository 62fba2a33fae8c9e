//! Requests to release a lock: by whom, and why.

use std::fmt;

use super::broken::LONGEST_REASON;
use crate::who::{one_line, take_apart};

/// A request to release a lock, as its holder receives it:
/// [`Guard::yield_requested`](crate::Guard::yield_requested).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct YieldRequest {
    /// Who asks: `user@host pid`. `None` if the request does not say, as those of other libraries.
    pub by: Option<String>,
    /// The reason.
    pub why: Option<String>,
}

impl YieldRequest {
    /// A request of this client, whose signature is recorded with its locks. A reason is reduced to
    /// one line of limited length, with recognisable secrets masked.
    pub(crate) fn new(who: &str, why: Option<&str>) -> Self {
        let why = why.map(|why| one_line(why, LONGEST_REASON)).filter(|why| !why.is_empty());
        Self { by: Some(take_apart(who).0.to_owned()), why }
    }

    /// The line that a store keeps.
    #[allow(dead_code, reason = "memory: alone keeps no text")]
    pub(crate) fn line(&self) -> String {
        let text = |text: &Option<String>| {
            text.as_deref().unwrap_or_default().replace(char::is_control, " ")
        };
        format!("{}\t{}", text(&self.by), text(&self.why))
    }

    /// Reads a line, whatever is in it: a request is one even if it says nothing.
    #[allow(dead_code, reason = "memory: alone keeps no text")]
    pub(crate) fn parse(line: &str) -> Self {
        let Some((by, why)) = line.split_once('\t') else { return Self::default() };
        // Anyone who may write to the store can write such a line.
        let text = |text: &str| {
            let text = text.replace(char::is_control, " ");
            Some(text).filter(|text| !text.trim().is_empty())
        };
        Self { by: text(by), why: text(why) }
    }
}

impl fmt::Display for YieldRequest {
    /// What follows "asked to give way": ` by ann@hq 4711: the disk is full`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(by) = &self.by {
            write!(f, " by {by}")?;
        }
        match &self.why {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back() {
        let asked = YieldRequest::new("ann@hq 7 lockkeeper yield k", Some("disk\n--token=x full"));
        assert_eq!(asked.to_string(), " by ann@hq 7: disk --token=*** full");
        assert_eq!(YieldRequest::parse(&asked.line()), asked);
        let plain = YieldRequest::new("ann@hq 7", None);
        assert_eq!(YieldRequest::parse(&plain.line()), plain);
        assert_eq!(plain.to_string(), " by ann@hq 7");
    }

    #[test]
    fn whatever_is_in_the_store_is_a_request() {
        for nothing in ["", "1", "to give way", "\t", " \t \t "] {
            assert_eq!(YieldRequest::parse(nothing), YieldRequest::default(), "{nothing:?}");
        }
        let odd = YieldRequest::parse("a\u{1b}[2J\tb\tc");
        assert_eq!((odd.by.as_deref(), odd.why.as_deref()), (Some("a [2J"), Some("b c")));
    }
}
