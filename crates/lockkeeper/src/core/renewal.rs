//! The watchdog: one task per client renews all its leases, many in one call.
//!
//! A lease is renewed every third of its length, and asked about again every sixth until an answer
//! comes. An answer counts from before its question left; no answer changes nothing, so the clock runs on.
//! A call that hangs keeps nobody waiting: every batch is a task of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::acquire::CALL_LIMIT;
use super::hold::Hold;
use crate::core::clock::Clock;
use crate::core::telemetry::Meters;
use crate::engine::{Engine, Renewal};
use crate::error::{Loss, Result};
use crate::layers::Call;

/// How many leases go into one call.
const BATCH: usize = 600;

/// How many leases are looked at in one go.
const PASS: usize = 8 * BATCH;

/// How often the clocks are compared while anything is held, to notice a suspend.
const TICK: Duration = Duration::from_secs(1);

/// A difference between clocks that is more than their reading takes.
const JUMP: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct Renewals {
    schedule: Mutex<Schedule>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Schedule {
    /// By time, then by age: the order must not depend on chance, or a simulation cannot be repeated.
    due: BTreeMap<(Instant, u64), Arc<Hold>>,
    /// When the task looks next by itself. `None`: not before it is woken.
    next: Option<Instant>,
    /// Whether anything came since the task looked last.
    fresh: bool,
}

impl Renewals {
    /// Starts to look after a hold, or moves its next round.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, at: Instant) {
        let mut schedule = self.lock();
        if hold.is_over() {
            return;
        }
        schedule.schedule(hold, at);
        schedule.fresh = true;
        // The task wakes by itself soon enough in most cases: waking it costs more than all the rest.
        if schedule.next.is_none_or(|next| at < next) {
            schedule.next = Some(at);
            drop(schedule);
            self.wake.notify_one();
        }
    }

    /// Stops looking after a hold.
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
                self.everyone_look_at_the_clock();
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

    /// Ends what is over, and takes what is to be renewed now; each is due again a sixth later.
    fn take_due(&self, now: Instant) -> (Vec<Arc<Hold>>, Option<Instant>) {
        let mut over = Vec::new();
        let mut batch = Vec::new();
        let mut schedule = self.lock();
        // A part at a time, so that nobody waits long for the lock.
        while batch.len() < PASS
            && let Some(((at, _), hold)) = schedule.due.first_key_value()
        {
            // A little early, so that leases taken one after the other share a call ever after; and
            // earlier still if there is room in a call that is made anyway, but not twice in one go.
            let early = if batch.len().is_multiple_of(BATCH) { 30 } else { 8 };
            if *at > now + hold.ttl() / early || (hold.is_fixed() && *at > now) {
                break;
            }
            let hold = hold.clone();
            if hold.until_signal().is_some_and(|left| left.is_zero()) {
                schedule.due.pop_first();
                hold.set_due(None);
                over.push(hold);
            } else if hold.is_fixed() {
                // Nothing to renew; the clock just did not reach its end yet.
                let left = hold.until_signal().unwrap_or(TICK).max(Duration::from_millis(1));
                schedule.schedule(&hold, now + left);
            } else {
                schedule.due.pop_first();
                hold.set_due(None);
                batch.push(hold);
            }
        }
        // Only now: a fixed lease that is about to end would be found due again in the same go.
        for hold in &batch {
            schedule.schedule(hold, now + hold.pace(hold.ttl() / 6));
        }
        let first = schedule.due.first_key_value().map(|((at, _), _)| *at);
        // While there is anything to do, look at the clocks once per tick; and stay up for one tick
        // more, because locks that come and go quickly would wake the task each time otherwise.
        let busy = first.is_some() || std::mem::take(&mut schedule.fresh);
        schedule.next = busy.then(|| first.map_or(now + TICK, |at| at.min(now + TICK)));
        let next = schedule.next;
        drop(schedule);
        for hold in over {
            hold.end(hold.run_out());
        }
        (batch, next)
    }

    fn everyone_look_at_the_clock(&self) {
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

/// Renews a hold now, for one who wants to know. `None` without an answer in time.
pub(crate) async fn renew_now(hold: &Arc<Hold>) -> Option<Result<Renewal>> {
    let inner = hold.inner();
    let (renewals, engine) = (inner.renewals.clone(), inner.engine.clone());
    let asking = renew(renewals, engine, vec![hold.clone()], inner.clock, inner.meters.clone());
    // In a task of its own, which is asked to its end: the watchdog counts on that.
    let asking = inner.runtime.spawn(asking);
    let answers = tokio::time::timeout(CALL_LIMIT, asking).await.ok()?.ok()?;
    Some(answers.map(|answers| answers.first().copied().unwrap_or(Renewal::Unknown)))
}

async fn renew(
    renewals: Arc<Renewals>,
    engine: Arc<dyn Engine>,
    holds: Vec<Arc<Hold>>,
    clock: Clock,
    meters: Arc<Meters>,
) -> Result<Vec<Renewal>> {
    let leases: Vec<_> = holds.iter().map(|hold| hold.lease().clone()).collect();
    let asked = clock.now();
    let late: Vec<_> = holds.iter().filter(|hold| hold.asking()).cloned().collect();
    if !late.is_empty() {
        let engine = engine.clone();
        // Beside the renewal, which must not wait for it.
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
            tracing::warn!(%error, leases = leases.len(), "a renewal got no answer; it is asked again");
            meters.renewals_unknown(leases.len());
            return Err(error);
        }
    };
    for (hold, answer) in holds.iter().zip(answers.iter().copied()) {
        let unknown = (answer == Renewal::Unknown).then(|| "the engine cannot tell".to_owned());
        hold.asked(unknown);
        match answer {
            Renewal::Renewed => {
                if hold.renewed(asked) {
                    renewals.watch(hold, asked.runtime() + hold.pace(hold.ttl() / 3));
                }
            }
            Renewal::Gone => {
                meters.renewal_gone();
                hold.end(Loss::Gone);
            }
            Renewal::Unknown => meters.renewals_unknown(1),
        }
    }
    Ok(answers)
}
