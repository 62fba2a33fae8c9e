//! One of the servers: its requests, its timeout, and the releases that it has not received yet.
//!
//! A server that did not answer in time is not asked again for the length of that timeout, so that
//! a dead one costs nothing. A release that could not be delivered is repeated after the server's
//! next answer.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{FromRedisValue, Value};
use tokio::time::{Instant, timeout};

use crate::engine::{Lease, Released, Renewal, Request};
use crate::error::{Error, Result};

use super::NAME;
use super::node_claim::{NodeClaim, Part};
use super::rw_claim::Counter;
use super::settings::Settings;
use crate::engines::redis::connection::{Call, Connection};
use crate::engines::redis::error::{garbage, sort};
use crate::engines::redis::layout::{entry, life, millis};
use crate::engines::redis::script::CONFIRM;
use crate::engines::redis::settings::Settings as Own;
use crate::engines::redis::topology::Topology;
use crate::engines::redis::{Store, renew};

/// How many leases are renewed within one timeout.
const RENEWED_AT_ONCE: usize = 2000;

/// How long a writer's wish lasts beyond one answer: a few attempts of the writer, each of which
/// renews it.
const WISH: Duration = Duration::from_millis(500);

/// One server.
#[derive(Debug)]
pub(super) struct Node {
    name: String,
    link: Arc<Connection>,
    store: Arc<Store>,
    settings: Settings,
    /// Until when it is not asked.
    paused: Mutex<Option<Instant>>,
    unreleased: Mutex<Vec<Unreleased>>,
}

/// A release that the server has not received. If nobody delivers it, the lock expires there.
#[derive(Debug)]
struct Unreleased {
    claim: Arc<NodeClaim>,
    until: Instant,
}

/// A server's answer to a claim.
#[derive(Debug)]
pub(super) enum Vote {
    /// Granted there, with this counter.
    Granted(Counter),
    /// Held by another client.
    Busy,
    /// Impossible for any client: something else is at the key, or the request is invalid.
    Refused(Error),
    /// No answer, or no right to vote.
    Silent(Error),
}

impl Node {
    pub(super) fn new(name: String, servers: Topology, own: Own, settings: Settings) -> Self {
        let Topology::One(link) = servers else {
            unreachable!("the URL of one server leads to one server")
        };
        let servers = Topology::One(link.clone());
        Self {
            name,
            store: Arc::new(Store { servers, settings: own, sharded: false }),
            link,
            settings,
            paused: Mutex::default(),
            unreleased: Mutex::default(),
        }
    }

    /// The server's address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The store that keeps its locks.
    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A claim's part at this server.
    pub(super) fn claim(&self, request: &Request) -> Arc<NodeClaim> {
        let wish = WISH + self.settings.node_timeout;
        Arc::new(NodeClaim::new(&self.store, request, wish))
    }

    /// Checks that it answers.
    pub(super) async fn ping(self: Arc<Self>) -> Result<()> {
        let ping = async {
            self.link.command(&redis::cmd("PING")).await.map_err(|error| sort("connect", error))
        };
        self.within(ping).await.map(drop)
    }

    /// Acquires the lock here; with a fence, for a claim that a majority has granted with that
    /// fence.
    pub(super) async fn vote(self: Arc<Self>, claim: Arc<NodeClaim>, fence: Option<u64>) -> Vote {
        let mut state = claim.state.lock().await;
        let state = &mut *state;
        if state.closed {
            return Vote::Busy;
        }
        let voted = self.within(async {
            state.clean = false;
            let granted = state.part.attempt(fence).await?;
            state.held = granted.is_some();
            claim.note_counter(granted.map_or(0, |told| told.fence));
            // Checked after the grant: a server that restarted in between is detected.
            if granted.is_some() {
                self.check_age().await?;
            }
            Ok(granted)
        });
        match voted.await {
            Ok(Some(told)) => Vote::Granted(told),
            Ok(None) => Vote::Busy,
            Err(error @ (Error::Conflict { .. } | Error::Config(_))) => Vote::Refused(error),
            Err(error) => Vote::Silent(error),
        }
    }

    /// Acquires the lock here for a claim that holds it elsewhere, unless the claim has ended.
    pub(super) async fn fill(self: Arc<Self>, claim: Arc<NodeClaim>, fence: u64) {
        claim.retaking.store(true, Ordering::SeqCst);
        self.vote(claim.clone(), Some(fence)).await;
        claim.retaking.store(false, Ordering::SeqCst);
    }

    /// Raises the counter under a lock that we hold here. Returns the resulting counter; `None` if
    /// we do not hold the lock.
    pub(super) async fn confirm(
        self: Arc<Self>,
        claim: Arc<NodeClaim>,
        lease: Arc<Lease>,
        fence: u64,
    ) -> Result<Option<u64>> {
        let state = claim.state.lock().await;
        if !state.held {
            return Ok(None);
        }
        let names = self.store.names(&lease.key);
        let (token, fence) = (lease.token.to_string(), fence.to_string());
        let field = entry(&token, &token, lease.mode);
        let (keys, life) = ([names.lock().to_owned(), names.state()], millis(life(lease.ttl)));
        let args = [field.as_str(), &fence, &life, &names.stem()];
        let call = Call { script: &CONFIRM, keys: &keys, args: &args, hinted: false, replicas: 0 };
        let doing = "agree on a fence";
        let answer = self.within(async {
            let reply = self.link.call(&call).await.map_err(|error| sort(doing, error))?;
            match reply.value {
                Value::Int(there) => Ok(u64::try_from(there).ok()),
                other => Err(garbage(doing, &other)),
            }
        });
        let there = answer.await?;
        claim.note_counter(there.unwrap_or(0));
        Ok(there)
    }

