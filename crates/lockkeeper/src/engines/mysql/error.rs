//! The meaning of the server's errors.

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};

use super::connect::NAME;
use crate::engines::sql::ServerErrors;

impl ServerErrors for MySqlConnection {
    const ENGINE: &'static str = NAME;
    const PROTOCOL: &'static str = "MariaDB and MySQL";

    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        match number(error)? {
            1044 | 1142 | 1370 => {
                Some("lockkeeper explain --schema mysql: shows what the rights are needed for")
            }
            1045 | 1698 => Some(
                "the user is named by the URL; the password by the URL, MYSQL_PWD or the option \
                 password_file",
            ),
            1665 => Some("set binlog_format to MIXED or ROW"),
            _ => None,
        }
    }

    /// The one misconfiguration that the client crate detects only when it connects.
    fn misconfigured() -> Option<&'static str> {
        Some(
            "the server wants the password of this user over an encrypted connection only \
             (caching_sha2_password); let it offer TLS and add ssl-mode=REQUIRED to the URL, or name a user \
             that is IDENTIFIED WITH mysql_native_password",
        )
    }

    fn was_in_the_way(error: &dyn DatabaseError) -> bool {
        number(error) == Some(1205)
    }

    /// Deadlocks, row lock timeouts, killed connections, servers that start, stop or are full,
    /// members of a cluster without a quorum, commits that a group undid.
    fn may_pass(error: &dyn DatabaseError) -> bool {
        let passing = [
            1040, 1047, 1053, 1077, 1079, 1159, 1161, 1180, 1203, 1205, 1213, 1317, 1927, 3100,
            3101, 3168, 4031,
        ];
        number(error).is_some_and(|number| passing.contains(&number))
            || error.code().is_some_and(|code| code == "40001" || code.starts_with("08"))
    }
}

/// Whether a procedure that was to be created exists, or one that was to be called or dropped does
/// not.
pub(super) fn is_somebody_elses_doing(error: &sqlx::Error) -> bool {
    let number = error.as_database_error().and_then(number);
    matches!(number, Some(1304 | 1305))
}

/// Whether MySQL cannot list its connections, because one of them runs a statement with four-byte
/// characters, for instance an emoji, which that list cannot represent.
pub(super) fn is_unreadable(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(number) == Some(3854)
}

/// Whether a statement was rolled back in favour of another one.
pub(super) fn is_deadlock(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(number) == Some(1213)
}

/// Whether a table in memory has no room for another row.
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(number) == Some(1114)
}

/// Whether this user may not read a table, or lacks a privilege of the whole server.
pub(super) fn is_denied(error: &sqlx::Error) -> bool {
    let number = error.as_database_error().and_then(number);
    matches!(number, Some(1142 | 1227))
}

/// The server's error number.
pub(super) fn number(error: &dyn DatabaseError) -> Option<u16> {
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::sql::failed;

    /// The client crate's message about a password that it may not send in the clear.
    #[test]
    fn a_password_that_needs_encryption_is_reported() {
        let said = "RSA auth backend disabled; enable feature `mysql-rsa` or use TLS.";
        let error = sqlx::Error::Configuration(said.into());
        let error = failed::<MySqlConnection>(error, "connect");
        let told = error.to_string();
        assert!(told.contains("caching_sha2_password") && told.contains("ssl-mode"), "{told}");
        assert!(!told.contains("feature") && !error.is_retryable(), "{told}");
    }
}
