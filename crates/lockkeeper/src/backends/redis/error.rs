//! Sorts the errors of the client crate into those that a caller branches on.

use redis::{ErrorKind, RedisError};

use crate::error::Error;

/// What this engine is called.
pub(super) const NAME: &str = "redis";

/// An error with what was being done.
pub(super) fn sort(doing: impl Into<String>, error: RedisError) -> Error {
    match may_pass(&error) {
        true => Error::unreachable(NAME, doing, error),
        false if error.kind() == ErrorKind::AuthenticationFailed => {
            Error::broken(NAME, doing, "the server refuses this user or password, or wants none")
        }
        false if error.code() == Some("NOAUTH") => Error::broken(
            NAME,
            doing,
            "the server wants a password, and was given none; it may be in the URL, or be named there with password_file=PATH or password_env=NAME",
        ),
        false => Error::broken(NAME, doing, error),
    }
}

/// An answer that none of our scripts gives.
pub(super) fn garbage(doing: impl Into<String>, answer: &redis::Value) -> Error {
    let kind = match answer {
        redis::Value::Nil => "nothing",
        redis::Value::Int(_) => "a number",
        redis::Value::Array(_) => "a list",
        _ => "something else",
    };
    Error::broken(NAME, doing, format!("the server answered with {kind} that makes no sense here"))
}

/// Whether the connection is of no more use: broken, silent, or to a server that lost its role.
pub(super) fn is_fatal(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "LOADING" | "NOAUTH"))
}

fn may_pass(error: &RedisError) -> bool {
    const PASSING: [&str; 10] = [
        "LOADING",
        "MASTERDOWN",
        "READONLY",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "BUSY",
        "MOVED",
        // The server is full, or cannot write to its disk, until somebody makes room.
        "OOM",
        "MISCONF",
    ];
    error.is_io_error() || error.code().is_some_and(|code| PASSING.contains(&code))
}
