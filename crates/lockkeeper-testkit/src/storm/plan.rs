//! What a storm is to do, and how far it is.

use std::time::Duration;

use tokio::sync::watch;

use super::{ClientFault, Kind};
use crate::bugs::Bug;

/// What the processes do, and what is done to them.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many processes there are.
    pub processes: usize,
    /// How many tasks each of them has.
    pub tasks: usize,
    /// The kinds of locks; each kind has its own keys. One that is listed more often is used more
    /// often.
    pub kinds: Vec<Kind>,
    /// How many keys each kind has.
    pub keys: usize,
    /// What all keys start with.
    pub prefix: String,
    /// The length of every lease.
    pub ttl: Duration,
    /// The faults of processes and their connections.
    pub faults: Vec<ClientFault>,
    /// How many of the [brief](ClientFault::is_brief) ones each process has in a second.
    pub rate: u32,
    /// The faults of the servers, by their names; all of them if `None`.
    pub server_faults: Option<Vec<String>>,
    /// Whether fair locks are granted in order of arrival.
    pub is_fifo: bool,
    /// How long faults are caused.
    pub length: Option<Duration>,
    /// Ends the storm earlier, after this many grants.
    pub grants: Option<usize>,
    /// Determines the choice of faults, locks and keys.
    pub seed: Option<u64>,
    /// A bug in the engine of every process.
    pub bug: Option<Bug>,
    /// Where it shows how far it is.
    pub progress: watch::Sender<Progress>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            processes: 4,
            tasks: 32,
            kinds: vec![Kind::Mutex, Kind::Reentrant, Kind::ReadWrite, Kind::Permits],
            keys: 1,
            prefix: String::new(),
            ttl: Duration::from_secs(2),
            faults: ClientFault::ALL.to_vec(),
            rate: 1,
            server_faults: None,
            is_fifo: true,
            length: None,
            grants: None,
            seed: None,
            bug: None,
            progress: watch::Sender::default(),
        }
    }
}

impl Plan {
    /// The keys of all kinds.
    pub(super) fn keys(&self) -> Vec<(Kind, String)> {
        let kinds = Kind::ALL.into_iter().filter(|kind| self.kinds.contains(kind));
        let keys = |kind: Kind| (0..kind.count(self.keys)).map(move |n| (kind, n));
        let key = |(kind, n): (Kind, usize)| (kind, kind.key(&self.prefix, n));
        kinds.flat_map(keys).map(key).collect()
    }
}

/// How far a storm is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The grants so far.
    pub grants: usize,
    /// The faults so far.
    pub faults: usize,
}
