//! Who waits for a named lock, as far as the server shows it.
//!
//! Waiters are recorded in no table of ours: a comment in the statement that waits says for which
//! key, and who it is. MySQL lists waiting connections in `performance_schema`, MariaDB in its
//! process list.
//!
//! Easy to get wrong: a user with few rights gets a shorter list instead of an error. The statement
//! here returns no row at all if its list may be incomplete.

use sha2::{Digest, Sha256};
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlRow};

use super::error::is_denied;
use super::lease::hexadecimal;
use crate::engine::{Entry, Mode};
use crate::engines::sql::{Ask, Seen, Session, since};
use crate::key::Key;
use crate::who::take_apart;

/// The connections that wait for named locks of this database, in order; one row of nulls if there
/// are none. Reading the statistics of InnoDB needs the privilege that shows other users'
/// connections.
const WAITING: &str = "
    SELECT CAST(w.number AS SIGNED) AS number, w.statement, CAST(w.age_us AS SIGNED) AS age_us FROM
    /*M!
      (SELECT page_size FROM information_schema.innodb_cmp LIMIT 1) AS complete LEFT JOIN (
        SELECT id AS number, info AS statement, time_ms * 1000 AS age_us
        FROM information_schema.processlist WHERE state = 'User lock' AND db = DATABASE()
      ) AS w ON TRUE
    */ /*!80000
      (SELECT name FROM performance_schema.setup_instruments
        WHERE name = 'wait/lock/metadata/sql/mdl' AND enabled = 'YES'
      ) AS complete LEFT JOIN (
        SELECT t.processlist_id AS number, t.processlist_info AS statement,
          s.timer_wait DIV 1000000 AS age_us
        FROM performance_schema.metadata_locks l
        JOIN performance_schema.threads t ON t.thread_id = l.owner_thread_id
        LEFT JOIN performance_schema.events_statements_current s
          ON s.thread_id = t.thread_id AND s.nesting_event_id IS NULL
        WHERE l.object_type = 'USER LEVEL LOCK' AND l.lock_status = 'PENDING'
          AND t.processlist_db = DATABASE()
      ) AS w ON TRUE
    */
    ORDER BY age_us DESC, number";

/// Waiters, in order.
#[derive(Debug)]
pub(super) struct Waiters(Vec<Waiter>);

#[derive(Debug)]
struct Waiter {
    key: String,
    who: String,
    number: i64,
    age: Option<i64>,
}

/// The statement that waits for a named lock.
pub(super) fn waiting_statement(ask: &Ask) -> String {
    format!(
        "{COMMENT}{} {} */ DO GET_LOCK(CONCAT('lockkeeper:',
           LEFT(SHA2(CONCAT(DATABASE(), x'00', CAST(x'{}' AS BINARY)), 256), 48)), 3600)",
        short(&ask.key),
        printable(take_apart(&ask.who).0),
        hexadecimal(&ask.key),
    )
}

/// Reads the waiters, or returns why this user may not see all of them.
pub(super) async fn waiters(
    wire: &mut MySqlConnection,
) -> sqlx::Result<Result<Waiters, &'static str>> {
    let rows = match sqlx::query(WAITING).fetch_all(&mut *wire).await {
        Err(error) if is_denied(&error) => {
            let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(wire).await?;
            return Ok(Err(match version.contains("MariaDB") {
                true => "this user needs the privilege PROCESS",
                false => "this user needs the privilege SELECT on performance_schema.*",
            }));
        }
        rows => rows?,
    };
    if rows.is_empty() {
        return Ok(Err(
            "performance_schema must be on, with its instrument wait/lock/metadata/sql/mdl",
        ));
    }
    let waiters = rows.iter().filter_map(|row| waiter(row).transpose());
    waiters.collect::<sqlx::Result<_>>().map(|waiters| Ok(Waiters(waiters)))
}

impl Waiters {
    /// Puts the waiters of each key behind its holder.
    pub(super) fn behind(&self, holders: Vec<Seen>) -> Vec<Seen> {
        let mut all = Vec::new();
        for holder in holders {
            let key = Key::new(&holder.key).map(|key| short(&key)).unwrap_or_default();
            // A connection that was granted the lock meanwhile holds it.
            let is_ours =
                |waiter: &&Waiter| waiter.key == key && waiter.number != holder.session.number;
            let ours: Vec<_> = self.0.iter().filter(is_ours).collect();
            let (key, last) = (holder.key.clone(), holder.last);
            all.push(holder);
            all.extend(ours.into_iter().map(|waiter| waiter.seen(key.clone(), last)));
        }
        all
    }
}

impl Waiter {
    fn seen(&self, key: String, last: i64) -> Seen {
        let entry = Entry {
            since: self.age.and_then(since),
            ..Entry::new(self.number.to_string(), Mode::Mutex).by(&self.who)
        };
        let session = Session { number: self.number, mark: None };
        Seen { key, session, holds: false, last, entry }
    }
}

const COMMENT: &str = "/* lockkeeper ";

/// A row about a waiter, unless it waits for a lock that is not ours.
fn waiter(row: &MySqlRow) -> sqlx::Result<Option<Waiter>> {
    let number: Option<i64> = row.try_get("number")?;
    let statement: Option<String> = row.try_get("statement")?;
    let age = row.try_get("age_us")?;
    let named = statement.as_deref().and_then(commented);
    Ok(number.zip(named).map(|(number, (key, who))| Waiter { key, who, number, age }))
}

/// The key and the client in the comment of a statement that waits.
fn commented(statement: &str) -> Option<(String, String)> {
    let (comment, _) = statement.strip_prefix(COMMENT)?.split_once(" */")?;
    let (key, who) = comment.split_once(' ')?;
    Some((key.to_owned(), who.to_owned()))
}

/// Identifies a key, however long it is: MySQL shows the first kilobyte of a statement.
fn short(key: &Key) -> String {
    let hash = Sha256::digest(key.as_str());
    hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// Text that ends no comment. MySQL cannot list statements with four-byte characters.
fn printable(who: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != '*' || c == ' ' { c } else { '?' };
    who.chars().map(plain).take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ask(key: &str, who: &str) -> Ask {
        let (key, ttl) = (Key::new(key).unwrap(), Duration::from_secs(1));
        Ask { key, read: false, ttl, who: who.into(), note: None }
    }

    #[test]
    fn a_waiting_statement_says_who_waits_for_what() {
        let asked = ask("it's \\ Größe", "ann@web1 3518 backup --password x");
        let statement = waiting_statement(&asked);
        let said = commented(&statement).unwrap();
        assert_eq!(said, (short(&asked.key), "ann@web1 3518".to_owned()));
        assert!(statement.is_ascii() && !statement.contains("password"), "{statement}");
    }

    #[test]
    fn a_name_does_not_end_its_comment() {
        let statement = waiting_statement(&ask("key", "*/ DROP TABLE 🔒"));
        assert_eq!(commented(&statement).unwrap().1, "?/ DROP TABLE ?");
        assert_eq!(statement.matches("*/").count(), 1, "{statement}");
    }

    #[test]
    fn statements_of_others_are_no_waiters() {
        for other in ["DO GET_LOCK('theirs', 10)", "/* lockkeeper */", "/* lockkeeper cut"] {
            assert_eq!(commented(other), None);
        }
    }
}
