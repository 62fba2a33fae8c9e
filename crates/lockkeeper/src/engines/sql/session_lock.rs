//! A kind of lock that the server itself holds for a connection: what each of them has to say.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::session_engine::Dedicated;
use super::sessions::{Dialect, Session};
use crate::engine::{
    Death, Entry, FenceSource, Guarantees, Order, Query, Reentrance, Scope, Support, Survives,
    Wakeup,
};
use crate::key::Key;

/// A kind of lock that a server holds for a connection.
#[async_trait]
pub(crate) trait SessionLock: fmt::Debug + Send + Sync + 'static {
    /// The connection.
    type Wire: Dialect + 'static;

    /// What it promises.
    const GUARANTEES: Guarantees;

    /// Has the server end the session after so much silence, where that is not a part of taking.
    ///
    /// Asked for when it changes: a connection that is used again has it already.
    async fn limit(_: &mut Self::Wire, _silence: Duration) -> sqlx::Result<()> {
        Ok(())
    }

    /// Takes the lock.
    async fn take(wire: &mut Self::Wire, ask: &Ask, wait: bool) -> sqlx::Result<Taken>;

    /// Commits a fence for a lock that a connection was [given](Taken::Unfenced), there or on a connection
    /// `apart`. Never waits for anybody's transaction.
    async fn mark(
        apart: &mut Self::Wire,
        holder: &mut Dedicated<Self::Wire>,
        ask: &Ask,
    ) -> sqlx::Result<Marked>;

    /// Whether the connection is still the one that holds the lock.
    async fn beat(wire: &mut Self::Wire, ask: &Ask) -> sqlx::Result<bool>;

    /// Gives the lock back. False if it was not held.
    async fn give_back(wire: &mut Self::Wire, ask: &Ask) -> sqlx::Result<bool>;

    /// Marks a connection that holds as asked to give way: `asked ` before who it is. False where
    /// nothing is noted of it.
    async fn ask(wire: &mut Self::Wire, key: &Key, holder: i64) -> sqlx::Result<bool>;

    /// Whether a connection that holds is marked so.
    async fn is_asked(wire: &mut Self::Wire, key: &Key, holder: i64) -> sqlx::Result<bool>;

    /// Whether [`look`](SessionLock::look) tells of those who wait.
    const SEES_WAITERS: bool;

    /// Who holds and who waits, in order.
    async fn look(wire: &mut Self::Wire, query: &Query) -> sqlx::Result<Vec<Seen>>;
}

/// What such a lock promises, whatever it is.
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
    }
}

/// What a connection is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) key: Key,
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only advisory locks share"))]
    pub(crate) read: bool,
    /// After this silence the server ends the session.
    pub(crate) ttl: Duration,
    /// Who asks, as it is recorded.
    pub(crate) who: Arc<str>,
    pub(crate) note: Option<String>,
}

/// A server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Busy,
    /// Ours, under this fence, which is committed.
    Fenced(i64),
    /// Ours, on a connection that cannot commit a fence without giving the lock back, or that may not yet.
    Unfenced,
}

/// What became of a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marked {
    /// It is committed.
    Fenced(i64),
    /// A transaction is not over that is guarded by the fence before.
    Guarded,
    /// The connection does not hold the lock any more.
    Gone,
}

impl Marked {
    /// As the databases say it: 0 if it has to wait for a guarded transaction, nothing if the lock is gone.
    pub(crate) fn from_column(fence: Option<i64>) -> Self {
        match fence {
            None => Marked::Gone,
            Some(0) => Marked::Guarded,
            Some(fence) => Marked::Fenced(fence),
        }
    }
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
