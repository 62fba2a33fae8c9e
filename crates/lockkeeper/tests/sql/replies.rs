//! The reply to every statement is lost once, one after the other: the statement takes effect, but
//! its answer is lost.
//!
//! The same few operations are repeated through a proxy that drops the first reply, then the
//! second, and so on, until there is none left to drop. Whichever it was, callers succeed or get an
//! error, there are never two holders, and nothing is left behind.

use std::time::{Duration, Instant};

use lockkeeper::{Client, Error, Fence, Guard, Result};
use lockkeeper_testkit::proxy::Proxy;
use lockkeeper_testkit::server::{DatabaseServer, Dialect};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::faults::{LEASE, SOON, strategy};

/// Longer than any wait: such a lock is not freed by expiring.
const LONG: Duration = Duration::from_secs(300);

/// How many replies are lost at a time, each in a separate run, with its own keys.
const AT_ONCE: usize = 12;

pub(super) async fn every_reply_is_lost_once<D: Dialect>(
    server: &'static DatabaseServer<D>,
    way: &'static str,
) {
    let url = strategy(&server.url(), way);
    let witness = Client::connect(&url).await.unwrap();
    for first in (0..).step_by(AT_ONCE) {
        assert!(first < 1000, "{way}: there is no end of replies");
        let mut runs = JoinSet::new();
        for nth in first..first + AT_ONCE {
            let proxy = Proxy::start(server.address()).await;
            let direct = server.address().port().to_string();
            let through = url.replace(&direct, &proxy.address().port().to_string());
            runs.spawn(run_without_a_reply(proxy, through, witness.clone(), nth));
        }
        let lost = runs.join_all().await.into_iter().filter(|was_lost| *was_lost).count();
        if lost < AT_ONCE {
            return println!("{way}: {} replies", first + lost);
        }
    }
}

/// Returns whether there was such a reply.
async fn run_without_a_reply(proxy: Proxy, url: String, witness: Client, nth: usize) -> bool {
    proxy.swallow_reply_after(nth);
    let keys = [format!("long {nth}"), format!("short {nth}")];
    let mut run = Box::pin(timeout(LONG, a_bit_of_everything(&url, &keys)));
    let done = tokio::select! {
        done = &mut run => done,
        () = proxy.swallowed() => {
            proxy.heal().await;
            run.await
        }
    };
    let was_lost = proxy.still_to_swallow() == 0;
    let fence = done.unwrap_or_else(|_| panic!("{url}: nothing happens without reply {nth}"));
    assert!(was_lost || fence.is_some(), "{url}: an error without a cause");
    for key in &keys {
        let next = witness.mutex(key).acquire_within(SOON).await;
        let next = next.unwrap_or_else(|error| panic!("{url}: without reply {nth}: {error}"));
        assert!(*key == keys[1] || fence.is_none_or(|fence| next.fence() > fence));
        next.release().await.unwrap();
        let asked = Instant::now();
        while let Some(left) = witness.inspect(key).await.unwrap() {
            assert!(asked.elapsed() < SOON, "{url}: left without reply {nth}: {left:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
    was_lost
}

/// The operations of two clients on two locks. The last fence of the first, or `None` if one of
/// them got an error.
async fn a_bit_of_everything(url: &str, [long, short]: &[String; 2]) -> Option<Fence> {
    let (one, other) = (told(Client::connect(url).await)?, told(Client::connect(url).await)?);
    let short = told(one.mutex(short).ttl(LEASE).acquire().await)?;
    let first = told(one.mutex(long).ttl(LONG).acquire().await)?;
    if let Some(seen) = told(other.inspect(long).await)? {
        assert!(seen.holders.len() == 1, "{seen:?}");
    }
    // A lock that a connection holds is lost with it, a while before its holder is signalled.
    if let Some(second) = told(other.mutex(long).ttl(LONG).try_acquire().await)? {
        let may_be = !url.ends_with("lease") && second.fence() > first.fence();
        assert!(may_be, "{url}: two hold {long}");
        told(second.release().await)?;
    }
    let waiting = tokio::spawn(other.mutex(long).ttl(LONG).acquire());
    let before = first.fence();
    let released = first.release().await;
    let second = told(waiting.await.unwrap())?;
    told(released)?;
    assert!(second.fence() > before);
    told(one.break_lock(long).await)?;
    let third = told(one.mutex(long).ttl(LONG).acquire().await)?;
    assert!(third.fence() > second.fence());
    told(second.release().await)?;
    third.check().unwrap();
    told(third.release().await)?;
    // Once more by the same client: there may be a fast path for that.
    let fourth = told(one.mutex(long).ttl(LONG).acquire().await)?;
    let last = fourth.fence();
    told(fourth.release().await)?;
    renewed_or_lost(&short).await;
    told(short.release().await)?;
    one.close().await;
    other.close().await;
    Some(last)
}

async fn renewed_or_lost(guard: &Guard) {
    let mut left = guard.remaining();
    while guard.check().is_ok() && guard.remaining() <= left {
        left = guard.remaining();
        sleep(Duration::from_millis(20)).await;
    }
}

/// The outcome of an operation. An error must be retryable.
fn told<T>(answer: Result<T>) -> Option<T> {
    answer
        .inspect_err(|error| {
            let is_clear = error.is_retryable() || matches!(error, Error::Lost { .. });
            assert!(is_clear, "{error:?}");
        })
        .ok()
}
