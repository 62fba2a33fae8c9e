//! The lock that a command is run under, from the first connection to the grant, however often an
//! engine that does not answer has to be tried again.

use std::cell::RefCell;
use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::Scope;
use lockkeeper::{Client, Guard, Owner};
use tokio::time::Instant;

use crate::acquire::{Waits, acquire_until, close, interruptible, lock};
use crate::args::{OnLost, Terms};
use crate::exit::Failure;
use crate::output::Say;
use crate::run::nested;
use crate::run::signals::Signals;
use crate::run::timeline::{Limit, Timeline};
use crate::waiting::{Line, WORTH_A_WORD, Waiting};

/// What is requested: the same in every attempt.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a str,
    pub(crate) terms: &'a Terms,
    pub(crate) owner: &'a Owner,
    pub(crate) endpoint: &'a Endpoint,
    /// The command line, as it is recorded in the engine.
    pub(crate) recorded: Option<&'a str>,
    pub(crate) ttl: Duration,
    pub(crate) lease: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) on_lost: OnLost,
    /// Whether an outer run with the same key can be re-entered with `--owner`.
    pub(crate) nests: bool,
    pub(crate) signals: &'a Signals,
    pub(crate) say: Say,
}

impl Wanted<'_> {
    /// Acquires the lock with this client, or with a new one if there is none or it fails.
    pub(crate) async fn acquire(
        &self,
        mut client: Option<Client>,
        mut waits: Waits<'_>,
    ) -> Result<(Client, Timeline, Guard), Failure> {
        let since = Instant::now();
        let say = self.say;
        let tell = |told: String, news| if news { say.warn(told) } else { say.note(told) };
        loop {
            match self.attempt(client.take(), &mut waits, since).await {
                Ok(acquired) => return Ok(acquired),
                Err(failure) => interruptible(waits.again(failure, tell), self.signals).await?,
            }
        }
    }

    async fn attempt(
        &self,
        client: Option<Client>,
        waits: &mut Waits<'_>,
        since: Instant,
    ) -> Result<(Client, Timeline, Guard), Failure> {
        let is_new = client.is_none();
        let client = match client {
            Some(client) => client,
            None => self.connect(waits).await?,
        };
        let limit = Limit::of(&client, self.ttl, self.lease);
        let timeline = Timeline::new(limit, self.grace, self.on_lost)?;
        if is_new && client.guarantees().scope == Scope::Process {
            self.say.warn(format_args!(
                "{} excludes only inside one process: this excludes nothing",
                self.endpoint
            ));
        }
        let (key, terms, until) = (self.key, self.terms, waits.until);
        let lock = lock(&client, key, terms).owner(self.owner);
        let lock = limit.terms(lock, &timeline, self.ttl);
        let acquire = async {
            let mut line = Line::new(self.say);
            let waiting = Waiting { key, since, until, drawn: line.drawn };
            let line = RefCell::new(&mut line);
            let tell = async {
                self.warn_of_ourselves(client.place()).await;
                waiting.tell(&client, |texts| line.borrow_mut().show(texts)).await
            };
            let outages = waits.told.outages(&client, |told| {
                line.borrow_mut().clear();
                self.say.warn(told);
            });
            tokio::select! {
                acquired = acquire_until(&client, lock, key, terms, until) => acquired,
                never = tell => match never {},
                never = outages => match never {},
            }
        };
        match interruptible(acquire, self.signals).await {
            Ok(guard) => {
                // The grant may have been the answer that ended an outage.
                if let Some(told) = waits.answered() {
                    self.say.warn(told);
                }
                let timeline = timeline.held(limit, &guard, self.grace);
                Ok((client, timeline, guard))
            }
            Err(failure) => {
                // What is pending, such as undoing a claim, ends before we do.
                close(client, !failure.retryable).await;
                Err(failure)
            }
        }
    }

    async fn connect(&self, waits: &mut Waits<'_>) -> Result<Client, Failure> {
        let url = self.endpoint.spell_out();
        let connect = waits.in_time(async { Ok(Client::connect(&url).await?) });
        let client = interruptible(connect, self.signals).await?;
        client.set_command(self.recorded);
        if let Some(told) = waits.answered() {
            self.say.warn(told);
        }
        Ok(client)
    }

    /// If the wait gets long, reports it if it cannot end.
    async fn warn_of_ourselves(&self, place: &str) {
        tokio::time::sleep(WORTH_A_WORD).await;
        if self.nests && nested::below_a_run_of(self.key, place) && nested::enter().is_some() {
            self.say.warn(format_args!(
                "the run around this one holds lock {:?} and waits for us: give both the same \
                 --owner",
                self.key
            ));
        }
    }
}
