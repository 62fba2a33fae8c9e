//! Locks that stay near: a released lock waits in the client for its next task, as long as nobody
//! else wants it.
//!
//! A kept lock is a grant that was handed over to nobody yet: a hold without a guard, with the next
//! reserved fence. The next task that wants it on the same terms takes it without the store. It is
//! renewed like any other hold, and really released when anybody else wants it, when its time or its
//! fences are used up, and when the client stops.
//!
//! Easy to get wrong: whether it is kept, and whether it is over, are changed together under the
//! hold's lock, so that a loss and a task that takes it cannot miss each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::hand_over::HandOver;
use super::hold::Hold;
use super::release::BackgroundWork;
use super::renewal;
use super::terms::Terms;
use crate::engine::Signal;
use crate::error::Loss;
use crate::guard::Guard;

/// How long a lock is kept before the store is told, for people who look: a lock that is taken again
/// at once would cost a request each time.
const SHOWN_AFTER: Duration = Duration::from_millis(50);

/// What is known about a grant that may be kept.
pub(super) struct Keep {
    /// How long it is kept, from its first release.
    span: Duration,
    /// Set at the first release.
    until: OnceLock<Instant>,
    /// Whether it has to go back to the store.
    over: AtomicBool,
    phase: Mutex<Phase>,
    changed: Notify,
}

struct Phase {
    kept: bool,
    /// When it was last released, or granted.
    released: Instant,
    /// Whether the store shows it as kept.
    shown: bool,
    /// Whether its attendant sleeps until it is notified.
    dozing: bool,
}

/// What the attendant of a grant does next.
enum Step {
    /// Tell the store whether it is kept.
    Show,
    /// Wait until this time, or for a change.
    Wait(Option<Instant>),
    Over,
}

impl Keep {
    pub(super) fn new(span: Duration) -> Self {
        let phase = Phase { kept: false, released: Instant::now(), shown: false, dozing: false };
        Self {
            span,
            until: OnceLock::new(),
            over: AtomicBool::new(false),
            phase: Mutex::new(phase),
            changed: Notify::new(),
        }
    }

    /// Whether the store has to decide again. Called at every release, so the time counts from the
    /// first one.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let until = self.until.get_or_init(|| {
            self.changed.notify_one();
            now.checked_add(self.span).unwrap_or(now)
        });
        now >= *until || self.over.load(Ordering::SeqCst)
    }

    /// It was released, and is kept or handed over to another task.
    pub(super) fn released(&self, kept: bool, now: Instant) {
        let mut phase = self.phase();
        (phase.kept, phase.released) = (kept, now);
        if std::mem::take(&mut phase.dozing) {
            drop(phase);
            self.changed.notify_one();
        }
    }

    fn taken(&self) {
        let mut phase = self.phase();
        phase.kept = false;
        if phase.shown {
            drop(phase);
            self.changed.notify_one();
        }
    }

    /// `shows` means that the store can be told now.
    fn step(&self, now: Instant, shows: bool) -> Step {
        let until = self.until.get().copied();
        if until.is_some_and(|until| now >= until) {
            return Step::Over;
        }
        let mut phase = self.phase();
        let show_at = phase.released + SHOWN_AFTER;
        match (phase.kept, phase.shown) {
            (true, false) | (false, true) if !shows => Step::Wait(until),
            (true, false) | (false, true) if phase.shown || now >= show_at => {
                phase.shown = phase.kept;
                Step::Show
            }
            // It may be taken and released a million times until then.
            (_, false) if now < show_at => {
                Step::Wait(Some(until.map_or(show_at, |until| until.min(show_at))))
            }
            (kept, _) => {
                phase.dozing = !kept;
                Step::Wait(until)
            }
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().expect("nothing panics under this lock")
    }
}

/// The task of a grant that may be kept: learns who wants it, ends it in time, and tells the store
/// whether it is kept.
pub(super) async fn attend(hand_over: Arc<HandOver>, mut wanted: Signal) {
    let Some(keep) = &hand_over.keep else { return };
    let mut showing: Option<JoinHandle<()>> = None;
    loop {
        // One request at a time, or they might overtake each other.
        let until = match keep.step(Instant::now(), showing.is_none()) {
            Step::Over => break,
            Step::Show => {
                let Some(hold) = hand_over.holder() else { return };
                showing = Some(hold.inner.runtime.spawn(renewal::tell(hold.clone())));
                continue;
            }
            Step::Wait(until) => until,
        };
        let time = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let shown = async {
            match &mut showing {
                Some(request) => _ = request.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = &mut wanted => break,
            () = time => {}
            () = keep.changed.notified() => {}
            () = shown => showing = None,
        }
    }
    keep.over.store(true, Ordering::SeqCst);
    let Some(holder) = hand_over.holder() else { return };
    // With the queue locked: whoever releases it later sees that it is over.
    if let Some(kept) = holder.inner.local.kept(holder.key()) {
        kept.let_go_in_background();
    }
}

impl Hold {
    /// Whether it is kept for the next task.
    pub(super) fn is_kept(&self) -> bool {
        self.may_be_kept() && self.state().kept
    }

    fn may_be_kept(&self) -> bool {
        self.hand_over.as_ref().is_some_and(|hand_over| hand_over.keep.is_some())
    }

    /// Whether it is kept at this moment; `None` if it never is.
    pub(super) fn kept_now(&self) -> Option<bool> {
        self.may_be_kept().then(|| self.state().kept)
    }

    /// Takes a lock that is kept. `None` if these terms are others, or the store has to decide
    /// again. Called with `local` locked.
    pub(super) fn take_kept(self: &Arc<Self>, terms: &Terms) -> Option<Guard> {
        let hand_over = self.hand_over.as_ref()?;
        let keep = hand_over.keep.as_ref()?;
        let now = self.inner.clock.now();
        if !hand_over.terms.keep_for(terms) || keep.is_over(now.runtime()) {
            return None;
        }
        let mut state = self.state();
        let is_short = state.validity.is_some_and(|validity| !validity.is_half_left(&now));
        if !state.kept || state.over.is_some() || is_short {
            return None;
        }
        (state.kept, state.taken) = (false, Some(now.runtime()));
        drop(state);
        self.guards.store(1, Ordering::Relaxed);
        keep.taken();
        self.inner.meters.held(self.mode);
        Some(Guard::first(self))
    }

    /// Ends a hold that is kept; the caller releases it. False if it is not kept any more.
    pub(super) fn let_go(self: &Arc<Self>) -> bool {
        {
            let mut state = self.state();
            if !std::mem::take(&mut state.kept) {
                return false;
            }
            state.over = Some(Loss::Released);
            state.stop_listening();
        }
        self.inner.renewals.forget(self);
        true
    }

    /// Releases it if it is kept.
    pub(super) fn let_go_in_background(self: &Arc<Self>) {
        if self.let_go() {
            self.inner.in_background(BackgroundWork::Release(self.clone()));
        }
    }
}
