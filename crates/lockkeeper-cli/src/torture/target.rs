//! What is tortured: the engine at a URL, or servers that are started for it.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{Death, Guarantees, Order, Scope, Support};
use lockkeeper_testkit::storm::deployment::{self, Deployment};
use lockkeeper_testkit::storm::{ClientFault, Fault, Kind, Plan};

use crate::args::{Torture, Where};
use crate::config::Config;
use crate::exit::Failure;

/// The values of `--local`.
pub(crate) const LOCAL: [&str; deployment::NAMES.len() + 1] = {
    let mut names = ["all"; deployment::NAMES.len() + 1];
    let mut n = 0;
    while n < deployment::NAMES.len() {
        names[n] = deployment::NAMES[n];
        n += 1;
    }
    names
};

/// What is tortured.
#[derive(Debug)]
pub(super) struct Target {
    /// A value of `--local`, or `None` for a URL.
    pub(super) local: Option<&'static str>,
    pub(super) servers: Box<dyn Deployment>,
    pub(super) guarantees: Guarantees,
    /// The URL, without its secrets.
    shown: String,
    /// Whether all hosts are loopback addresses.
    is_here: bool,
}

impl Target {
    /// What the arguments name, to be opened one after the other.
    pub(super) fn names(args: &Torture) -> Vec<Option<&'static str>> {
        if args.local.is_empty() {
            return vec![None];
        }
        let is_named = |name: &&str| args.local.iter().any(|local| local == name || local == "all");
        deployment::NAMES.into_iter().filter(is_named).map(Some).collect()
    }

    pub(super) async fn open(args: &Torture, local: Option<&'static str>) -> Result<Self, Failure> {
        let Some(name) = local else { return Self::at_url(args).await };
        let servers = start(name).await?;
        let endpoint = Endpoint::parse(&servers.url())?;
        let guarantees = lockkeeper::engines::guarantees(&endpoint)?;
        Ok(Self { local, servers, guarantees, shown: endpoint.to_string(), is_here: true })
    }

    async fn at_url(args: &Torture) -> Result<Self, Failure> {
        let place = Where { url: args.url.clone(), secret: args.secret.clone() };
        let endpoint = Config::load()?.endpoint(&place)?;
        let guarantees = lockkeeper::engines::guarantees(&endpoint)?;
        if guarantees.scope == Scope::Process {
            return Err(Failure::usage(format!(
                "{}: locks do not leave their process; --simulate tortures the library in one process, \
                 and --local starts a server",
                endpoint.scheme()
            )));
        }
        let hosts = resolve(&endpoint).await?;
        let is_here = hosts.iter().all(|host| host.ip().is_loopback());
        let hosts = if no_proxy(&endpoint).is_none() { hosts } else { Vec::new() };
        let servers = Box::new(Theirs { url: endpoint.spell_out(), hosts });
        Ok(Self { local: None, servers, guarantees, shown: endpoint.to_string(), is_here })
    }

    /// Fails if the engine cannot be reached now: that is no finding.
    pub(super) async fn reach(&self) -> Result<(), Failure> {
        lockkeeper::Client::connect(self.servers.url()).await?.close().await;
        Ok(())
    }

    /// The URL, without its secrets.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether no other machine is involved.
    pub(super) fn is_here(&self) -> bool {
        self.is_here
    }

    /// Why connections are left alone, if they are.
    pub(super) fn no_proxy(&self) -> Option<&'static str> {
        let endpoint = Endpoint::parse(&self.servers.url()).ok()?;
        no_proxy(&endpoint)
    }

    /// Whether two clients may hold a lock for a moment, as this engine is documented: the server
    /// frees the locks of a connection when that ends, and the holder learns of it later.
    pub(super) fn may_overlap(&self) -> bool {
        self.guarantees.death == Death::AtOnce && self.guarantees.scope == Scope::Network
    }

    /// What the clients do and which faults there are, except for the length.
    pub(super) fn plan(&self, args: &Torture) -> Result<Plan, Failure> {
        let offered: Vec<_> = Kind::ALL.into_iter().filter(|kind| self.offers(*kind)).collect();
        let named = args.kinds.iter().flat_map(|(kind, weight)| vec![*kind; usize::from(*weight)]);
        let kinds = if args.kinds.is_empty() { offered.clone() } else { named.collect() };
        if let Some(missing) = kinds.iter().find(|kind| !offered.contains(kind)) {
            let names: Vec<_> = offered.iter().map(|kind| kind.name()).collect();
            return Err(Failure::usage(format!(
                "{} has no locks of the kind {}; it has: {}",
                self.guarantees.engine,
                missing.name(),
                names.join(", ")
            )));
        }
        let (clients, servers) = (self.client_faults(), self.server_faults());
        let known: Vec<_> =
            clients.iter().map(|fault| fault.name()).chain(servers.clone()).collect();
        let none = ["none".to_owned()];
        if let Some(stranger) = args.faults.iter().find(|fault| !known.contains(&fault.as_str()))
            && args.faults != none
        {
            return Err(Failure::usage(format!(
                "there is no fault {stranger:?} here; it is none, or some of: {}",
                known.join(", ")
            )));
        }
        let chosen = |name: &str| args.faults.is_empty() || args.faults.iter().any(|f| f == name);
        let server_faults = servers.into_iter().filter(|name| chosen(name)).map(str::to_owned);
        Ok(Plan {
            processes: args.clients as usize,
            tasks: args.tasks as usize,
            kinds,
            keys: args.keys as usize,
            prefix: format!("torture-{:08x}/", super::random()),
            ttl: args.ttl,
            faults: clients.into_iter().filter(|fault| chosen(fault.name())).collect(),
            rate: args.rate,
            server_faults: Some(server_faults.collect()),
            is_fifo: self.guarantees.order == Order::Fifo,
            bug: args.mutant,
            ..Plan::default()
        })
    }

    /// The faults of clients and their connections that are possible here.
    fn client_faults(&self) -> Vec<ClientFault> {
        let proxies = !self.servers.hosts().is_empty();
        let possible = |f: &ClientFault| f.is_possible() && (proxies || !f.is_network());
        ClientFault::ALL.into_iter().filter(possible).collect()
    }

    /// The faults of the servers, by name.
    fn server_faults(&self) -> Vec<&'static str> {
        let faults = self.servers.faults(Duration::ZERO);
        let mut names: Vec<_> = faults.iter().map(Fault::name).collect();
        names.dedup();
        names
    }

    fn offers(&self, kind: Kind) -> bool {
        match kind {
            Kind::ReadWrite => self.guarantees.read_write == Support::Yes,
            Kind::Permits => self.guarantees.semaphore == Support::Yes,
            Kind::Fair => !matches!(self.guarantees.order, Order::Chance(_)),
            _ => true,
        }
    }
}

