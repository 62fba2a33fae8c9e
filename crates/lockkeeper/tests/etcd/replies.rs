//! The reply to every single request is lost in turn, while two other clients queue behind.
//!
//! HTTP/2 carries all requests of a client on one connection, so a byte proxy can only lose a reply
//! together with all that follow. This one parses frames: it drops the message of one reply and
//! nothing else, or resets the connection in its place.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper::{Client, Lock, Release, Result};
use lockkeeper_testkit::server::etcd::Servers;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// Longer than a round of the test: a forgotten entry does not expire in time.
const TTL: Duration = Duration::from_secs(20);

/// How long something immediate may take.
const SOON: Duration = Duration::from_secs(10);

/// More requests than any round needs; a client that loops makes many more.
const MANY: usize = 400;

/// How many rounds of one kind run at the same time.
const LANES: usize = 4;

#[derive(Debug, Clone, Copy)]
enum How {
    /// The reply ends without its message; the connection continues.
    Dropped,
    /// The connection is reset instead.
    Reset,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Mutex,
    /// A mutex next to one that is nested in its name.
    Nested,
    Write,
    Read,
    Permits,
}

impl Kind {
    fn lock(self, client: &Client, key: &str) -> Lock {
        match self {
            Kind::Mutex | Kind::Nested => client.mutex(key),
            Kind::Write => client.write(key),
            Kind::Read => client.read(key),
            Kind::Permits => client.semaphore(key, 3).permits(2),
        }
        .ttl(TTL)
    }

