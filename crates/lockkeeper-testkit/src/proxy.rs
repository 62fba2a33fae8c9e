//! A proxy between a client and a server that breaks connections as networks do.
//!
//! A stream never loses bytes from its middle: whatever a [hole](Proxy::hold) keeps back is
//! delivered late when it closes, as TCP does by retransmission, and a connection on which a reply
//! was [swallowed](Proxy::swallow_replies) never carries another one. Late is worse than never for
//! locks.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
}

/// A proxy on its own port. It ends, with all its connections, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    rules: Arc<watch::Sender<Rules>>,
    listening: Arc<watch::Sender<bool>>,
    forwarded: Arc<[AtomicU64; 2]>,
    task: AbortHandle,
}

#[derive(Debug, Clone, Default)]
struct Rules {
    latency: Duration,
    held: [bool; 2],
    cut_after: [Option<u64>; 2],
    /// How many requests pass before the first whose reply is swallowed.
    spared: usize,
    swallow: usize,
    /// Whether a reply was swallowed since the last heal.
    swallowed: bool,
    refuse: bool,
    resets: u64,
    heals: u64,
    /// Counts the holes for subscriptions; connections older than the last one are in it.
    deaf: u64,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(target: SocketAddr) -> Self {
        Self::start_now(target)
    }

    /// The same, where nothing can be awaited.
    ///
    /// # Panics
    /// Outside of a runtime, and when there is no free port.
    pub fn start_now(target: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket need not block");
        let listener = TcpListener::from_std(listener).expect("there is a runtime");
        let address = listener.local_addr().expect("a listener has an address");
        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let listening = Arc::new(watch::Sender::new(true));
        let forwarded = Arc::default();
        let accept =
            accept(listener, target, rules.clone(), listening.clone(), Arc::clone(&forwarded));
        let task = tokio::spawn(accept).abort_handle();
        Self { address, rules, listening, forwarded, task }
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays everything by this much, each way.
    pub fn latency(&self, latency: Duration) {
        self.rules.send_modify(|rules| rules.latency = latency);
    }

    /// Opens a black hole one way: nothing arrives, no error is reported, connections stay open.
    pub fn hold(&self, way: Way) {
        self.rules.send_modify(|rules| rules.held[way as usize] = true);
    }

    /// Opens a black hole for every connection that has subscribed to something, both ways and
    /// permanently. Other connections, and new ones, are not affected.
    pub fn hold_subscriptions(&self) {
        self.rules.send_modify(|rules| rules.deaf += 1);
    }

    /// Resets every existing connection. New ones are not affected.
    pub fn reset(&self) {
        self.rules.send_modify(|rules| rules.resets += 1);
    }

    /// Refuses new connections, once it has returned. Existing ones are not affected.
    pub async fn refuse(&self) {
        self.rules.send_modify(|rules| rules.refuse = true);
        self.is_listening(false).await;
    }

    /// Resets every connection after this many bytes one way, counted from its beginning.
    pub fn cut_after(&self, way: Way, bytes: u64) {
        self.rules.send_modify(|rules| rules.cut_after[way as usize] = Some(bytes));
    }

    /// Forwards the next `n` requests and drops the replies: they take effect, but the answers are
    /// lost.
    ///
    /// A request is whatever arrives from a client at once.
    pub fn swallow_replies(&self, n: usize) {
        self.rules.send_modify(|rules| (rules.spared, rules.swallow) = (0, n));
    }

    /// The same for one request, after this many others that are answered.
    pub fn swallow_reply_after(&self, others: usize) {
        self.rules.send_modify(|rules| (rules.spared, rules.swallow) = (others, 1));
    }

    /// Waits until a reply arrived from the server and was dropped: the request has taken effect.
    pub async fn swallowed(&self) {
        let _ = self.rules.subscribe().wait_for(|rules| rules.swallowed).await;
    }

    /// How many replies are still to be dropped.
    pub fn still_to_swallow(&self) -> usize {
        self.rules.borrow().swallow
    }

    /// Repairs everything. Connections that lost a reply are reset: they cannot be repaired.
    pub async fn heal(&self) {
        self.rules.send_modify(|rules| {
            let (resets, heals, deaf) = (rules.resets, rules.heals + 1, rules.deaf);
            *rules = Rules { resets, heals, deaf, ..Rules::default() };
        });
        self.is_listening(true).await;
    }

    /// How many bytes went one way so far.
    pub fn forwarded(&self, way: Way) -> u64 {
        self.forwarded[way as usize].load(Ordering::Relaxed)
    }

    async fn is_listening(&self, wanted: bool) {
        let _ = self.listening.subscribe().wait_for(|is| *is == wanted).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.reset();
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    rules: Arc<watch::Sender<Rules>>,
    listening: Arc<watch::Sender<bool>>,
    forwarded: Arc<[AtomicU64; 2]>,
) {
    let address = listener.local_addr().expect("a listener has an address");
    let mut listener = Some(listener);
    let mut changes = rules.subscribe();
    loop {
        if rules.borrow().refuse {
            // Only a port without a listener refuses.
            listener = None;
            listening.send_replace(false);
            let _ = changes.wait_for(|rules| !rules.refuse).await;
        }
        if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.expect("our port is still free"));
            listening.send_replace(true);
        }
        let accepted = tokio::select! {
            accepted = listener.as_ref().expect("it is bound").accept() => accepted,
            _ = changes.changed() => continue,
        };
        let Ok((client, _)) = accepted else { continue };
        let connection = Connection {
            born: rules.borrow().clone(),
            rules: rules.clone(),
            forwarded: forwarded.clone(),
            swallowed: AtomicU64::new(0),
            subscribed: AtomicBool::new(false),
        };
        tokio::spawn(connection.serve(client, target));
    }
}