/// Starts servers. What the test kit says in a panic is the message: which package is missing, or
/// what the server printed.
async fn start(name: &'static str) -> Result<Box<dyn Deployment>, Failure> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let started = tokio::task::spawn_blocking(move || deployment::start(name)).await;
    std::panic::set_hook(hook);
    match started {
        Ok(servers) => Ok(servers.expect("only known names are parsed")),
        Err(error) => {
            let why = error.try_into_panic().ok().and_then(|why| why.downcast::<String>().ok());
            let why = why.map_or_else(|| "it panicked".to_owned(), |why| *why);
            Err(Failure::own(format_args!("start {name}"), why))
        }
    }
}

/// Servers of the user, to which nothing is done.
#[derive(Debug)]
struct Theirs {
    url: String,
    hosts: Vec<SocketAddr>,
}

impl Deployment for Theirs {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn hosts(&self) -> Vec<SocketAddr> {
        self.hosts.clone()
    }

    fn faults(&self, _ttl: Duration) -> Vec<Fault<'_>> {
        Vec::new()
    }
}

/// Why no proxy can be put between clients and these servers.
fn no_proxy(endpoint: &Endpoint) -> Option<&'static str> {
    let verifies = endpoint.expose().query().is_some_and(|query| query.contains("ssl"));
    match endpoint.scheme() {
        "file" => Some("there are no connections"),
        _ if verifies => Some("TLS may check the name of the server"),
        "redis" | "valkey" | "redlock" | "etcd" | "zookeeper" | "postgres" | "postgresql"
        | "mysql" | "mariadb" => None,
        scheme if scheme.contains('+') => Some("the servers tell clients their addresses"),
        _ => Some("TLS checks the name of the server"),
    }
}

/// The addresses of a URL's hosts, in order.
async fn resolve(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, Failure> {
    let usual = match endpoint.scheme() {
        "etcd" | "etcds" => 2379,
        "zookeeper" => 2181,
        "zookeepers" => 2281,
        "postgres" | "postgresql" => 5432,
        "mysql" | "mariadb" => 3306,
        scheme if scheme.contains("sentinel") => 26379,
        _ => 6379,
    };
    let mut addresses = Vec::new();
    for (host, port) in endpoint.hosts() {
        let place = (host.as_str(), port.unwrap_or(usual));
        let found = tokio::net::lookup_host(place).await.ok().and_then(|mut all| all.next());
        let Some(address) = found else {
            return Err(Failure::new(
                crate::exit::UNAVAILABLE,
                format!("the name {host} has no address"),
            ));
        };
        addresses.push(address);
    }
    Ok(addresses)
}
