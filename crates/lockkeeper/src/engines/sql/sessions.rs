//! The client's own connections, never borrowed from an application's pool.
//!
//! Requests about one key always use the same connection, in the order in which they were made: a
//! release that was begun before an attempt reaches the server before it. A connection whose
//! request failed, was abandoned or timed out is closed, since its next answer would be
//! unpredictable.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Connection;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use super::error::{ServerErrors, failed, is_refusal};
use super::{STATEMENT, stripe};
use crate::engine::Finding;
use crate::engines::disconnections::Disconnections;
use crate::error::Result;
use crate::key::Key;

/// One in this many releases also removes unused rows.
const SWEEPS: u32 = 500;

/// A connection that was idle for this long is pinged first.
const IDLE: Duration = Duration::from_secs(1);

/// How long such a connection may take to answer.
const PING: Duration = Duration::from_secs(2);

/// A kind of connection, and how it is set up.
#[async_trait]
pub(crate) trait Dialect: Connection + ServerErrors + Sized {
    /// The version of the tables that this code needs.
    const VERSION: i32;

    /// The version of the existing tables, if there are any.
    async fn tables(&mut self) -> sqlx::Result<Option<i32>>;

    /// Creates the tables. Clients that do so at the same time take turns.
    async fn make_tables(&mut self) -> sqlx::Result<()>;

    /// Settings that this session needs.
    async fn greet(&mut self) -> sqlx::Result<()>;

    /// The server's identification of this connection.
    async fn session(&mut self) -> sqlx::Result<Session>;

    /// Ends another connection, and waits until its locks are released.
    async fn end(&mut self, session: &Session) -> sqlx::Result<()>;

    /// Records that the holders with these fences are asked to give way, by whom and why.
    async fn ask(&mut self, key: &Key, fences: &[i64], line: &str) -> sqlx::Result<()>;

    /// The request to a holder within the last so many microseconds.
    async fn asked(&mut self, key: &Key, fence: i64, lately: i64) -> sqlx::Result<Option<String>>;

    /// Adds a line to the list of breaks, and removes the oldest.
    async fn add_break(&mut self, line: &str) -> sqlx::Result<()>;

    /// Removes a line from it.
    async fn remove_break(&mut self, line: &str) -> sqlx::Result<()>;

    /// Its lines, in any order.
    async fn breaks(&mut self) -> sqlx::Result<Vec<String>>;

    /// Removes unused rows.
    async fn sweep(&mut self) -> sqlx::Result<()>;

    /// Checks this deployment for problems.
    async fn doctor(sessions: &Sessions<Self>) -> Result<Vec<Finding>>;
}

/// A connection, as the server identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) number: i64,
    /// Distinguishes this connection from a later one with the same number: servers reuse the
    /// numbers of ended connections.
    pub(crate) mark: Option<String>,
}

/// The connections of one client: several for requests about keys, and a separate one for renewals,
/// so that a lease never waits for an attempt.
pub(crate) struct Sessions<C: Dialect> {
    options: C::Options,
    /// Whether a transaction-mode pooler provides these connections. Session settings are then
    /// lost, or affect other clients.
    is_lent: bool,
    /// Whether the database had none of our tables when we last looked.
    pub(super) lacks_tables: AtomicBool,
    requests: Vec<Home<C>>,
    renewals: Home<C>,
    pub(crate) disconnections: Disconnections,
}

/// Where a connection is while it is idle, and since when.
type Home<C> = Mutex<Option<(C, Instant)>>;

/// A connection for the time of one request. Returned by [`settle`](Borrowed::settle), otherwise
/// closed.
pub(crate) struct Borrowed<'a, C: Dialect> {
    home: Option<MutexGuard<'a, Option<(C, Instant)>>>,
    connection: Option<C>,
}

impl<C: Dialect> Sessions<C> {
    pub(crate) fn new(options: C::Options, connections: usize) -> Self {
        let requests = (0..connections.max(1)).map(|_| Mutex::default()).collect();
        Self {
            options,
            is_lent: false,
            lacks_tables: AtomicBool::new(false),
            requests,
            renewals: Mutex::default(),
            disconnections: Disconnections::default(),
        }
    }

    /// Connections without session settings.
    #[cfg(feature = "postgres")]
    pub(crate) fn lent(options: C::Options, connections: usize) -> Self {
        Self { is_lent: true, ..Self::new(options, connections) }
    }

    /// Sets up the open connections, and from now on the new ones.
    #[cfg(feature = "postgres")]
    pub(crate) async fn greeted(mut self) -> Result<Self> {
        self.is_lent = false;
        for home in self.requests.iter_mut().chain([&mut self.renewals]) {
            if let Some((connection, _)) = home.get_mut() {
                let greeting = within(STATEMENT, connection.greet()).await;
                greeting.map_err(|error| failed::<C>(error, "connect"))?;
            }
        }
        Ok(self)
    }

