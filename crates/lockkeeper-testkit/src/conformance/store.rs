//! A store for one case, and how it is reached.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::clock::Clock;
use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Engine, Support};
use lockkeeper::{Client, Error, Guarantees, Lock, Result};

use crate::fault_link::{Call, FaultLink};
use crate::holder::{Holder, Program};

/// A fresh store, for which it creates independent clients.
pub struct Store {
    open: Box<dyn Fn() -> Opening + Send + Sync>,
    url: Option<String>,
    paused: bool,
    ttl: Option<Duration>,
    session: Option<Duration>,
    helper: Option<Program>,
    data: Vec<Data>,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

/// Application data at a key where a lock may be wanted.
pub(super) struct Data {
    /// What it is, for messages.
    pub(super) what: String,
    /// Puts it at a key.
    pub(super) plant: Box<dyn Fn(String) -> Step<()> + Send + Sync>,
    /// Shows what is at a key now.
    pub(super) look: Box<dyn Fn(String) -> Step<String> + Send + Sync>,
}

type Step<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn Engine>>> + Send>>;

impl Store {
    /// A store that every process reaches by this URL.
    pub fn at(url: impl Into<String>) -> Self {
        let url = url.into();
        let place = url.clone();
        let open = move || -> Opening {
            let endpoint = Endpoint::parse(&place);
            Box::pin(async move { lockkeeper::engines::open(endpoint?).await })
        };
        Self::new(Box::new(open), false).url(url)
    }

    /// An engine whose clones share a store.
    pub fn of<B: Engine + Clone>(engine: B) -> Self {
        let paused = engine.clock() == Clock::Runtime;
        let open = move || -> Opening {
            let engine: Arc<dyn Engine> = Arc::new(engine.clone());
            Box::pin(std::future::ready(Ok(engine)))
        };
        Self::new(Box::new(open), paused)
    }

    fn new(open: Box<dyn Fn() -> Opening + Send + Sync>, paused: bool) -> Self {
        Self {
            open,
            url: None,
            paused,
            ttl: None,
            session: None,
            helper: None,
            data: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// The URL for other processes and for the blocking API.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The lease that cases request. Default: two seconds; a busy machine cannot keep shorter ones.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long the store keeps the session of a dead holder, if that is longer than the lease.
    pub fn session(mut self, session: Duration) -> Self {
        self.session = Some(session);
        self
    }

    /// Keeps something alive as long as the store: a temporary directory, a server.
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(thing));
        self
    }

    /// Application data that this store may contain: how to put it at a key, and how to check that
    /// it is unchanged. Not for stores that contain nothing but locks.
    pub fn data<P, L>(
        mut self,
        what: impl Into<String>,
        plant: impl Fn(String) -> P + Send + Sync + 'static,
        look: impl Fn(String) -> L + Send + Sync + 'static,
    ) -> Self
    where
        P: Future<Output = ()> + Send + 'static,
        L: Future<Output = String> + Send + 'static,
    {
        self.data.push(Data {
            what: what.into(),
            plant: Box::new(move |key| Box::pin(plant(key))),
            look: Box::new(move |key| Box::pin(look(key))),
        });
        self
    }

    pub(super) fn planted(&self) -> &[Data] {
        &self.data
    }

    pub(super) fn helper(mut self, program: Program) -> Self {
        self.helper = Some(program);
        self
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(super) fn lease(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(2))
    }

    /// How late a busy machine may be. Paused time is never late.
    pub(super) fn slack(&self) -> Duration {
        if self.paused { Duration::ZERO } else { Duration::from_secs(3) }
    }

    /// How long the lock of a dead holder stays taken.
    pub(super) fn grace(&self) -> Duration {
        self.session.unwrap_or(self.lease())
    }

    pub(super) async fn client(&self) -> Client {
        Client::shared((self.open)().await.expect("the engine can be opened"))
    }

    /// A client, and the switches of its connection to the store.
    pub(super) async fn linked(&self) -> (Client, FaultLink) {
        let link = FaultLink::new((self.open)().await.expect("the engine can be opened"));
        (Client::new(link.clone()), link)
    }

    pub(super) async fn guarantees(&self) -> Guarantees {
        self.client().await.guarantees()
    }

    /// Whether the engine supports this; if not, checks that it refuses before any request.
    pub(super) async fn does(&self, support: Support, lock: impl FnOnce(&Client) -> Lock) -> bool {
        let Support::No(reason) = support else { return true };
        let (client, link) = self.linked().await;
        match lock(&client).acquire().await {
            Err(Error::Unsupported { what, .. }) => assert!(what.contains(reason), "{what}"),
            other => panic!("it should be refused ({reason}), and was not: {other:?}"),
        }
        assert_eq!(link.calls(Call::Attempt), 0, "refused, but only after asking the store");
        false
    }

    pub(super) async fn does_read_write(&self) -> bool {
        let support = self.guarantees().await.read_write;
        self.does(support, |client| client.read("refused")).await
            && self.does(support, |client| client.write("refused")).await
    }

    pub(super) async fn does_permits(&self) -> bool {
        let support = self.guarantees().await.semaphore;
        self.does(support, |client| client.semaphore("refused", 2)).await
    }

    /// A URL for the blocking API, if there is one.
    pub(super) fn place(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Starts a process that acquires a key.
    pub(super) fn holder(&self, key: &str, arguments: &[&str]) -> Holder {
        let program = self.helper.as_ref().expect("the runner names the helper");
        let url = self.url.as_ref().expect("an engine that spans processes has a URL");
        Holder::start(program, url, key, arguments)
    }

    /// Like [`holder`](Store::holder), for one that can [fork](crate::holder::Holder::forking).
    pub(super) fn forking_holder(&self, key: &str, arguments: &[&str]) -> Holder {
        let program = self.helper.as_ref().expect("the runner names the helper");
        let url = self.url.as_ref().expect("an engine that spans processes has a URL");
        Holder::forking(program, url, key, arguments)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}
