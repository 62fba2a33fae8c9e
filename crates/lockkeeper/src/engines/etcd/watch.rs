//! The watch stream: one per client, for all its waiters.
//!
//! A stream lives on one connection and dies with it. A watch that has started knows its revision,
//! so on a new stream it sees what it missed. If that was compacted meanwhile, or the server ends a
//! watch for any other reason, the waiter is woken to check for itself.
//!
//! Easy to get wrong: a server delivers the past in a loop that runs every 100 ms, and only the
//! present at once. So a watch that somebody waits for starts at the present, and whoever started it
//! checks what happened before that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::client::{
    Exchange, WatchCancelRequest, WatchCreateRequest, WatchFilter, WatchOrder, WatchRequest,
    WatchResponse,
};
use super::cluster::{Cluster, PATIENCE};

/// The pause after no stream could be opened.
const PAUSE: Duration = Duration::from_millis(200);

/// What is watched.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) key: Vec<u8>,
    /// The end of the range, exclusive; just the key if there is none.
    pub(super) end: Option<Vec<u8>>,
    /// The first revision that counts; zero is the next one.
    pub(super) from: i64,
    /// Whether changes count as well, not only deletions.
    pub(super) changes: bool,
}

impl Target {
    /// The request to start a watch.
    fn begin(&self, watch_id: i64) -> WatchRequest {
        let order = WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.end.clone().unwrap_or_default(),
            start_revision: self.from,
            filters: if self.changes { Vec::new() } else { vec![WatchFilter::NoPut as i32] },
            watch_id,
            fragment: true,
        };
        WatchRequest { order: Some(WatchOrder::Create(order)) }
    }
}

/// The watches of a client. Its task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watches {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicI64,
}

#[derive(Debug)]
enum Order {
    Begin(i64, Observed),
    End(i64),
}

/// A watch. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    /// The revision after which it sees everything, once a server has confirmed that.
    pub(super) started: oneshot::Receiver<i64>,
    /// Resolves when it happened, or can no longer be observed.
    pub(super) event: oneshot::Receiver<()>,
    _end: End<'a>,
}

impl Watches {
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        let (orders, queue) = mpsc::unbounded_channel();
        let task = Task { cluster, queue, wanted: HashMap::new() };
        tokio::spawn(task.run());
        Self { orders, next: AtomicI64::new(1) }
    }

    pub(super) fn begin(&self, target: Target) -> Watch<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (confirm, started) = oneshot::channel();
        let (wake, event) = oneshot::channel();
        let observed = Observed { target, confirm: Some(confirm), wake: Some(wake) };
        // The task lives as long as this.
        let _ = self.orders.send(Order::Begin(id, observed));
        Watch { started, event, _end: End { orders: &self.orders, id } }
    }
}

#[derive(Debug)]
struct End<'a> {
    orders: &'a mpsc::UnboundedSender<Order>,
    id: i64,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::End(self.id));
    }
}

struct Task {
    cluster: Arc<Cluster>,
    queue: mpsc::UnboundedReceiver<Order>,
    wanted: HashMap<i64, Observed>,
}

#[derive(Debug)]
struct Observed {
    target: Target,
    /// `None` once it has started.
    confirm: Option<oneshot::Sender<i64>>,
    /// `None` once it was woken; then its end is on the way.
    wake: Option<oneshot::Sender<()>>,
}

type Stream = Exchange<WatchRequest, WatchResponse>;

impl Task {
    async fn run(mut self) {
        while self.first_wanted().await {
            let member = self.cluster.current();
            let (was_open, ended_well) = match timeout(PATIENCE, self.open(member)).await {
                Ok(Ok(stream)) => (true, self.follow(stream, member).await),
                _ => (false, false),
            };
            let pauses = !ended_well && member == self.cluster.current();
            if pauses {
                self.cluster.leave(member);
            }
            if was_open && !ended_well {
                // After leaving: whoever asks now should ask another member.
                self.cluster.disconnections.report();
            }
            if pauses {
                sleep(PAUSE).await;
            }
        }
    }

    /// Waits until there is something to watch. False if there will be no more.
    async fn first_wanted(&mut self) -> bool {
        while self.wanted.is_empty() {
            match self.queue.recv().await {
                Some(order) => self.note(order),
                None => return false,
            };
        }
        true
    }

    /// Records an order, and returns which watch has to be started or ended on a stream.
    fn note(&mut self, order: Order) -> Option<(i64, Option<Target>)> {
        match order {
            Order::Begin(id, observed) => {
                let target = observed.target.clone();
                self.wanted.insert(id, observed);
                Some((id, Some(target)))
            }
            Order::End(id) => self.wanted.remove(&id).map(|_| (id, None)),
        }
    }

    /// Opens a stream with all current watches.
    async fn open(&self, member: usize) -> Result<Stream, Status> {
        let mut orders = self.wanted.iter().map(|(id, watch)| watch.target.begin(*id));
        let first = orders.next().expect("a stream is opened when something is wanted");
        let stream = self.cluster.client(member).watch(first).await?;
        for order in orders {
            let ended = |_| Status::unavailable("the stream has ended");
            stream.orders.send(order).await.map_err(ended)?;
        }
        Ok(stream)
    }

    /// Serves one stream until it ends. False if it failed, true if it is no longer needed.
    async fn follow(&mut self, mut stream: Stream, member: usize) -> bool {
        let mut moves = self.cluster.moves();
        loop {
            tokio::select! {
                reply = stream.replies.message() => match reply {
                    Ok(Some(reply)) => if !self.read(&reply) {
                        return true;
                    },
                    _ => return false,
                },
                order = self.queue.recv() => {
                    let Some(order) = order else { return true };
                    let order = match self.note(order) {
                        Some((id, Some(target))) => target.begin(id),
                        Some((watch_id, None)) => {
                            WatchRequest { order: Some(WatchOrder::Cancel(WatchCancelRequest { watch_id })) }
                        }
                        None => continue,
                    };
                    let sent = timeout(PATIENCE, stream.orders.send(order)).await;
                    // A connection that no longer moves data fills up.
                    if !matches!(sent, Ok(Ok(()))) {
                        return false;
                    }
                }
                () = moved(&mut moves, member) => return true,
            }
        }
    }

    /// Wakes the waiter. False if the stream has to be opened again.
    fn read(&mut self, reply: &WatchResponse) -> bool {
        let Some(watch) = self.wanted.get_mut(&reply.watch_id) else { return true };
        if let (true, false, Some(header)) = (reply.created, reply.canceled, &reply.header) {
            watch.started(header.revision);
        }
        if !reply.canceled && reply.events.is_empty() {
            return true;
        }
        if let Some(wake) = watch.wake.take() {
            // The waiter may have given up.
            let _ = wake.send(());
        }
        if reply.canceled {
            self.wanted.remove(&reply.watch_id);
        }
        // A stream keeps the token that it was opened with, and a server that refuses a watch may
        // just no longer accept that token.
        !reply.canceled || reply.compact_revision > 0
    }
}

impl Observed {
    /// It sees everything after this revision, also on a later stream.
    fn started(&mut self, revision: i64) {
        if self.target.from == 0 {
            self.target.from = revision + 1;
        }
        if let Some(confirm) = self.confirm.take() {
            // The waiter may have given up.
            let _ = confirm.send(revision);
        }
    }
}

/// Resolves when another member is used.
async fn moved(moves: &mut watch::Receiver<usize>, from: usize) {
    // The sender lives as long as the task that waits here.
    let _ = moves.wait_for(|current| *current != from).await;
}