    /// Releases whatever the claim has or may have here. True if it held the lock until now.
    ///
    /// With `last`, nothing more is acquired in its name.
    pub(super) async fn let_go(
        self: Arc<Self>,
        claim: Arc<NodeClaim>,
        ttl: Duration,
        last: bool,
    ) -> Result<bool> {
        let mut is_told = false;
        let mut state = match claim.state.try_lock() {
            Ok(state) => state,
            // It may not have sent its request yet.
            Err(_) if claim.retaking.load(Ordering::SeqCst) => claim.state.lock().await,
            Err(_) => {
                // An answer is still outstanding. The release does not wait for it: it takes the
                // same connection and arrives after that request, and before whatever is sent next.
                let mut unsure = Part::unsure(self.store.clone(), claim.request.clone());
                is_told = self.within(unsure.release()).await.is_ok();
                claim.state.lock().await
            }
        };
        state.closed |= last;
        if state.clean {
            return Ok(false);
        }
        // Only a request that was answered certainly came first.
        if is_told && state.held {
            return Ok(state.cleared());
        }
        let released = self.within(state.part.release()).await;
        match released {
            Ok(released) => Ok(state.cleared() && released != Released::AlreadyGone),
            Err(error) => {
                let now = Instant::now();
                let mut unreleased = self.unreleased();
                unreleased.retain(|owed| owed.until > now);
                unreleased.push(Unreleased { claim: claim.clone(), until: now + ttl });
                Err(error)
            }
        }
    }

    /// Extends leases.
    pub(super) async fn renew(self: Arc<Self>, leases: Arc<[Lease]>) -> Result<Vec<Renewal>> {
        let mut renewals = Vec::with_capacity(leases.len());
        for some in leases.chunks(RENEWED_AT_ONCE) {
            let renewed = self.within(async {
                let renewed = renew::renew(&self.store, some).await?;
                self.check_age().await?;
                Ok(renewed)
            });
            renewals.extend(renewed.await?);
        }
        Ok(renewals)
    }

    /// How long the server has been running, and its run id.
    pub(super) async fn age(&self) -> Result<(Duration, String)> {
        let doing = "ask how long it runs";
        let info = self.link.command(redis::cmd("INFO").arg("server")).await;
        let info = info.map_err(|error| sort(doing, error))?;
        let info = String::from_redis_value(info).map_err(|error| sort(doing, error.into()))?;
        let field = |name: &str| {
            info.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        let seconds = field("uptime_in_seconds:").and_then(|seconds| seconds.parse().ok());
        match (seconds, field("run_id:")) {
            (Some(seconds), Some(id)) => Ok((Duration::from_secs(seconds), id)),
            _ => Err(Error::broken(NAME, doing, "INFO does not say")),
        }
    }

    /// Closes its connections.
    pub(super) fn close(&self) {
        self.link.close();
    }

    /// Refuses the vote of a server that may have forgotten a lock of another client.
    async fn check_age(&self) -> Result<()> {
        let Some(strict) = self.settings.strict else { return Ok(()) };
        let (age, _) = self.age().await?;
        // Whole seconds, rounded down.
        if age > strict {
            return Ok(());
        }
        let young = format!(
            "it has been running for only {}, and votes after {}",
            humantime::format_duration(age),
            humantime::format_duration(strict)
        );
        Err(Error::unreachable(NAME, "count its vote", young))
    }

    /// Applies the timeout, and tracks whether the server answers.
    async fn within<T>(self: &Arc<Self>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let silence = |why: String| Error::unreachable(NAME, "ask", why);
        if self.paused().is_some_and(|until| Instant::now() < until) {
            return Err(silence("it did not answer a moment ago".to_owned()));
        }
        let (limit, asked) = (self.settings.node_timeout, Instant::now());
        let answer = timeout(limit, work).await.unwrap_or_else(|_| {
            Err(silence(format!("no answer within {}", humantime::format_duration(limit))))
        });
        match &answer {
            // A server that refuses at once costs nothing, and may be back at once.
            Err(error) if error.is_retryable() => {
                let is_slow = asked.elapsed() >= limit / 2;
                *self.paused() = is_slow.then(|| Instant::now() + limit);
            }
            _ => {
                *self.paused() = None;
                self.release_owed();
            }
        }
        answer
    }

    /// Repeats the releases that the server has not received.
    fn release_owed(self: &Arc<Self>) {
        let unreleased = std::mem::take(&mut *self.unreleased());
        if unreleased.is_empty() {
            return;
        }
        let node = self.clone();
        tokio::spawn(async move {
            for owed in unreleased {
                let mut state = owed.claim.state.lock().await;
                if state.clean || owed.until <= Instant::now() {
                    continue;
                }
                match timeout(node.settings.node_timeout, state.part.release()).await {
                    Ok(Ok(_)) => drop(state.cleared()),
                    _ => {
                        drop(state);
                        node.unreleased().push(owed);
                    }
                }
            }
        });
    }

    fn paused(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused.lock().expect("nothing panics under this lock")
    }

    fn unreleased(&self) -> MutexGuard<'_, Vec<Unreleased>> {
        self.unreleased.lock().expect("nothing panics under this lock")
    }
}
