//! Bugs that real lock libraries have had, to verify that the checker would find them here.
//!
//! [`Buggy`] wraps the engine of a client. Some bugs are those of an engine, others those of the
//! core: these are imitated by an engine with the same effect, and the comment says what it stands
//! for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper::clock::{Clock, Moment};
use lockkeeper::engine::{
    Break, Breaker, Claim, Engine, Entry, Grant, Guarantees, Held, Lease, Mode, Query, Released,
    Renewal, Request, Signal, Snapshot,
};
use lockkeeper::{Fence, Key, Result, Token};

/// Lists the bugs with their names.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)*) => {
        /// The bug.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$bug,)*];

            /// Its name on a command line.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$bug => $name,)* }
            }
        }
    };
}

bugs! {
    /// A release frees the key, whatever holds it by now.
    ReleaseWithoutOwnerCheck = "release-without-owner-check",
    /// A renewal is confirmed as long as the key has any holder.
    RenewWithoutOwnerCheck = "renew-without-owner-check",
    /// A renewal that finds nothing acquires the lock again.
    RenewRecreates = "renew-recreates",
    /// A renewal without an answer counts as confirmed.
    UnknownIsYes = "silence-is-renewal",
    /// The lease is counted from the reply instead of from the request. The core counts from the
    /// request; here the reply reports a lease that is longer by the time the reply took.
    ValidityFromReply = "validity-from-reply",
    /// Nothing is deducted from a lease for clock drift. The core deducts it; here the lease is
    /// reported longer by as much.
    NoDriftAllowance = "no-drift-allowance",
    /// The loss is a flag that a task sets when a renewal is answered, not a check of the clock.
    /// The core checks the clock; here it is told that there is no lease.
    LostByFlag = "lost-by-flag",
    /// An attempt without an answer is abandoned without undoing what it may have done.
    NoCompensation = "no-compensation",
    /// An attempt without an answer is repeated with another token.
    NewTokenOnRetry = "new-token-on-retry",
    /// A wake-up is taken for a grant.
    NoRecheckAfterWait = "no-recheck-after-wait",
    /// Every other grant repeats the fence of the one before.
    FenceNotRaised = "fence-not-raised",
    /// Every client has its own fence counter.
    FencePerClient = "fence-per-client",
    /// Every permit is slot 0.
    OneSlotForAll = "one-slot-for-all",
    /// Writers are granted like readers.
    WriterAsReader = "writer-as-reader",
    /// A reader that finds the lock busy enters all the same.
    ReaderBesideWriter = "reader-beside-writer",
    /// A release that got no answer is repeated by key, and frees whatever is held by then.
    RepeatedReleaseByKey = "repeated-release-by-key",
    /// A waiter asks again only when it is woken, and every other wake-up is dropped.
    WakeUpDropped = "wake-up-dropped",
    /// Every fourth release of permits never reaches the store.
    PermitLeaked = "permit-leaked",
    /// The fence counter is lost after every eight grants, and starts again.
    FenceFromLostCounter = "fence-from-lost-counter",
    /// The fences that a grant reserves, for the tasks of a client to hand the lock over with, are
    /// granted to others as well.
    ReservedFencesNotKept = "reserved-fences-not-kept",
    /// The first of the reserved fences is that of the grant: it is passed on with the lock.
    FencePassedOn = "fence-passed-on",
    /// A client that keeps a lock after its release does not learn that others want it.
    WishIgnored = "wish-ignored",
}

/// An engine with a bug.
#[derive(Debug, Clone)]
pub struct Buggy {
    engine: Arc<dyn Engine>,
    bug: Bug,
    /// The leases that were really granted, if the client was told something else.
    real: Arc<Mutex<HashMap<Token, Duration>>>,
    fences: Arc<AtomicU64>,
    /// Counts the calls of which some go wrong.
    calls: Arc<AtomicU64>,
}

impl Buggy {
    /// Puts a bug into an engine.
    pub fn new(engine: Arc<dyn Engine>, bug: Bug) -> Self {
        Self { engine, bug, real: Arc::default(), fences: Arc::default(), calls: Arc::default() }
    }

