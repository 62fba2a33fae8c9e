//! What the server's errors mean.

use std::borrow::Cow;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;

use super::connect::NAME;
use crate::engines::sql::ServerErrors;

impl ServerErrors for PgConnection {
    const ENGINE: &'static str = NAME;

    /// Without the line of the server's own source, which it also tells.
    fn words(error: &dyn DatabaseError) -> String {
        let code = error.code().unwrap_or_default();
        format!("{} ({code})", error.message())
    }

    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        match &*error.code()? {
            // A statement that we prepared is not there, or somebody else's is.
            "26000" | "42P05" => Some(
                "a pooler seems to lend connections by transaction; say so by pooler=transaction in the URL, or \
                 connect past it, to the server itself",
            ),
            // Nothing but a pooler knows startup parameters that it does not support.
            "08P01" => Some(
                "if that is a pooler: leave the option schema out and give the user its search path by \
                 ALTER ROLE … SET search_path, or also add ignore_startup_parameters = options to the \
                 pooler's settings; or connect past it, to the server itself",
            ),
            "28000" | "28P01" => Some(
                "the user is named by the URL; the password by the URL, PGPASSWORD, ~/.pgpass or the \
                 option password_file",
            ),
            "42501" => {
                Some("lockkeeper explain --schema postgres: shows what the rights are needed for")
            }
            _ => None,
        }
    }

    fn was_in_the_way(error: &dyn DatabaseError) -> bool {
        error.code().is_some_and(|code| code == "55P03")
    }

    /// Connections lost or refused for now, shutdowns, deadlocks, locks not had in time.
    fn may_pass(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        matches!(code.get(..2), Some("08" | "40" | "53" | "57" | "58"))
            || matches!(&*code, "55P03" | "25P03")
    }
}

/// Whether a function was called that does not exist.
pub(super) fn is_unknown_function(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("42883")
}

/// Whether a transaction was undone because the server's queue of notifications has no room for what it
/// would have told.
pub(super) fn is_queue_full(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("54000")
}

fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(DatabaseError::code)
}
