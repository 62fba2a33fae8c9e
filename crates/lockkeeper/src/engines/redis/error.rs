//! Maps the errors of the client crate to those of this crate.

use std::fmt;

use redis::{ErrorKind, RedisError};

use crate::engines::probe::Garbled;
use crate::error::Error;

/// The name of this engine.
pub(in crate::engines) const NAME: &str = "redis";

/// An error with the operation that failed.
pub(in crate::engines) fn sort(doing: impl Into<String>, error: RedisError) -> Error {
    match may_pass(&error) {
        true => Error::unreachable(NAME, doing, Told(error)),
        false if error.kind() == ErrorKind::AuthenticationFailed => {
            Error::broken(NAME, doing, "the server refuses this user or password, or wants none")
        }
        false if code(&error) == Some("NOAUTH") => Error::broken(
            NAME,
            doing,
            "the server wants a password, and was given none; name it in the URL with password_file=PATH or password_env=NAME, or for the command with --password-file or LOCKKEEPER_PASSWORD",
        ),
        false if error.kind() == ErrorKind::Parse => {
            Error::broken(NAME, doing, Garbled::new("Redis", error))
        }
        false => Error::broken(NAME, doing, Told(error)),
    }
}

/// What a server or a connection said, without the hash of the script that ran into it.
#[derive(Debug)]
pub(super) struct Told(pub(super) RedisError);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let script = text.rsplit_once(" script: ");
        match script.filter(|(_, rest)| rest.contains(", on @user_script")) {
            Some((said, _)) => f.write_str(said.trim_end_matches([',', '.'])),
            None => f.write_str(&text),
        }
    }
}

impl std::error::Error for Told {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// An answer that none of our scripts returns.
pub(in crate::engines) fn garbage(doing: impl Into<String>, answer: &redis::Value) -> Error {
    let kind = match answer {
        redis::Value::Nil => "nothing",
        redis::Value::Int(_) => "a number",
        redis::Value::Array(_) => "a list",
        _ => "something else",
    };
    Error::broken(NAME, doing, format!("the server answered with {kind} that makes no sense here"))
}

/// Whether the connection is unusable: broken, silent, or to a server that lost its role.
pub(in crate::engines) fn is_fatal(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(code(error), Some("READONLY" | "MASTERDOWN" | "LOADING" | "NOAUTH"))
}

/// The error code of the server.
///
/// Before Redis 7, the error of a command inside a script was wrapped in the text of another one:
/// `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -READONLY You can't
/// …`.
pub(in crate::engines) fn code(error: &RedisError) -> Option<&str> {
    let wrapped = || {
        let (_, inner) = error.detail()?.split_once("@user_script: ")?;
        let (_, inner) = inner.split_once(": -")?;
        inner.split_whitespace().next()
    };
    match error.code()? {
        "ERR" => wrapped().or(Some("ERR")),
        code => Some(code),
    }
}

/// Whether a script met a key that it was not given, and that has left with a moving slot. There is no code
/// for that.
pub(super) fn met_a_moved_key(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.contains("access a non local key"))
}

fn may_pass(error: &RedisError) -> bool {
    const PASSING: [&str; 11] = [
        "ASK",
        "LOADING",
        "MASTERDOWN",
        "READONLY",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "BUSY",
        "MOVED",
        // The server is out of memory, or cannot write to its disk, until that is fixed.
        "OOM",
        "MISCONF",
    ];
    error.is_io_error()
        || met_a_moved_key(error)
        || code(error).is_some_and(|code| PASSING.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> RedisError {
        let error = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        match error {
            Ok(redis::Value::ServerError(error)) => error.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_inside_a_script_is_sorted_by_its_own_code() {
        // As Redis 7 writes it, and as 6 does.
        for text in [
            "READONLY You can't write against a read only replica. script: 1f, on @user_script:1.",
            "ERR Error running script (call to f_1f): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(code(&said(text)), Some("READONLY"), "{text}");
            assert!(is_fatal(&said(text)), "{text}");
        }
        assert_eq!(code(&said("ERR unknown command 'X'")), Some("ERR"));
    }

    #[test]
    fn no_message_names_a_script() {
        for text in [
            "NOPERM ACL failure in script: No permissions to access a key script: 1f, on @user_script:1.",
            "NOPERM ACL failure in script: No permissions to access a key, script: 1f, on @user_script:1.",
        ] {
            let told = Told(said(text)).to_string();
            assert!(
                told.ends_with("ACL failure in script: No permissions to access a key"),
                "{told}"
            );
        }
    }
}
