//! What a client's locks, guards and background tasks share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

use super::clock::Clock;
use super::count::{Count, Counted};
use super::local_queue::LocalQueues;
use super::outage::{self, Reachability};
use super::release::{self, BackgroundWork};
use super::renewal::Renewals;
use super::telemetry::Meters;
use crate::engine::{Engine, Guarantees};
use crate::error::{Error, Result};
use crate::owner::{TokenSource, random};
use crate::who::{command_line, signature};

/// How long the last handle waits for pending releases.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// What all locks, guards and background tasks of a client share.
pub(crate) struct Inner {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) guarantees: Guarantees,
    pub(crate) place: String,
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
    pub(crate) local: LocalQueues,
    pub(crate) renewals: Arc<Renewals>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) reachability: Reachability,
    /// The task that asks whether the store can be reached.
    watch: OnceLock<AbortHandle>,
    pub(crate) tokens: TokenSource,
    /// The identity that is recorded with its locks.
    who: RwLock<Arc<str>>,
    /// The process that created the client.
    process: u32,
    /// How many clients, locks and guards the user has.
    handles: AtomicUsize,
    background: mpsc::UnboundedSender<(BackgroundWork, Counted)>,
    pub(crate) pending: Arc<Count>,
    /// The number of guards, of locks that are held or lost, plus the acquires in progress.
    pub(crate) guards: Arc<Count>,
    stopping: AtomicBool,
    /// Whether the engine is being closed, and no released lock is kept.
    closing: AtomicBool,
    /// Notified once `stopping` is set.
    stopped: Notify,
}

impl Inner {
    /// Starts the background tasks of a new client.
    pub(crate) fn start(engine: Arc<dyn Engine>, place: String, runtime: Handle) -> Arc<Self> {
        let (background, queue) = mpsc::unbounded_channel();
        let renewals = Arc::new(Renewals::default());
        let clock = engine.clock();
        let meters = Arc::new(Meters::new(engine.guarantees().engine));
        let process = std::process::id();
        reseed(process);
        runtime.spawn(renewals.clone().run(engine.clone(), clock, meters.clone()));
        runtime.spawn(release::background(queue));
        let inner = Arc::new(Self {
            guarantees: engine.guarantees(),
            engine,
            place,
            clock,
            runtime,
            local: LocalQueues::default(),
            renewals,
            meters,
            reachability: Reachability::default(),
            watch: OnceLock::new(),
            tokens: TokenSource::new(),
            who: RwLock::new(signature(Some(&command_line()))),
            process,
            handles: AtomicUsize::new(0),
            background,
            pending: Arc::default(),
            guards: Arc::default(),
            stopping: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            stopped: Notify::new(),
        });
        if let Some(broken) = inner.engine.disconnected() {
            let watch = outage::watch(Arc::downgrade(&inner), inner.engine.clone(), broken);
            let _ = inner.watch.set(inner.runtime.spawn(watch).abort_handle());
        }
        inner
    }

    /// One more client, lock or guard in the user's hands.
    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// One less. The last one releases what is kept, and waits for pending releases.
    pub(crate) fn remove_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            if !self.is_inherited() {
                self.local.let_go_of_all();
            }
            self.linger();
        }
    }

    /// Refuses new acquires from now on, and notifies waiters and holders.
    pub(crate) fn stop(&self) {
        // Sequentially consistent with the guard count: an acquire counts itself, then looks at the
        // flag; we set the flag, then count.
        self.stopping.store(true, Ordering::SeqCst);
        self.stopped.notify_waiters();
        self.local.let_go_of_all();
        for hold in self.local.holds() {
            hold.look_at_the_clock();
        }
    }

    /// Keeps no released lock from now on.
    pub(crate) fn keep_no_more(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.local.let_go_of_all();
    }

    /// Whether a lock may be passed on or kept without the store.
    pub(crate) fn keeps(&self) -> bool {
        !self.is_stopping() && !self.closing.load(Ordering::SeqCst)
    }

    pub(crate) fn engine_name(&self) -> &'static str {
        self.guarantees.engine
    }

    /// The identity that is recorded with its locks.
    pub(crate) fn who(&self) -> Arc<str> {
        self.who.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records this as the command that takes its locks, or none.
    pub(crate) fn set_command(&self, command: Option<&str>) {
        *self.who.write().unwrap_or_else(PoisonError::into_inner) = signature(command);
    }

    /// Whether this process was forked from the one that created the client. The threads stayed in
    /// the parent, and two processes cannot share its connections.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Refuses to work in a forked process.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub(crate) fn check_process(&self) -> Result<()> {
        if !self.is_inherited() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "this client belongs to process {}, from which this one was forked; make a client here",
            self.process
        )))
    }

    /// Waits for work in progress, if other threads can complete it meanwhile.
    fn linger(&self) {
        if self.is_inherited()
            || self.pending.is_zero()
            || self.runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
        {
            return;
        }
        let here = Handle::try_current().is_ok_and(|current| current.id() == self.runtime.id());
        if here && self.runtime.metrics().num_workers() == 1 && tokio::task::try_id().is_some() {
            // As far as we can tell, this thread is the one that would have to do the work.
            return;
        }
        // A task in a worker's LIFO slot cannot be stolen by other workers: spawning another task
        // pushes the one we wait for out of that slot. A runtime that is shutting down ends every
        // new task at once.
        let bystander = self.runtime.spawn(std::future::pending::<()>());
        let is_over = bystander.is_finished();
        bystander.abort();
        if !is_over && !self.pending.wait(LINGER) {
            tracing::warn!("some releases were not confirmed in time; their leases will expire");
        }
    }

    /// Hands work to the background task.
    pub(crate) fn in_background(&self, work: BackgroundWork) {
        // Fails if the runtime is gone. Then the claim is dropped, and its lease expires.
        let _ = self.background.send((work, self.pending()));
    }

    /// Runs work to completion in its own task, for callers that may spawn one: fewer hops than the
    /// background task.
    pub(crate) fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        let pending = self.pending();
        self.runtime.spawn(async move {
            work.await;
            drop(pending);
        });
    }

    /// Counts work that `close` waits for.
    pub(crate) fn pending(&self) -> Counted {
        Counted::new(&self.pending)
    }

    /// Counts a guard or an acquire in progress, which `shutdown` waits for.
    pub(crate) fn guard(&self) -> Counted {
        Counted::new(&self.guards)
    }

    /// Whether the client is shutting down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Resolves when the client is shutting down.
    pub(crate) async fn stopped(&self) {
        // Created before the check, or a notification in between would be missed.
        let stopped = self.stopped.notified();
        if !self.is_stopping() {
            stopped.await;
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.renewals.close();
        if let Some(watch) = self.watch.get() {
            // It waits for the engine, which it would keep alive.
            watch.abort();
        }
    }
}

/// Reseeds this thread's generator of random delays in a forked process, where it would otherwise
/// produce the same delays as its siblings.
fn reseed(process: u32) {
    static SEEDED: AtomicU32 = AtomicU32::new(0);
    let before = SEEDED.swap(process, Ordering::Relaxed);
    if before != 0 && before != process {
        fastrand::seed(random() as u64);
    }
}