    /// Whether a transaction-mode pooler provides these connections.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// How many connections there are for requests about keys.
    pub(super) fn connections(&self) -> usize {
        self.requests.len()
    }

    /// Which of them is for a key.
    pub(super) fn place_of(&self, key: &Key) -> usize {
        stripe(key, self.requests.len())
    }

    /// The connection for requests about a key, once earlier ones are done.
    pub(crate) async fn of(&self, key: &Key) -> Result<Borrowed<'_, C>> {
        self.borrow(&self.requests[self.place_of(key)]).await
    }

    /// The connection for requests that are about no key in particular.
    pub(crate) async fn any(&self) -> Result<Borrowed<'_, C>> {
        self.borrow(&self.requests[0]).await
    }

    /// The connection for renewals.
    pub(crate) async fn for_renewals(&self) -> Result<Borrowed<'_, C>> {
        self.borrow(&self.renewals).await
    }

    /// A new, exclusive connection.
    pub(crate) async fn connect(&self) -> Result<C> {
        let connecting = async {
            let mut connection = C::connect_with(&self.options).await?;
            if !self.is_lent {
                connection.greet().await?;
            }
            Ok(connection)
        };
        within(STATEMENT, connecting).await.map_err(|error| failed::<C>(error, "connect"))
    }

    /// One in many releases also removes unused rows. Whatever the outcome, the release has
    /// happened.
    pub(crate) async fn sweep(&self, key: &Key) {
        if fastrand::u32(..SWEEPS) > 0 {
            return;
        }
        let Ok(mut session) = self.of(key).await else { return };
        let answer = within(STATEMENT, session.wire().sweep()).await;
        if let Err(error) = session.settle(answer, "remove unused rows") {
            tracing::debug!(%error, "left for the next sweep");
        }
    }

    /// Closes the idle connections.
    pub(crate) async fn close(&self) {
        for home in self.requests.iter().chain([&self.renewals]) {
            if let Ok(mut home) = home.try_lock()
                && let Some((connection, _)) = home.take()
            {
                // A goodbye is optional; the server notices either way.
                let _ = timeout(Duration::from_secs(1), connection.close()).await;
            }
        }
    }

    /// A connection that was idle for long may have been ended by the server, or by a proxy.
    async fn borrow<'a>(&'a self, home: &'a Home<C>) -> Result<Borrowed<'a, C>> {
        let mut home = home.lock().await;
        let connection = match home.take() {
            Some((connection, since)) if since.elapsed() < IDLE => connection,
            Some((mut connection, _)) => match within(PING, connection.ping()).await {
                Ok(()) => connection,
                Err(_) => self.connect().await?,
            },
            None => self.connect().await?,
        };
        Ok(Borrowed { home: Some(home), connection: Some(connection) })
    }
}

impl<C: Dialect> Borrowed<'_, C> {
    /// The connection itself.
    pub(crate) fn wire(&mut self) -> &mut C {
        self.connection.as_mut().expect("it is here until it is settled")
    }

    /// Like [`settle`](Borrowed::settle), for a request that may be repeated: `None` if a foreign
    /// transaction blocked it, such as one that the lock guards.
    pub(crate) fn settle_unless_busy<T>(
        self,
        answer: sqlx::Result<T>,
        doing: &str,
    ) -> Result<Option<T>> {
        match answer {
            Err(sqlx::Error::Database(error)) if C::was_in_the_way(error.as_ref()) => {
                self.settle(Ok(None), doing)
            }
            answer => self.settle(answer.map(Some), doing),
        }
    }

    /// Returns the connection, unless its state is unknown, and maps the error.
    pub(crate) fn settle<T>(mut self, answer: sqlx::Result<T>, doing: &str) -> Result<T> {
        // A refusal is an answer like any other: the connection can be reused.
        if answer.is_ok() || is_refusal::<C>(&answer) {
            let connection = self.connection.take().map(|connection| (connection, Instant::now()));
            *self.home.take().expect("settled once") = connection;
        }
        answer.map_err(|error| failed::<C>(error, doing))
    }
}

/// The answer to a request about a lock on the connection that holds it.
pub(crate) async fn answered<C: ServerErrors, T>(
    work: impl Future<Output = sqlx::Result<T>>,
) -> Result<T> {
    within(STATEMENT, work).await.map_err(|error| failed::<C>(error, "acquire a lock"))
}

/// Waits for an answer, for a limited time.
pub(crate) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| {
        let silence = format!("no answer within {}", humantime::format_duration(limit));
        Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, silence)))
    })
}

impl<C: Dialect> fmt::Debug for Sessions<C> {
    /// Without the options: they contain the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("engine", &C::ENGINE).finish_non_exhaustive()
    }
}
