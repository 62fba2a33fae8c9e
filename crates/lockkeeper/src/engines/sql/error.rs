//! Maps the errors of the client crate to those of this crate.

use std::error::Error as StdError;

use sqlx::error::DatabaseError;

use crate::engines::probe::Garbled;
use crate::error::Error;

/// The meaning of a server's errors.
pub(crate) trait ServerErrors {
    /// The engine's name.
    const ENGINE: &'static str;

    /// The name of its protocol, for people.
    const PROTOCOL: &'static str;

    /// The server's message.
    fn words(error: &dyn DatabaseError) -> String {
        error.to_string()
    }

    /// Advice for an error whose message gives none.
    fn advice(error: &dyn DatabaseError) -> Option<&'static str>;

    /// The meaning of the client crate's refusal to connect with its settings.
    fn misconfigured() -> Option<&'static str> {
        None
    }

    /// Whether the same request may succeed later.
    fn may_pass(error: &dyn DatabaseError) -> bool;

    /// Whether a foreign transaction blocked the request for too long. It had no effect then.
    fn was_in_the_way(error: &dyn DatabaseError) -> bool;
}

/// Maps an error of the client crate.
pub(crate) fn failed<C: ServerErrors>(error: sqlx::Error, doing: &str) -> Error {
    let retryable = match &error {
        sqlx::Error::Database(error) => C::may_pass(error.as_ref()),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => true,
        _ => false,
    };
    let source: Box<dyn StdError + Send + Sync> = match error.as_database_error() {
        Some(refusal) => match C::advice(refusal) {
            Some(advice) => format!("{}; {advice}", C::words(refusal)).into(),
            None => C::words(refusal).into(),
        },
        None => match (error, C::misconfigured()) {
            (sqlx::Error::Configuration(_), Some(meaning)) => meaning.into(),
            (sqlx::Error::Io(error), _) => Box::new(error),
            (sqlx::Error::Protocol(said), _) => Box::new(Garbled::new(C::PROTOCOL, said)),
            (error, _) => Box::new(error),
        },
    };
    Error::Engine { engine: C::ENGINE, doing: doing.to_owned(), retryable, source }
}

/// Whether the server understood the request and refused it permanently.
pub(super) fn is_refusal<C: ServerErrors>(answer: &sqlx::Result<impl Sized>) -> bool {
    let error = answer.as_ref().err().and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| !C::may_pass(error))
}
