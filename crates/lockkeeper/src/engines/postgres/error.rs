//! The meaning of the server's errors.

use std::borrow::Cow;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnection;

use super::connect::NAME;
use crate::engines::sql::ServerErrors;

impl ServerErrors for PgConnection {
    const ENGINE: &'static str = NAME;
    const PROTOCOL: &'static str = "PostgreSQL";

    /// Without the location in the server's source, which it also sends.
    fn words(error: &dyn DatabaseError) -> String {
        let code = error.code().unwrap_or_default();
        format!("{} ({code})", error.message())
    }

    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        match &*error.code()? {
            // A statement that we prepared does not exist, or another client's does.
            "26000" | "42P05" => Some(
                "a pooler seems to lend connections by transaction; say so by pooler=transaction in the URL, or \
                 connect past it, to the server itself",
            ),
            // Only a pooler refuses unsupported startup parameters.
            "08P01" => Some(
                "if that is a pooler: leave the option schema out and give the user its search path by \
                 ALTER ROLE … SET search_path, or also add ignore_startup_parameters = options to the \
                 pooler's settings; or connect past it, to the server itself",
            ),
            "28000" | "28P01" => Some(
                "the user is named by the URL; the password by the URL, PGPASSWORD, ~/.pgpass or the \
                 option password_file",
            ),
            "3F000" => Some(
                "the search path of the user names no schema that exists; name one by the option schema, or \
                 give the user its search path by ALTER ROLE … SET search_path",
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

    /// Connections lost or refused for now, shutdowns, deadlocks, timeouts of locks and transactions.
    fn may_pass(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        matches!(code.get(..2), Some("08" | "40" | "53" | "57" | "58"))
            || matches!(&*code, "55P03" | "25P03" | "25P04")
    }
}

/// Whether a function was called that does not exist.
pub(super) fn is_unknown_function(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("42883")
}

/// Whether a transaction was rolled back because the server's notification queue had no room for
/// its notifications.
pub(super) fn is_queue_full(error: &sqlx::Error) -> bool {
    code(error).as_deref() == Some("54000")
}

fn code(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(DatabaseError::code)
}
