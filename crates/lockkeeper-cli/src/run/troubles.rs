//! Reports troubles with the engine while a command runs: outages and failed renewals.
//!
//! A failed renewal is often part of an outage, and only the first of both is worth a message.

use lockkeeper::{Client, Guard, Outage};

use crate::output::Say;

#[derive(Debug)]
pub(crate) struct Troubles<'a> {
    guard: Option<&'a Guard>,
    client: Option<&'a Client>,
    say: Say,
    /// How many consecutive failed renewals were reported.
    failures: u32,
    /// Whether an outage was reported that no renewal failed in.
    outage: bool,
}

impl<'a> Troubles<'a> {
    pub(crate) fn new(guard: Option<&'a Guard>, client: Option<&'a Client>, say: Say) -> Self {
        Self { guard, client, say, failures: 0, outage: false }
    }

    /// Reports that the engine does not answer, or answers again.
    pub(crate) fn tell_outage(&mut self, outage: Option<Outage>) {
        self.tell_failed_renewals();
        let place = self.client.map_or("the engine", Client::place);
        match outage {
            Some(outage) if self.failures == 0 => {
                self.outage = true;
                self.say.warn(format_args!("{place} does not answer: {}", outage.cause));
            }
            None if std::mem::take(&mut self.outage) => {
                self.say.warn(format_args!("{place} answers again"));
            }
            _ => {}
        }
    }

    /// Reports the first failed renewal; with `-v`, each one.
    pub(crate) fn tell_failed_renewals(&mut self) {
        match self.guard.and_then(Guard::trouble) {
            Some(trouble) if trouble.failures > self.failures => {
                let told = format!("cannot renew the lock, trying again: {}", trouble.error);
                if self.failures == 0 && !self.outage {
                    self.say.warn(told)
                } else {
                    self.say.note(told)
                }
                self.failures = trouble.failures;
            }
            None if self.failures > 0 => {
                self.failures = 0;
                self.outage = false;
                self.say.warn("the lock is renewed again");
            }
            _ => {}
        }
    }

    /// Why a lease ran out: the errors of its last renewals.
    pub(crate) fn with_cause(&self, reason: &str) -> String {
        match self.guard.and_then(Guard::trouble) {
            Some(trouble) => format!("{reason}: {}", trouble.error),
            None => reason.to_owned(),
        }
    }
}
