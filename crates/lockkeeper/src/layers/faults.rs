//! An engine that injects faults, reproducibly, into another one.
//!
//! Every call may be delayed, fail before it takes effect, lose its reply after it took effect, or
//! hang. The same seed and the same calls give the same faults.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use super::{Call, Layer};
use crate::engine::Engine;
use crate::error::{Error, Result};

/// How often each fault happens, as a share of all calls from 0 to 1.
///
/// ```
/// use lockkeeper::testing::Plan;
///
/// let plan = Plan::NONE.fail(0.1).lose_reply(0.05);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    delay: f64,
    fail: f64,
    lose_reply: f64,
    hang: f64,
    longest: Duration,
}

impl Plan {
    /// No faults at all.
    pub const NONE: Plan =
        Plan { delay: 0.0, fail: 0.0, lose_reply: 0.0, hang: 0.0, longest: Duration::from_secs(1) };

    /// The share of calls that take a random time of up to [`longest`](Plan::longest).
    pub const fn delay(mut self, share: f64) -> Self {
        self.delay = share;
        self
    }

    /// The share of calls that fail without taking effect.
    pub const fn fail(mut self, share: f64) -> Self {
        self.fail = share;
        self
    }

    /// The share of calls that take effect but fail all the same.
    pub const fn lose_reply(mut self, share: f64) -> Self {
        self.lose_reply = share;
        self
    }

    /// The share of calls that take effect or not, and exceed every timeout: ten times `longest`.
    pub const fn hang(mut self, share: f64) -> Self {
        self.hang = share;
        self
    }

    /// The longest delay. Default 1 s.
    pub const fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }
}

/// An engine that injects faults into the one it wraps.
#[derive(Clone)]
pub struct Faults {
    engine: Arc<dyn Engine>,
    dice: Arc<Mutex<Dice>>,
}

struct Dice {
    random: fastrand::Rng,
    plan: Plan,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Fail,
    LoseReply,
    Hang { before: bool },
    None,
}

impl Faults {
    /// Wraps an engine. Nothing fails before a plan is set.
    pub fn new(engine: impl Engine, seed: u64) -> Self {
        let dice = Dice { random: fastrand::Rng::with_seed(seed), plan: Plan::NONE };
        Self { engine: Arc::new(engine), dice: Arc::new(Mutex::new(dice)) }
    }

    /// Sets the faults from now on.
    pub fn set(&self, plan: Plan) {
        self.dice.lock().expect("nothing panics under this lock").plan = plan;
    }

    fn throw(&self) -> (Duration, Fault, Duration) {
        let mut dice = self.dice.lock().expect("nothing panics under this lock");
        let plan = dice.plan;
        // Always the same number of random draws, so that one rate does not change the effect of
        // the others.
        let [delayed, how_long, which, side] = [(); 4].map(|()| dice.random.f64());
        let delay =
            if delayed < plan.delay { plan.longest.mul_f64(how_long) } else { Duration::ZERO };
        let fault = if which < plan.fail {
            Fault::Fail
        } else if which < plan.fail + plan.lose_reply {
            Fault::LoseReply
        } else if which < plan.fail + plan.lose_reply + plan.hang {
            Fault::Hang { before: side < 0.5 }
        } else {
            Fault::None
        };
        (delay, fault, plan.longest * 10)
    }
}

impl Layer for Faults {
    fn inner(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    async fn pass<T: Send>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let (delay, fault, hang) = self.throw();
        let failed = |how: &str| Error::unreachable("faults", format!("{call:?}"), how.to_owned());
        if !delay.is_zero() {
            sleep(delay / 2).await;
        }
        match fault {
            Fault::Fail => return Err(failed("failed before it had an effect")),
            Fault::Hang { before: true } => {
                sleep(hang).await;
                return Err(failed("hung before it had an effect"));
            }
            _ => {}
        }
        let answer = work.await;
        if !delay.is_zero() {
            sleep(delay / 2).await;
        }
        match fault {
            Fault::LoseReply => Err(failed("the reply was lost")),
            Fault::Hang { .. } => {
                sleep(hang).await;
                Err(failed("hung after it had its effect"))
            }
            _ => answer,
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faults").field(&self.engine).finish()
    }
}
