//! A kind of lock that the server itself holds for a connection: what each of them has to
//! implement.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::session_engine::Dedicated;
use super::sessions::{Dialect, Session, Sessions};
use crate::engine::{
    Death, Entry, FenceSource, Guarantees, Order, Query, Reentrance, Scope, Support, Survives,
    Wakeup,
};
use crate::error::Result;
use crate::key::Key;

/// A kind of lock that a server holds for a connection.
#[async_trait]
pub(crate) trait SessionLock: fmt::Debug + Send + Sync + 'static {
    /// The connection.
    type Wire: Dialect + 'static;

    /// What it promises.
    const GUARANTEES: Guarantees;

    /// Configures the server to end the session after this much silence, unless that is a part of
    /// `take`.
    ///
    /// Called when it changes: a reused connection has it already.
    async fn limit(_: &mut Self::Wire, _silence: Duration) -> sqlx::Result<()> {
        Ok(())
    }

    /// Acquires the lock.
    async fn take(wire: &mut Self::Wire, ask: &Ask, wait: bool) -> sqlx::Result<Taken>;

    /// Commits a fence for a lock that a connection was [granted](Taken::Unfenced), there or on one
    /// of the shared connections, which must not wait for a foreign transaction.
    async fn mark(
        shared: &Sessions<Self::Wire>,
        holder: &mut Dedicated<Self::Wire>,
        ask: &Ask,
    ) -> Result<Marked>;

    /// Whether the connection is still the one that holds the lock.
    async fn beat(wire: &mut Self::Wire, ask: &Ask) -> sqlx::Result<bool>;

    /// Releases the lock. False if it was not held.
    async fn give_back(wire: &mut Self::Wire, ask: &Ask) -> sqlx::Result<bool>;

    /// The holders and waiters, in order.
    async fn look(wire: &mut Self::Wire, query: &Query) -> sqlx::Result<Looked>;
}

/// What such a lock promises, whatever its kind.
pub(crate) const fn promises(
    engine: &'static str,
    read_write: Support,
    semaphore: Support,
) -> Guarantees {
    Guarantees {
        engine,
        read_write,
        semaphore,
        most_permits: 0,
        order: Order::Server,
        fence: FenceSource::Hybrid,
        death: Death::Session,
        wakeup: Wakeup::Server,
        scope: Scope::Network,
        survives: Survives::None,
        reentrance: Reentrance::Client,
        hand_over: Support::No("its grants reserve no fences"),
        keep: Support::No("its grants reserve no fences"),
    }
}

/// The request of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only advisory locks share"))]
    pub(crate) read: bool,
    /// After this silence the server ends the session.
    pub(crate) ttl: Duration,
    /// Who makes the request, as it is recorded.
    pub(crate) who: Arc<str>,
    pub(crate) note: Option<String>,
}

/// A server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Busy,
    /// Granted, with this committed fence.
    Fenced(i64),
    /// Granted, on a connection that cannot commit a fence without releasing the lock, or not yet.
    Unfenced,
}

/// The outcome of committing a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marked {
    /// It is committed.
    Fenced(i64),
    /// A transaction that the previous fence guards has not ended.
    Guarded,
    /// The connection no longer holds the lock.
    Gone,
}

impl Marked {
    /// As the databases return it: 0 if it has to wait for a guarded transaction, null if the lock
    /// is gone.
    pub(crate) fn from_column(fence: Option<i64>) -> Self {
        match fence {
            None => Marked::Gone,
            Some(0) => Marked::Guarded,
            Some(fence) => Marked::Fenced(fence),
        }
    }
}

/// What a server tells about locks.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) seen: Vec<Seen>,
    /// Why the waiters are not among them, if they are not.
    pub(crate) unknown: Option<&'static str>,
}

/// A connection that holds or waits.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) session: Session,
    pub(crate) holds: bool,
    pub(crate) last: i64,
    pub(crate) entry: Entry,
}