struct Connection {
    born: Rules,
    rules: Arc<watch::Sender<Rules>>,
    forwarded: Arc<[AtomicU64; 2]>,
    /// The heal that ends this connection, once a reply was dropped; otherwise 0.
    swallowed: AtomicU64,
    subscribed: AtomicBool,
}

/// A connection ended with an error.
struct Broken;

impl Connection {
    async fn serve(self, mut client: TcpStream, target: SocketAddr) {
        let Ok(mut server) = TcpStream::connect(target).await else {
            let _ = client.set_zero_linger();
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let ended_well = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            tokio::select! {
                // First of all, so that whatever was held is not delivered by a heal after a reset.
                biased;
                () = self.doomed() => false,
                both = async { tokio::try_join!(
                    self.pump(Way::ToServer, from_client, to_server),
                    self.pump(Way::ToClient, from_server, to_client),
                ) } => both.is_ok(),
            }
        };
        if !ended_well {
            // Closing without lingering is what sends a reset.
            let _ = (client.set_zero_linger(), server.set_zero_linger());
        }
    }

    async fn doomed(&self) {
        let mut changes = self.rules.subscribe();
        let is_doomed = |rules: &Rules| {
            let swallowed = self.swallowed.load(Ordering::Relaxed);
            rules.resets > self.born.resets || (swallowed > 0 && rules.heals >= swallowed)
        };
        let _ = changes.wait_for(is_doomed).await;
    }

    async fn pump(
        &self,
        way: Way,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), Broken> {
        let mut buffer = vec![0; 16 * 1024];
        let mut sent = 0;
        loop {
            let read = from.read(&mut buffer).await.map_err(|_| Broken)?;
            if way == Way::ToServer && buffer[..read].windows(9).any(|w| w == b"SUBSCRIBE") {
                self.subscribed.store(true, Ordering::Relaxed);
            }
            self.passable(way).await;
            if read == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            let rules = self.rules.borrow().clone();
            if !rules.latency.is_zero() {
                sleep(rules.latency).await;
            }
            match way {
                Way::ToServer if rules.swallow > 0 => self.rules.send_modify(|rules| {
                    if rules.spared > 0 {
                        rules.spared -= 1;
                    } else if rules.swallow > 0 {
                        rules.swallow -= 1;
                        self.swallowed.store(rules.heals + 1, Ordering::Relaxed);
                    }
                }),
                Way::ToClient if self.swallowed.load(Ordering::Relaxed) > 0 => {
                    self.rules.send_modify(|rules| rules.swallowed = true);
                    continue;
                }
                _ => {}
            }
            let left = rules.cut_after[way as usize].map(|bytes| bytes.saturating_sub(sent));
            let n = left.map_or(read, |left| read.min(usize::try_from(left).unwrap_or(read)));
            to.write_all(&buffer[..n]).await.map_err(|_| Broken)?;
            sent += n as u64;
            self.forwarded[way as usize].fetch_add(n as u64, Ordering::Relaxed);
            if left.is_some_and(|left| left <= read as u64) {
                return Err(Broken);
            }
        }
    }

    async fn passable(&self, way: Way) {
        let mut changes = self.rules.subscribe();
        let is_deaf =
            |rules: &Rules| self.subscribed.load(Ordering::Relaxed) && rules.deaf > self.born.deaf;
        let _ = changes.wait_for(|rules| !rules.held[way as usize] && !is_deaf(rules)).await;
    }
}
