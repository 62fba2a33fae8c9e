//! Identifies holders and waiters for people: `user@host pid`, and the command line of that
//! process.
//!
//! Stores keep both as one text, `user@host pid command`. A client that does not know of commands
//! shows it as it is.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::core::platform;
use crate::masked::masked;

/// How many characters of a command line are recorded.
const LENGTH: usize = 80;

/// Returns `user@host pid`, recorded with every hold where the store's layout has room for it.
pub fn whoami() -> String {
    static WHO: OnceLock<String> = OnceLock::new();
    let who = WHO.get_or_init(platform::user_and_host);
    // Not cached: a forked process has another pid.
    format!("{who} {}", std::process::id())
}

/// What stores record for this process and a command line.
pub(crate) fn signature(command: Option<&str>) -> Arc<str> {
    let command = command.map(|command| one_line(command, LENGTH));
    let command = command.filter(|command| !command.is_empty());
    match command {
        Some(command) => format!("{} {command}", whoami()).into(),
        None => whoami().into(),
    }
}

/// The command line of this process: the program without its directory, and the arguments.
pub(crate) fn command_line() -> String {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let words = words.map(|word| word.to_string_lossy().into_owned());
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}

/// Splits what [`signature`] created into who and the command. Other clients may write anything.
pub(crate) fn take_apart(signature: &str) -> (&str, Option<&str>) {
    let end = || {
        let host = signature.find('@')?;
        let pid = host + signature[host..].find(' ')? + 1;
        let digits = signature[pid..].bytes().take_while(u8::is_ascii_digit).count();
        let end = pid + digits;
        (digits > 0 && signature[end..].starts_with(' ')).then_some(end)
    };
    match end() {
        Some(end) => (&signature[..end], Some(&signature[end + 1..])),
        None => (signature, None),
    }
}

/// One line of at most so many characters, with recognisable secrets masked.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = masked(words.filter(|word| !word.is_empty())).join(" ");
    match line.char_indices().nth(most) {
        None => line,
        Some(_) => line.chars().take(most - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_taken_apart_again() {
        let text = signature(Some("backup --all  /srv\n"));
        assert_eq!(take_apart(&text), (whoami().as_str(), Some("backup --all /srv")));
        for nothing in [None, Some(""), Some(" \t")] {
            assert_eq!(take_apart(&signature(nothing)), (whoami().as_str(), None));
        }
        assert_eq!(take_apart("Ann B@corp@web 7 sh -c x"), ("Ann B@corp@web 7", Some("sh -c x")));
        for other in ["", "ann", "ann@web", "ann@web x y", "ann@web 7x y", "c0ffee:12"] {
            assert_eq!(take_apart(other), (other, None));
        }
    }

    #[test]
    fn a_command_line_is_one_short_line() {
        assert_eq!(one_line("a\u{1b}[2J\tb", LENGTH), "a [2J b");
        let long = one_line(&"é".repeat(200), LENGTH);
        assert_eq!((long.chars().count(), long.ends_with('…')), (LENGTH, true));
        assert_eq!(one_line(&"x".repeat(LENGTH), LENGTH), "x".repeat(LENGTH));
    }
}
