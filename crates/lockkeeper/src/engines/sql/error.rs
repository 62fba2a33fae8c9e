//! Sorts the errors of the client crate.

use std::error::Error as StdError;

use sqlx::error::DatabaseError;

use crate::error::Error;

/// What a kind of server means by its errors.
pub(crate) trait ServerErrors {
    /// The engine's name.
    const ENGINE: &'static str;

    /// What the server said.
    fn words(error: &dyn DatabaseError) -> String {
        error.to_string()
    }

    /// What to do about an error that does not say it by itself.
    fn advice(error: &dyn DatabaseError) -> Option<&'static str>;

    /// What it means that the client crate cannot connect in the way it is set up.
    fn misconfigured() -> Option<&'static str> {
        None
    }

    /// Whether the same request may succeed later.
    fn may_pass(error: &dyn DatabaseError) -> bool;

    /// Whether somebody else's transaction was in the way for too long. Nothing happened then.
    fn was_in_the_way(error: &dyn DatabaseError) -> bool;
}

/// Sorts an error of the client crate.
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
        None => match (&error, C::misconfigured()) {
            (sqlx::Error::Configuration(_), Some(meaning)) => meaning.into(),
            _ => Box::new(error),
        },
    };
    Error::Engine { engine: C::ENGINE, doing: doing.to_owned(), retryable, source }
}

/// Whether the server understood and said no, for good.
pub(super) fn is_refusal<C: ServerErrors>(answer: &sqlx::Result<impl Sized>) -> bool {
    let error = answer.as_ref().err().and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| !C::may_pass(error))
}