    /// Reports a longer lease to the client than it has.
    fn exaggerate(&self, grant: &mut Grant, token: Token, ttl: Duration) {
        let real = std::mem::replace(&mut grant.ttl, ttl);
        self.real.lock().expect("nothing panics under this lock").insert(token, real);
    }

    fn real(&self, lease: &Lease) -> Lease {
        let real = self.real.lock().expect("nothing panics under this lock");
        let mut lease = lease.clone();
        lease.ttl = real.get(&lease.token).copied().unwrap_or(lease.ttl);
        lease
    }

    async fn somebody_holds(&self, key: &Key) -> bool {
        let snapshots = self.engine.inspect(&Query::Key(key.clone())).await;
        snapshots.is_ok_and(|found| found.iter().any(|snapshot| !snapshot.holders.is_empty()))
    }

    async fn take_anew(&self, lease: &Lease, asked: Moment) -> bool {
        let mut request = Request::new(lease.key.clone(), lease.token, lease.mode, lease.ttl);
        request.owner = lease.owner.clone();
        request.queue = false;
        matches!(self.engine.claim(request).attempt(asked).await, Ok(Some(_)))
    }

    /// A grant that no store made.
    async fn imagine(&self, request: &Request, asked: Moment) -> Result<Option<Grant>> {
        let query = Query::Key(request.key.clone());
        let snapshots = self.engine.inspect(&query).await?;
        let last = snapshots.first().and_then(|snapshot| snapshot.fence).unwrap_or_default();
        // Readers carry the fence of the last writer.
        let next = last.get() + u64::from(request.mode != Mode::Read);
        Ok(Some(Grant::new(Fence::new(next), request.ttl, asked)))
    }
}

#[async_trait]
impl Engine for Buggy {
    fn guarantees(&self) -> Guarantees {
        self.engine.guarantees()
    }

    fn claim(&self, mut request: Request) -> Box<dyn Claim> {
        if self.bug == Bug::WriterAsReader && request.mode == Mode::Write {
            request.mode = Mode::Read;
        }
        let mut really = request.clone();
        if self.bug == Bug::ReservedFencesNotKept {
            really.reserve = 0;
        }
        let claim = self.engine.claim(really);
        let [failed, waiting, woken, unconfirmed] = [false; 4];
        let engine = self.clone();
        Box::new(BuggyClaim { claim, request, engine, failed, waiting, woken, unconfirmed })
    }

