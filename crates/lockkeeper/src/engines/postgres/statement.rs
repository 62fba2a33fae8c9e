//! A statement, and how it is sent.
//!
//! On our own connection it is prepared once, and the session has our settings. A transaction-mode
//! pooler sends every message to another server process, so there a statement is one message: a
//! simple query with its values in the text, after the settings, which last for its transaction and
//! affect no other client.

use sqlx::postgres::{PgConnection, PgRow};

use super::error::is_queue_full;

/// A value of a statement, for `$1` and on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Maybe(Option<&'a str>),
    Number(i64),
    Texts(&'a [&'a str]),
    Numbers(&'a [i64]),
}

/// How statements are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// Prepared, in a session that keeps its settings.
    Prepared,
    /// In one self-contained message.
    Plain,
}

/// The start of a transaction that does not depend on any defaults.
macro_rules! transaction {
    ($statements:literal) => {
        concat!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; ", $statements)
    };
}

pub(super) use transaction;

/// The settings of [`greet`](crate::engines::sql::Dialect::greet), for one transaction: all that
/// affect the meaning of a statement, and how it finds its rows.
const SETTINGS: &str = transaction!(
    "SELECT set_config('lock_timeout', '0', true), set_config('statement_timeout', '0', true),
      set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
      CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
);

impl Sending {
    /// Sends a statement and returns its rows.
    pub(super) async fn ask(
        self,
        wire: &mut PgConnection,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> sqlx::Result<Vec<PgRow>> {
        match self {
            Sending::Prepared => prepared(wire, statement, values).await,
            Sending::Plain => plain(wire, SETTINGS, statement, values).await,
        }
    }

    /// The same for a statement that sends notifications.
    ///
    /// Notifications go through one queue of the whole server, and a session that listens in an
    /// open transaction keeps it from being emptied. Once it is full, the server rolls back every
    /// transaction that would add to it: then the statement is sent again, without notifications.
    pub(super) async fn tell(
        self,
        wire: &mut PgConnection,
        statement: &'static str,
        values: &[Value<'_>],
    ) -> sqlx::Result<Vec<PgRow>> {
        match self.ask(wire, statement, values).await {
            Err(error) if is_queue_full(&error) => {
                tracing::debug!("the notification queue is full; waiters poll instead");
            }
            answer => return answer,
        }
        match self {
            Sending::Prepared => {
                silence(wire, "on").await?;
                let answer = prepared(wire, statement, values).await;
                silence(wire, "off").await?;
                answer
            }
            Sending::Plain => {
                let silent = format!("{SETTINGS}, set_config('lockkeeper.silent', 'on', true)");
                plain(wire, &silent, statement, values).await
            }
        }
    }
}

async fn prepared(
    wire: &mut PgConnection,
    statement: &'static str,
    values: &[Value<'_>],
) -> sqlx::Result<Vec<PgRow>> {
    let mut query = sqlx::query(statement);
    for value in values {
        query = match *value {
            Value::Text(text) => query.bind(text),
            Value::Maybe(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
            Value::Texts(texts) => query.bind(texts),
            Value::Numbers(numbers) => query.bind(numbers),
        };
    }
    query.fetch_all(wire).await
}

async fn plain(
    wire: &mut PgConnection,
    settings: &str,
    statement: &str,
    values: &[Value<'_>],
) -> sqlx::Result<Vec<PgRow>> {
    // The statements of one message are one transaction.
    let message = format!("{settings}; {}", written(statement, values));
    let mut rows = sqlx::raw_sql(sqlx::AssertSqlSafe(message)).fetch_all(wire).await?;
    // The first row is that of the settings.
    rows.drain(..1);
    Ok(rows)
}

/// Whether this session sends notifications.
async fn silence(wire: &mut PgConnection, on: &str) -> sqlx::Result<()> {
    let setting = sqlx::query("SELECT set_config('lockkeeper.silent', $1, false)").bind(on);
    setting.execute(wire).await.map(drop)
}

/// A statement with its values in place of `$1` and on. Values are not scanned again.
fn written(statement: &str, values: &[Value<'_>]) -> String {
    let mut parts = statement.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = part.split_at(digits);
        let number: usize = number.parse().expect("our statements have no other use for $");
        text += &literal(values[number - 1]);
        text += rest;
    }
    text
}

/// A value as PostgreSQL reads it under any settings, with its type.
fn literal(value: Value<'_>) -> String {
    match value {
        Value::Text(text) => quoted(text) + "::text",
        Value::Maybe(Some(text)) => quoted(text) + "::text",
        Value::Maybe(None) => "NULL::text".to_owned(),
        Value::Number(number) => format!("({number})::bigint"),
        Value::Texts(texts) => {
            let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
            format!("ARRAY[{}]::text[]", texts.join(","))
        }
        Value::Numbers(numbers) => {
            let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
            format!("ARRAY[{}]::bigint[]", numbers.join(","))
        }
    }
}

/// In a string of this kind, a backslash is special whatever `standard_conforming_strings` is. A quote is
/// doubled, because `backslash_quote` may forbid the other way.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("E'");
    for c in text.chars() {
        match c {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_once_and_cannot_leave_their_quotes() {
        let values = [Value::Text(r"it's $2 \'"), Value::Number(-7), Value::Maybe(None)];
        assert_eq!(
            written("SELECT $1, $2 - $2, $3", &values),
            r"SELECT E'it''s $2 \\'''::text, (-7)::bigint - (-7)::bigint, NULL::text"
        );
        let values = [Value::Texts(&["a", "'"]), Value::Numbers(&[1, -2]), Value::Texts(&[])];
        assert_eq!(
            written("$1$2$3", &values),
            r"ARRAY[E'a',E'''']::text[]ARRAY[1,-2]::bigint[]ARRAY[]::text[]"
        );
    }
}
