//! From a URL to a database that is fit to keep locks: settings, first words, tables.

use async_trait::async_trait;
use sqlx::Row;
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};

use super::doctor;
use crate::engine::Finding;
use crate::engines::endpoint::Endpoint;
use crate::engines::sql::{self, Dialect, Session, Sessions};
use crate::error::{Error, Result};

/// The tables and procedures that this engine needs, as a migration to run by hand.
///
/// It is run by itself where the user of the URL may do that, unless the option `create` is `no`.
pub const SCHEMA: &str = include_str!("schema.sql");

/// The version of [`SCHEMA`] that this code speaks.
pub(super) const VERSION: i32 = 2;

pub(super) const NAME: &str = "mysql";

/// What a URL says.
pub(super) type Settings = sql::Settings<Strategy, MySqlConnectOptions>;

/// How locks are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Strategy {
    Lease,
    Named,
    Row,
}

/// Reads a URL.
pub(super) fn settings(endpoint: &Endpoint) -> Result<Settings> {
    let strategies =
        [("lease", Strategy::Lease), ("named", Strategy::Named), ("row", Strategy::Row)];
    let native = ["socket", "ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];
    let mut settings = Settings::of(endpoint, endpoint.options(), &strategies, &native)?;
    let url = endpoint.expose();
    if url.path().trim_matches('/').is_empty() {
        return Err(Error::Url(
            "mysql: the URL names no database; write mysql://user@host/database".to_owned(),
        ));
    }
    if url.password().is_none()
        && let Ok(password) = std::env::var("MYSQL_PWD")
    {
        settings.options = settings.options.password(&password);
    }
    Ok(settings)
}

#[async_trait]
impl Dialect for MySqlConnection {
    const ENGINE: &'static str = NAME;

    /// Sets an isolation without gap locks, which would make neighbours in the index wait for each
    /// other, and a limit to waiting for a row, but none to waiting for a lock; times are in UTC.
    async fn greet(&mut self) -> sqlx::Result<()> {
        sqlx::raw_sql(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
             SET SESSION time_zone = '+00:00', autocommit = 1, innodb_lock_wait_timeout = 5
               /*M! , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */",
        )
        .execute(self)
        .await?;
        Ok(())
    }

    /// The port that we come from tells apart two connections that had one number, before the server
    /// started again and after.
    async fn session(&mut self) -> sqlx::Result<Session> {
        let asking = "SELECT CAST(id AS SIGNED), host FROM information_schema.processlist
                      WHERE id = CONNECTION_ID()";
        let (number, mark) = sqlx::query_as(asking).fetch_one(self).await?;
        Ok(Session { number, mark })
    }

    async fn end(&mut self, session: &Session) -> sqlx::Result<()> {
        let ending = sqlx::query("CALL lockkeeper_end(?, ?)");
        ending.bind(session.number).bind(&session.mark).execute(self).await.map(drop)
    }

    async fn sweep(&mut self) -> sqlx::Result<()> {
        sqlx::query("CALL lockkeeper_sweep()").execute(self).await.map(drop)
    }

    async fn doctor(sessions: &Sessions<Self>) -> Result<Vec<Finding>> {
        doctor::look(sessions).await
    }

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

    /// The one thing that the client crate finds out only when it connects.
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

    /// Deadlocks, rows not had in time, connections killed, servers that start, stop or are full.
    fn may_pass(error: &dyn DatabaseError) -> bool {
        let passing =
            [1040, 1053, 1077, 1079, 1159, 1161, 1203, 1205, 1213, 1317, 1927, 3168, 4031];
        number(error).is_some_and(|number| passing.contains(&number))
            || error.code().is_some_and(|code| code == "40001" || code.starts_with("08"))
    }
}

/// By which number the server knows an error.
pub(super) fn number(error: &dyn DatabaseError) -> Option<u16> {
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// Connects, and makes sure that the database may be written and has our tables.
pub(super) async fn prepare(settings: Settings) -> Result<Sessions<MySqlConnection>> {
    let sessions = Sessions::new(settings.options, settings.connections);
    if find(&sessions).await?.is_none() {
        if !settings.create {
            return Err(sql::missing(NAME, "they are not there, and the option create is no"));
        }
        make(&sessions).await?;
    }
    let Some(version) = find(&sessions).await? else {
        return Err(sql::missing(NAME, "they are not there any more"));
    };
    sql::check_version(NAME, version, VERSION)?;
    Ok(sessions)
}

/// The same for locks that are bound to a connection, which are known to one member of a cluster only.
pub(super) async fn prepare_to_bind(settings: Settings) -> Result<Sessions<MySqlConnection>> {
    let sessions = prepare(settings).await?;
    let mut session = sessions.any().await?;
    let galera = is_galera(session.wire()).await;
    if session.settle(galera, "look for a cluster")? {
        return Err(Error::broken(
            NAME,
            "hold locks by connections",
            "this server is a member of a Galera cluster, whose other members know nothing of \
             such locks; use strategy=lease, and one member for everyone",
        ));
    }
    Ok(sessions)
}

/// Whether the server shares its data with others of equal right.
pub(super) async fn is_galera(wire: &mut MySqlConnection) -> sqlx::Result<bool> {
    let asking = sqlx::query("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'");
    let row = asking.fetch_optional(wire).await?;
    Ok(row.is_some_and(|row| row.get::<&str, _>(1) == "ON"))
}

/// The version of the tables that are there.
async fn find(sessions: &Sessions<MySqlConnection>) -> Result<Option<i32>> {
    let mut session = sessions.any().await?;
    let looking = async {
        let wire = session.wire();
        let asking = sqlx::query_scalar::<_, i64>("SELECT @@global.read_only");
        let read_only = asking.fetch_one(&mut *wire).await? != 0;
        Ok((read_only, version(wire).await?))
    };
    let answer = looking.await;
    let (read_only, version) = session.settle(answer, "look at the database")?;
    if read_only {
        return Err(Error::broken(
            NAME,
            "keep locks here",
            "this server is read-only, as replicas are; name the primary",
        ));
    }
    Ok(version)
}

pub(super) async fn version(wire: &mut MySqlConnection) -> sqlx::Result<Option<i32>> {
    let asking = sqlx::query_scalar::<_, i64>(
        "SELECT COUNT(*) FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_version'",
    );
    if asking.fetch_one(&mut *wire).await? == 0 {
        return Ok(None);
    }
    sqlx::query_scalar("SELECT MAX(version) FROM lockkeeper_version").fetch_one(wire).await
}

async fn make(sessions: &Sessions<MySqlConnection>) -> Result<()> {
    let mut session = sessions.any().await?;
    let making = async {
        // One at a time, since procedures are dropped and made again. The lock goes with the connection.
        let alone = !is_galera(session.wire()).await?;
        if alone {
            let waiting = sqlx::query("DO GET_LOCK('lockkeeper: making tables', 60)");
            waiting.execute(session.wire()).await?;
        }
        // Whoever made them meanwhile may use them already.
        if version(session.wire()).await?.is_none() {
            for statement in statements() {
                sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(session.wire()).await?;
            }
        }
        if alone {
            let done = sqlx::query("DO RELEASE_LOCK('lockkeeper: making tables')");
            done.execute(session.wire()).await?;
        }
        Ok(())
    };
    let answer = making.await;
    session.settle(answer, "make the tables").inspect_err(|_| {
        let hint = sql::missing(NAME, "they are not there, and could not be made");
        tracing::error!(%hint);
    })
}

/// The statements of the schema, which is written for a client that splits it where it is told to.
fn statements() -> impl Iterator<Item = String> {
    let lines = SCHEMA.lines().filter(|line| !line.starts_with("DELIMITER"));
    let text: String = lines.map(|line| line.to_owned() + "\n").collect();
    let parts: Vec<_> = text.split("//\n").map(|part| part.trim().to_owned()).collect();
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client crate says of a password that it may not send in the clear.
    #[test]
    fn a_password_that_needs_encryption_is_said_to_need_it() {
        let said = "RSA auth backend disabled; enable feature `mysql-rsa` or use TLS.";
        let error = sqlx::Error::Configuration(said.into());
        let error = sql::failed::<MySqlConnection>(error, "connect");
        let told = error.to_string();
        assert!(told.contains("caching_sha2_password") && told.contains("ssl-mode"), "{told}");
        assert!(!told.contains("feature") && !error.is_retryable(), "{told}");
    }
}