    async fn renew(&self, leases: &[Lease], asked: Moment) -> Result<Vec<Renewal>> {
        let leases: Vec<_> = leases.iter().map(|lease| self.real(lease)).collect();
        let mut renewals = match self.engine.renew(&leases, asked).await {
            Err(_) if self.bug == Bug::UnknownIsYes => vec![Renewal::Renewed; leases.len()],
            renewals => renewals?,
        };
        for (renewal, lease) in renewals.iter_mut().zip(&leases) {
            let yes = *renewal == Renewal::Gone
                && match self.bug {
                    Bug::RenewWithoutOwnerCheck => self.somebody_holds(&lease.key).await,
                    Bug::RenewRecreates => self.take_anew(lease, asked).await,
                    _ => false,
                };
            if yes {
                *renewal = Renewal::Renewed;
            }
        }
        Ok(renewals)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>> {
        self.engine.inspect(query).await
    }

    async fn break_lock(&self, key: &Key, by: &Breaker) -> Result<Vec<Entry>> {
        self.engine.break_lock(key, by).await
    }

    async fn broken(&self) -> Result<Vec<Break>> {
        self.engine.broken().await
    }

    fn lease_of(&self, ttl: Duration) -> Duration {
        self.engine.lease_of(ttl)
    }

    fn ordered(&self) -> bool {
        self.engine.ordered()
    }

    fn clock(&self) -> Clock {
        self.engine.clock()
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}

/// A hold that only a message ends, not the clock.
#[derive(Debug)]
struct Endless;

impl Held for Endless {
    fn expires(&self) -> bool {
        false
    }
}

/// A hold that nobody's wish reaches.
#[derive(Debug)]
struct Deaf(Arc<dyn Held>);

impl Held for Deaf {
    fn expires(&self) -> bool {
        self.0.expires()
    }

    fn wanted(&self) -> Option<Signal> {
        self.0.wanted().map(|_| -> Signal { Box::pin(std::future::pending()) })
    }
}

#[derive(Debug)]
struct BuggyClaim {
    claim: Box<dyn Claim>,
    request: Request,
    engine: Buggy,
    /// Whether the last attempt got no answer.
    failed: bool,
    /// Whether it has waited.
    waiting: bool,
    /// Whether it waited and was woken.
    woken: bool,
    /// Whether a release got no answer.
    unconfirmed: bool,
}

#[async_trait]
impl Claim for BuggyClaim {
    async fn attempt(&mut self, asked: Moment) -> Result<Option<Grant>> {
        let engine = &self.engine;
        if engine.bug == Bug::WakeUpDropped && self.waiting && !self.woken {
            return Ok(None);
        }
        if engine.bug == Bug::NewTokenOnRetry && self.failed {
            self.request.token = Token::fresh();
            self.claim = engine.engine.claim(self.request.clone());
        }
        let answer = self.claim.attempt(asked).await;
        self.failed = answer.is_err();
        let Some(mut grant) = answer? else {
            let believes = match engine.bug {
                Bug::NoRecheckAfterWait => self.woken,
                Bug::ReaderBesideWriter => self.request.mode == Mode::Read,
                _ => false,
            };
            return if believes { engine.imagine(&self.request, asked).await } else { Ok(None) };
        };
        match engine.bug {
            Bug::ValidityFromReply => {
                let ttl = grant.ttl + engine.clock().since(&asked);
                engine.exaggerate(&mut grant, self.request.token, ttl);
            }
            Bug::NoDriftAllowance => {
                let ttl = (grant.ttl + Duration::from_millis(2)) * 100 / 99;
                engine.exaggerate(&mut grant, self.request.token, ttl);
            }
            Bug::LostByFlag => grant.held = Arc::new(Endless),
            Bug::FenceNotRaised => grant.fence = Fence::new(grant.fence.get() & !1),
            Bug::FencePerClient => {
                grant.fence = Fence::new(engine.fences.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Bug::FenceFromLostCounter => grant.fence = Fence::new(1 + grant.fence.get() % 8),
            Bug::ReservedFencesNotKept => grant.reserved = self.request.reserve,
            // Stands for a hand-over in the core that does not count on.
            Bug::FencePassedOn if grant.reserved > 0 => {
                grant.fence = Fence::new(grant.fence.get() - 1);
            }
            Bug::WishIgnored => grant.held = Arc::new(Deaf(grant.held)),
            Bug::OneSlotForAll => grant.slots.fill(0),
            _ => {}
        }
        Ok(Some(grant))
    }

    async fn wait(&mut self) -> Result<()> {
        (self.waiting, self.woken) = (true, false);
        let waited = self.claim.wait().await;
        let engine = &self.engine;
        if engine.bug == Bug::WakeUpDropped
            && engine.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        {
            return std::future::pending().await;
        }
        self.woken = true;
        waited
    }

    async fn release(&mut self) -> Result<Released> {
        let engine = &self.engine;
        if engine.bug == Bug::NoCompensation && self.failed {
            return Ok(Released::Yes);
        }
        if engine.bug == Bug::PermitLeaked
            && matches!(self.request.mode, Mode::Permits { .. })
            && engine.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(4)
        {
            return Ok(Released::Yes);
        }
        let released = self.claim.release().await;
        let free_it = match (engine.bug, &released) {
            (Bug::ReleaseWithoutOwnerCheck, Ok(Released::AlreadyGone)) => true,
            (Bug::RepeatedReleaseByKey, Ok(_)) => self.unconfirmed,
            _ => false,
        };
        self.unconfirmed |= released.is_err();
        if free_it {
            let by = Breaker::new(self.request.who.clone(), None);
            engine.engine.break_lock(&self.request.key, &by).await?;
        }
        released
    }
}