    /// A claim that conflicts with it.
    fn rival(self, client: &Client, key: &str) -> Lock {
        match self {
            Kind::Read => client.write(key).ttl(TTL),
            other => other.lock(client, key),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_reply_may_be_lost_while_two_others_queue() {
    let servers = Arc::new(Servers::start(1));
    let mut turns = JoinSet::new();
    for kind in [Kind::Mutex, Kind::Nested, Kind::Write, Kind::Read, Kind::Permits] {
        for how in [How::Dropped, How::Reset] {
            for lane in 0..LANES {
                let servers = servers.clone();
                turns.spawn(async move {
                    let mut nth = lane;
                    while turn(&servers, kind, how, nth).await {
                        nth += LANES;
                    }
                    // Lease, entry, release, keep-alive, try, wait: fewer would be no test.
                    assert!(nth >= 8, "{kind:?}: only {nth} requests");
                });
            }
        }
    }
    let mut failed = Vec::new();
    while let Some(turn) = turns.join_next().await {
        failed.extend(turn.err().map(|error| error.to_string()));
    }
    assert!(failed.is_empty(), "{failed:#?}");
    let left: Vec<_> =
        servers.keys().into_iter().filter(|key| !key.contains("lockkeeper.written:")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Drops the reply to the n-th of all requests of one client. False if there were fewer.
async fn turn(servers: &Servers, kind: Kind, how: How, nth: usize) -> bool {
    let name = format!("{kind:?} {how:?} {nth}");
    let wire = Wire::start(servers[0].address(), how).await;
    let client = connect(&wire.address.to_string()).await;
    let direct = servers[0].address().to_string();
    let (other, b, c) = (connect(&direct).await, connect(&direct).await, connect(&direct).await);
    let nested = match kind {
        Kind::Nested => Some(other.mutex(format!("{name}/inner")).acquire().await.unwrap()),
        _ => None,
    };
    wire.lose(nth);
    let mut work = tokio::spawn(work(kind, client.clone(), other.clone(), name.clone()));
    let rivals = tokio::select! {
        () = wire.arrived() => {
            let rivals = [(&b, "b"), (&c, "c")].map(|(rival, note)| queue(kind, rival, &name, note));
            for (rival, note) in rivals.iter().zip(["b", "c"]) {
                until_queued(&other, &name, note, || rival.is_finished()).await;
            }
            wire.go_on();
            within(&name, &mut work).await;
            Some(rivals)
        }
        done = &mut work => {
            done.unwrap();
            None
        }
    };
    let lost = rivals.is_some();
    for rival in rivals.into_iter().flatten() {
        within(&name, rival).await;
    }
    let calls = wire.calls.load(Ordering::Relaxed);
    assert!(calls < MANY, "{name}: {calls} requests");
    if let Some(nested) = nested {
        nested.release().await.unwrap();
    }
    for client in [client, other, b, c] {
        client.close().await;
    }
    lost
}

/// All ways to acquire and release, with a new lease and with a spare one, alone and behind another
/// client.
async fn work(kind: Kind, client: Client, other: Client, key: String) {
    let lock = || kind.lock(&client, &key).note("a");
    release(lock().acquire_within(TTL).await).await;
    // Old enough to be kept alive together with the transaction.
    sleep(TTL / 10).await;
    release(lock().acquire_within(TTL).await).await;
    let busy = kind.rival(&other, &key).acquire_within(TTL).await.unwrap();
    if let Some(guard) = lock().try_acquire().await.unwrap() {
        panic!("{key}: {guard:?} was let in beside {busy:?}");
    }
    let waiting = tokio::spawn(lock().acquire_within(TTL));
    until_queued(&other, &key, "a", || waiting.is_finished()).await;
    busy.release().await.unwrap();
    release(waiting.await.unwrap()).await;
}

async fn release(guard: Result<lockkeeper::Guard>) {
    let guard = guard.unwrap();
    guard.check().unwrap();
    assert_ne!(guard.release().await.unwrap(), Release::AlreadyLost);
}

/// Queues another client, which releases as soon as it is granted.
fn queue(kind: Kind, client: &Client, key: &str, note: &str) -> JoinHandle<()> {
    let lock = kind.rival(client, key).note(note);
    tokio::spawn(async move { release(lock.acquire_within(TTL).await).await })
}

/// The holders and waiters of a key, by their notes.
async fn places(client: &Client, key: &str) -> BTreeSet<String> {
    let Some(seen) = client.inspect(key).await.unwrap() else { return BTreeSet::new() };
    let all = seen.holders.into_iter().chain(seen.waiters.unwrap_or_default());
    all.filter_map(|entry| entry.note).collect()
}

async fn connect(address: &str) -> Client {
    Client::connect(format!("etcd://{address}")).await.expect("the server runs")
}

async fn within(what: &str, task: impl Future<Output = Result<(), tokio::task::JoinError>>) {
    let ended = timeout(SOON, task).await;
    ended.unwrap_or_else(|_| panic!("{what}: not within {SOON:?}")).unwrap();
}

/// Waits until a client with this note is at a key, or has left it.
async fn until_queued(client: &Client, key: &str, note: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() && !places(client, key).await.contains(note) {
        assert!(started.elapsed() < SOON, "{key}: {note} is not in the queue within {SOON:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The connection from one client to a server.
struct Wire {
    address: SocketAddr,
    phase: Arc<watch::Sender<Phase>>,
    calls: Arc<AtomicUsize>,
    task: AbortHandle,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Passing,
    /// The reply to the request after this many others is to be lost.
    After(usize),
    /// The reply to this one.
    Asked(Stream),
    /// It is here, and everything on this connection waits.
    Arrived(Stream),
    Losing,
}

/// Which connection, and which stream on it.
type Stream = (usize, u32);

impl Wire {
    async fn start(target: SocketAddr, how: How) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let phase = Arc::new(watch::Sender::new(Phase::Passing));
        let calls = Arc::new(AtomicUsize::new(0));
        let (shared, counted) = (phase.clone(), calls.clone());
        let task = tokio::spawn(async move {
            // They end when this task drops them.
            let mut connections = JoinSet::new();
            for id in 0.. {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(target).await.unwrap();
                let connection =
                    Connection { id, how, phase: shared.clone(), calls: counted.clone() };
                connections.spawn(connection.serve(client, server));
            }
        });
        Self { address, phase, calls, task: task.abort_handle() }
    }

    fn lose(&self, nth: usize) {
        self.phase.send_replace(Phase::After(nth));
    }

    async fn arrived(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| matches!(phase, Phase::Arrived(_))).await;
    }

    fn go_on(&self) {
        self.phase.send_replace(Phase::Losing);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Connection {
    id: usize,
    how: How,
    phase: Arc<watch::Sender<Phase>>,
    calls: Arc<AtomicUsize>,
}

impl Connection {
    async fn serve(self, mut client: TcpStream, mut server: TcpStream) {
        {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let _ = tokio::try_join!(
                self.requests(from_client, to_server),
                self.replies(from_server, to_client)
            );
        }
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }

    async fn requests(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> std::io::Result<()> {
        // The connection preface of every client.
        let mut preface = [0; 24];
        from.read_exact(&mut preface).await?;
        to.write_all(&preface).await?;
        loop {
            let frame = Frame::read(&mut from).await?;
            if frame.is_message() {
                self.calls.fetch_add(1, Ordering::Relaxed);
                self.phase.send_if_modified(|phase| {
                    let Phase::After(others) = *phase else { return false };
                    *phase = match others.checked_sub(1) {
                        Some(others) => Phase::After(others),
                        None => Phase::Asked((self.id, frame.stream())),
                    };
                    true
                });
            }
            frame.write(&mut to).await?;
        }
    }

    async fn replies(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> std::io::Result<()> {
        loop {
            let frame = Frame::read(&mut from).await?;
            let stream = (self.id, frame.stream());
            let is_reply = frame.is_message() || frame.is_refusal();
            if !is_reply || *self.phase.borrow() != Phase::Asked(stream) {
                frame.write(&mut to).await?;
                continue;
            }
            self.phase.send_replace(Phase::Arrived(stream));
            let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Losing).await;
            self.phase.send_replace(Phase::Passing);
            match self.how {
                How::Reset => return Err(std::io::ErrorKind::ConnectionReset.into()),
                // Without its headers, both sides would lose their common state.
                How::Dropped if frame.is_refusal() => frame.write(&mut to).await?,
                How::Dropped => {}
            }
        }
    }
}

/// A frame of HTTP/2.
struct Frame {
    head: [u8; 9],
    body: Vec<u8>,
}

impl Frame {
    async fn read(from: &mut ReadHalf<'_>) -> std::io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        from.read_exact(&mut body).await?;
        Ok(Self { head, body })
    }

    async fn write(&self, to: &mut WriteHalf<'_>) -> std::io::Result<()> {
        to.write_all(&[&self.head[..], &self.body].concat()).await
    }

    fn stream(&self) -> u32 {
        u32::from_be_bytes([self.head[5] & 0x7f, self.head[6], self.head[7], self.head[8]])
    }

    /// Data: one message, as short as ours are.
    fn is_message(&self) -> bool {
        self.head[3] == 0 && !self.body.is_empty()
    }

    /// Headers that end the stream.
    fn is_refusal(&self) -> bool {
        self.head[3] == 1 && self.head[4] & 1 != 0
    }
}
