//! What both tables of leases have in common: what they promise, and what is made of their answers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::sessions::{Dialect, Sessions, within};
use super::{LOOK_AGAIN, STATEMENT, fence};
use crate::core::clock::Moment;
use crate::engine::{
    Death, FenceSource, Grant, Guarantees, Held, Lease, Order, Reentrance, Renewal, Request, Scope,
    Support, Survives, Wakeup,
};
use crate::error::Result;

/// What a table of leases promises.
pub(crate) const fn leases(engine: &'static str, wakeup: Wakeup) -> Guarantees {
    Guarantees {
        engine,
        read_write: Support::Yes,
        semaphore: Support::Yes,
        most_permits: 100_000,
        order: Order::Fifo,
        fence: FenceSource::Hybrid,
        death: Death::Lease,
        wakeup,
        scope: Scope::Network,
        survives: Survives::Restart,
        reentrance: Reentrance::Store,
    }
}

/// What was given to a claim.
pub(crate) fn grant(
    request: &Request,
    number: i64,
    slots: Vec<u32>,
    asked: Moment,
    held: Arc<dyn Held>,
) -> Grant {
    Grant { fence: fence(number), slots, ttl: request.ttl, since: asked, held }
}

/// How long to wait for a lease in our way to run out, of which nobody would tell us.
pub(crate) fn pause(micros: Option<i64>) -> Duration {
    let micros = micros.and_then(|micros| u64::try_from(micros).ok());
    micros.map_or(LOOK_AGAIN, Duration::from_micros).min(LOOK_AGAIN)
}

/// Extends leases by a statement that answers with the tokens whose leases it did extend.
pub(crate) async fn renewals<C: Dialect>(
    sessions: &Sessions<C>,
    leases: &[Lease],
    extend: impl AsyncFnOnce(&mut C, &[String]) -> sqlx::Result<Vec<String>>,
) -> Result<Vec<Renewal>> {
    let tokens: Vec<_> = leases.iter().map(|lease| lease.token.to_string()).collect();
    // A connection that went silent is replaced before the lease runs out. Very short leases must do
    // with one try.
    let shortest = leases.iter().map(|lease| lease.ttl).min().unwrap_or_default();
    let limit = (shortest / 6).clamp(Duration::from_secs(1), STATEMENT);
    let mut session = sessions.for_renewals().await?;
    let answer = within(limit, extend(session.wire(), &tokens)).await;
    let renewed: HashSet<_> = session.settle(answer, "renew leases")?.into_iter().collect();
    let renewal = |token| match renewed.contains(token) {
        true => Renewal::Renewed,
        false => Renewal::Gone,
    };
    Ok(tokens.iter().map(renewal).collect())
}
