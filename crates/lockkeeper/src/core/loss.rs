//! The end of a hold: by the clock, by the store, or by its release. The first reason counts.
//!
//! Easy to get wrong: whether a lock is still held is computed from the clock at the moment of the
//! question. A flag set by a task would say "yes" as long as that task does not run.

use std::sync::Arc;
use std::time::Duration;

use super::broken::TOLD_WITHIN;
use super::hold::Hold;
use super::release::BackgroundWork;
use crate::engine::Death;
use crate::error::Loss;

impl Hold {
    /// The time left before the holder is signalled to stop; `None` without a limit.
    pub(crate) fn until_signal(&self) -> Option<Duration> {
        let validity = self.state().validity;
        let now = self.inner.clock.now();
        validity.iter().chain(&self.limit).map(|validity| validity.until_signal(&now)).min()
    }

    /// The reason of the loss when the time is up.
    pub(crate) fn run_out(&self) -> Loss {
        let now = self.inner.clock.now();
        match &self.limit {
            Some(limit) if self.fixed || limit.until_signal(&now).is_zero() => Loss::Ended,
            _ => Loss::Expired,
        }
    }

    /// Makes everything that waits for a loss compute its deadline again.
    pub(crate) fn look_at_the_clock(&self) {
        self.changed.notify_waiters();
    }

    /// Ends the hold for this reason; the first reason counts.
    pub(crate) fn end(self: &Arc<Self>, loss: Loss) {
        let kept = {
            let mut state = self.state();
            if state.over.is_some() {
                drop(state);
                return self.ended_later(loss);
            }
            if loss == Loss::Expired {
                state.answers.never_came(&self.inner.place);
            }
            state.over = Some(loss.clone());
            let kept = std::mem::take(&mut state.kept);
            state.asking_why = loss == Loss::Gone && !kept;
            state.stop_listening();
            kept
        };
        self.inner.renewals.forget(self);
        if kept {
            // Nobody uses it, so nobody is told. What the store may still have of it is released.
            tracing::debug!(key = %self.key, reason = %loss, "a kept lock is gone");
            return self.inner.in_background(BackgroundWork::Release(self.clone()));
        }
        self.inner.meters.ended(self.mode, &loss, self.held_for());
        if loss != Loss::Released {
            tracing::warn!(parent: &self.span, key = %self.key, reason = %loss, "lock lost");
            // Other tasks of this process may ask for it again, like clients elsewhere.
            self.inner.local.leave(self);
            if matches!(loss, Loss::Ended | Loss::Expired)
                && self.inner.guarantees.death != Death::Lease
                && !self.kept_when_lost
            {
                // The store keeps it as long as we live, so we release it, once the lease has
                // certainly passed.
                self.inner.in_background(BackgroundWork::ReleaseLater(self.clone()));
            }
        }
        self.changed.notify_waiters();
        if loss == Loss::Gone {
            self.inner.runtime.spawn(self.clone().ask_why(TOLD_WITHIN));
        }
    }

    /// Why it is no longer held, by the clock at this moment.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        if let Err(error) = self.inner.check_process() {
            return Some(Loss::Disconnected(error.to_string()));
        }
        self.loss_here()
    }

    /// Like [`loss`](Hold::loss), in the process that acquired it: a system call less.
    pub(crate) fn loss_here(self: &Arc<Self>) -> Option<Loss> {
        let state = self.state();
        if let Some(loss) = &state.over {
            return Some(loss.clone());
        }
        drop(state);
        if self.until_end()?.is_zero() {
            self.end(self.run_out());
            return self.state().over.clone();
        }
        None
    }

    /// How long it is certainly held without further renewals; `None` without a limit.
    pub(crate) fn until_end(&self) -> Option<Duration> {
        let validity = self.state().validity;
        let now = self.inner.clock.now();
        validity.iter().chain(&self.limit).map(|validity| validity.until_end(&now)).min()
    }

    pub(crate) async fn lost(self: Arc<Self>) -> Loss {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before checking, or a change in between is missed.
            changed.as_mut().enable();
            if let Some(loss) = self.loss() {
                if self.state().asking_why {
                    changed.await;
                    continue;
                }
                // Who broke it may have been learned since.
                return self.loss().unwrap_or(loss);
            }
            if self.inner.is_stopping() {
                return Loss::Shutdown;
            }
            match self.until_signal() {
                Some(Duration::ZERO) => {
                    self.end(self.run_out());
                }
                Some(left) => tokio::select! {
                    biased;
                    () = tokio::time::sleep(left) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }
}
