//! The watchdog: one task per client renews all its leases, many in one call.
//!
//! A lease is renewed every third of its length, and retried every sixth until an answer comes. An
//! answer counts from before its request was sent; no answer changes nothing, so the clock runs on.
//! A call that hangs delays no other: every batch has its own task.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::acquire::CALL_LIMIT;
use super::hold::Hold;
use crate::core::clock::{Clock, Moment};
use crate::core::telemetry::Meters;
use crate::engine::{Engine, Renewal};
use crate::error::{Loss, Result};
use crate::layers::Call;

/// The number of leases in one call.
const BATCH: usize = 600;

/// The number of leases processed in one pass.
const PASS: usize = 8 * BATCH;

/// How often the clocks are compared while anything is held, to detect a suspend.
const TICK: Duration = Duration::from_secs(1);

/// A difference between clocks that is larger than the time it takes to read them.
const JUMP: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Renewals {
    schedule: Mutex<Schedule>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    /// By time, then by age: the order must be deterministic, or a simulation cannot be repeated.
    due: BTreeMap<(Instant, u64), Arc<Hold>>,
    /// When the task next wakes by itself. `None`: not before it is notified.
    next: Option<Instant>,
    /// Whether a hold was added since the last pass.
    fresh: bool,
}

impl Renewals {
    /// Adds a hold, or moves its next check.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, at: Instant) {
        let mut schedule = self.lock();
        if hold.is_over() {
            return;
        }
        schedule.schedule(hold, at);
        schedule.fresh = true;
        // Usually the task wakes by itself soon enough: notifying it costs more than all the rest.
        if schedule.next.is_none_or(|next| at < next) {
            schedule.next = Some(at);
            drop(schedule);
            self.wake.notify_one();
        }
    }

    /// Puts the hold that a grant was handed over to in the place of the one before.
    pub(crate) fn replace(&self, hold: &Hold, next: &Arc<Hold>) {
        let mut schedule = self.lock();
        let Some(due) = hold.set_due(None) else { return };
        schedule.due.remove(&(due, hold.id()));
        if !next.is_over() {
            schedule.schedule(next, due);
        }
    }

    /// Removes a hold.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        let mut schedule = self.lock();
        if let Some(due) = hold.set_due(None) {
            schedule.due.remove(&(due, hold.id()));
        }
    }

    /// Ends the task.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// The task. Ends when the client and all its guards are gone.
    pub(crate) async fn run(
        self: Arc<Self>,
        engine: Arc<dyn Engine>,
        clock: Clock,
        meters: Arc<Meters>,
    ) {
        let mut last = clock.now();
        while !self.closed.load(Ordering::Relaxed) {
            let now = clock.now();
            if now.jump_since(&last) > JUMP {
                self.recheck_all_clocks();
            }
            last = now;
            let (due, next) = self.take_due(now.runtime());
            for batch in due.chunks(BATCH) {
                let (renewals, engine) = (self.clone(), engine.clone());
                tokio::spawn(renew(renewals, engine, batch.to_vec(), clock, meters.clone()));
            }
            match next {
                Some(next) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(next) => {}
                    () = self.wake.notified() => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Ends the holds whose time is up, and returns those to be renewed now; each is due again
    /// after a sixth of its lease.
    fn take_due(&self, now: Instant) -> (Vec<Arc<Hold>>, Option<Instant>) {
        let mut over = Vec::new();
        let mut batch = Vec::new();
        let mut schedule = self.lock();
        // A limited number at a time, so that the lock is not held for long.
        while batch.len() < PASS
            && let Some(((at, _), hold)) = schedule.due.first_key_value()
        {
            // A little early, so that leases acquired one after the other share a call from then
            // on; and earlier still if a call that is made anyway has room, but not twice in one
            // pass.
            let early = if batch.len().is_multiple_of(BATCH) { 30 } else { 8 };
            if *at > now + hold.length() / early || (hold.is_fixed() && *at > now) {
                break;
            }
            let hold = hold.clone();
            if hold.until_signal().is_some_and(|left| left.is_zero()) {
                schedule.due.pop_first();
                hold.set_due(None);
                over.push(hold);
            } else if hold.is_fixed() {
                // Nothing to renew; the clock has just not reached the end yet.
                let left = hold.until_signal().unwrap_or(TICK).max(Duration::from_millis(1));
                schedule.schedule(&hold, now + left);
            } else {
                schedule.due.pop_first();
                hold.set_due(None);
                batch.push(hold);
            }
        }
        // Only now: a fixed lease that is about to end would be due again in the same pass.
        for hold in &batch {
            schedule.schedule(hold, now + hold.pace(hold.length() / 6));
        }
        let first = schedule.due.first_key_value().map(|((at, _), _)| *at);
        // While there is anything to do, compare the clocks once per tick. Stay awake for one tick
        // more, because otherwise locks that are held only briefly would wake the task each time.
        let busy = first.is_some() || std::mem::take(&mut schedule.fresh);
        schedule.next = busy.then(|| first.map_or(now + TICK, |at| at.min(now + TICK)));
        let next = schedule.next;
        drop(schedule);
        for hold in over {
            hold.end(hold.run_out());
        }
        (batch, next)
    }

    /// Renews everything at once that is not being renewed.
    pub(crate) fn renew_all_now(&self) {
        let mut schedule = self.lock();
        let now = Instant::now();
        for hold in std::mem::take(&mut schedule.due).into_values() {
            let due = hold.set_due(None).unwrap_or(now);
            let waits = hold.is_fixed() || hold.state().answers.are_missing();
            schedule.schedule(&hold, if waits { due } else { due.min(now) });
        }
        schedule.next = schedule.due.first_key_value().map(|((at, _), _)| *at);
        drop(schedule);
        self.wake.notify_one();
    }

    fn recheck_all_clocks(&self) {
        let mut schedule = self.lock();
        let now = Instant::now();
        for hold in std::mem::take(&mut schedule.due).into_values() {
            schedule.schedule(&hold, now);
        }
        for hold in schedule.due.values() {
            hold.look_at_the_clock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().expect("nothing panics under this lock")
    }
}

impl Schedule {
    fn schedule(&mut self, hold: &Arc<Hold>, at: Instant) {
        if let Some(before) = hold.set_due(Some(at)) {
            self.due.remove(&(before, hold.id()));
        }
        self.due.insert((at, hold.id()), hold.clone());
    }
}

/// Renews a hold now, for a caller that wants the answer. `None` if there is none in time.
pub(crate) async fn renew_now(hold: &Arc<Hold>) -> Option<Result<Renewal>> {
    let inner = hold.inner();
    let (renewals, engine) = (inner.renewals.clone(), inner.engine.clone());
    let asking = renew(renewals, engine, vec![hold.clone()], inner.clock, inner.meters.clone());
    // In its own task, which runs to completion: the watchdog relies on that.
    let asking = inner.runtime.spawn(asking);
    let answers = tokio::time::timeout(CALL_LIMIT, asking).await.ok()?.ok()?;
    Some(answers.map(|answers| answers.first().copied().unwrap_or(Renewal::Unknown)))
}

/// Renews a hold now, to tell the store whether it is kept.
pub(super) async fn tell(hold: Arc<Hold>) {
    let inner = hold.inner().clone();
    let (renewals, engine) = (inner.renewals.clone(), inner.engine.clone());
    // What it is answered concerns the hold itself.
    let _ = renew(renewals, engine, vec![hold], inner.clock, inner.meters.clone()).await;
}

/// A renewal sent at `asked` was confirmed. It counts for the grant, which may have been passed on
/// since.
fn renewed(renewals: &Renewals, mut hold: Arc<Hold>, asked: Moment) {
    while !hold.renewed(asked) {
        let current = hold.current();
        if Arc::ptr_eq(&current, &hold) {
            return;
        }
        hold = current;
    }
    renewals.watch(&hold, asked.runtime() + hold.pace(hold.ttl() / 3));
}

async fn renew(
    renewals: Arc<Renewals>,
    engine: Arc<dyn Engine>,
    holds: Vec<Arc<Hold>>,
    clock: Clock,
    meters: Arc<Meters>,
) -> Result<Vec<Renewal>> {
    let leases: Vec<_> = holds.iter().map(|hold| hold.lease_now()).collect();
    let asked = clock.now();
    let late: Vec<_> = holds.iter().filter(|hold| hold.asking()).cloned().collect();
    if !late.is_empty() {
        let engine = engine.clone();
        // In parallel with the renewal, which must not wait for it.
        tokio::spawn(async move {
            if let Some(cause) = engine.why_silent().await {
                late.iter().for_each(|hold| hold.silent_because(cause.clone()));
            }
        });
    }
    let answers = meters.call(Call::Renew, engine.renew(&leases, asked)).await;
    let answers = match answers {
        Ok(answers) => answers,
        Err(error) => {
            holds.iter().for_each(|hold| hold.asked(Some(error.to_string())));
            tracing::warn!(%error, leases = leases.len(), "a renewal got no answer and will be retried");
            meters.renewals_unknown(leases.len());
            if let Some(hold) = holds.first() {
                hold.inner().reachability.failed(&error);
            }
            return Err(error);
        }
    };
    for (hold, answer) in holds.iter().zip(answers.iter().copied()) {
        let unknown = (answer == Renewal::Unknown).then(|| "the engine cannot tell".to_owned());
        hold.asked(unknown);
        match answer {
            Renewal::Renewed => renewed(&renewals, hold.clone(), asked),
            Renewal::Gone => {
                meters.renewal_gone();
                hold.end(Loss::Gone);
            }
            Renewal::Unknown => meters.renewals_unknown(1),
        }
    }
    // After that: whoever hears of it looks at the holds.
    if let Some(hold) = holds.first()
        && answers.iter().any(|answer| *answer != Renewal::Unknown)
    {
        hold.inner().reachability.answered();
    }
    Ok(answers)
}
