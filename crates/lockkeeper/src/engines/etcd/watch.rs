//! The watch stream: one per client, for all its waiters.
//!
//! A stream lives on one connection and dies with it. Every watch names the revision that it starts
//! from, so on a new stream it sees what it missed. If that was compacted away meanwhile, or the
//! server ends a watch for any other reason, the waiter is woken to look for itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd_client::{
    Error as EtcdError, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::cluster::{Cluster, PATIENCE};

/// How long nothing is tried after no stream could be opened.
const PAUSE: Duration = Duration::from_millis(200);

/// What is waited for.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) key: Vec<u8>,
    /// Everything from the key up to here; just the key if there is none.
    pub(super) end: Option<Vec<u8>>,
    /// The first revision that counts.
    pub(super) from: i64,
    /// Whether changes count as well, not only deletions.
    pub(super) changes: bool,
}

impl Target {
    fn options(&self, id: i64) -> WatchOptions {
        let mut options =
            WatchOptions::new().with_start_revision(self.from).with_watch_id(id).with_fragment();
        if let Some(end) = &self.end {
            options = options.with_range(end.clone());
        }
        if !self.changes {
            options = options.with_filters([WatchFilterType::NoPut]);
        }
        options
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
    Begin(i64, Target, oneshot::Sender<()>),
    End(i64),
}

impl Watches {
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        let (orders, queue) = mpsc::unbounded_channel();
        let task = Task { cluster, queue, wanted: HashMap::new() };
        tokio::spawn(task.run());
        Self { orders, next: AtomicI64::new(1) }
    }

    /// Until it happened, or nobody can tell whether it did.
    ///
    /// # Cancel safety
    /// Dropped, the watch is ended.
    pub(super) async fn event(&self, target: Target) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (wake, woken) = oneshot::channel();
        // The task lives as long as this.
        let _ = self.orders.send(Order::Begin(id, target, wake));
        let _end = End { orders: &self.orders, id };
        let _ = woken.await;
    }
}

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
    wanted: HashMap<i64, Watch>,
}

struct Watch {
    target: Target,
    /// `None` once it was woken; its end is on the way then.
    wake: Option<oneshot::Sender<()>>,
}

struct Stream {
    requests: WatchRequestSender,
    replies: WatchResponseStream,
}

impl Task {
    async fn run(mut self) {
        while self.first_wanted().await {
            let member = self.cluster.current();
            let opened = match timeout(PATIENCE, self.open(member)).await {
                Ok(Ok(stream)) => self.follow(stream, member).await,
                _ => false,
            };
            if !opened && member == self.cluster.current() {
                self.cluster.leave(member);
                sleep(PAUSE).await;
            }
        }
    }

    /// Waits until there is something to watch. False when there will be no more.
    async fn first_wanted(&mut self) -> bool {
        while self.wanted.is_empty() {
            match self.queue.recv().await {
                Some(order) => self.note(order),
                None => return false,
            };
        }
        true
    }

    /// Notes an order, and says which watch is to be begun or ended on a stream.
    fn note(&mut self, order: Order) -> Option<(i64, Option<Target>)> {
        match order {
            Order::Begin(id, target, wake) => {
                self.wanted.insert(id, Watch { target: target.clone(), wake: Some(wake) });
                Some((id, Some(target)))
            }
            Order::End(id) => self.wanted.remove(&id).map(|_| (id, None)),
        }
    }

    /// Opens a stream with everything that is wanted on it.
    async fn open(&self, member: usize) -> Result<Stream, EtcdError> {
        let mut watches = self.wanted.iter();
        let (id, Watch { target: first, .. }) =
            watches.next().expect("a stream is opened when something is wanted");
        let mut client = self.cluster.client(member).await?.watch_client();
        let stream = client.watch(first.key.clone(), Some(first.options(*id))).await?;
        let (mut requests, replies) = stream.split();
        for (id, Watch { target, .. }) in watches {
            requests.watch(target.key.clone(), Some(target.options(*id))).await?;
        }
        Ok(Stream { requests, replies })
    }

    /// Serves one stream until it ends. False when it failed, true when it is just not wanted any more.
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
                    let requests = &mut stream.requests;
                    let sent = match self.note(order) {
                        Some((id, Some(target))) => {
                            let options = Some(target.options(id));
                            timeout(PATIENCE, requests.watch(target.key, options)).await
                        }
                        Some((id, None)) => timeout(PATIENCE, requests.cancel(id)).await,
                        None => continue,
                    };
                    // A connection on which nothing moves any more fills up.
                    if !matches!(sent, Ok(Ok(()))) {
                        return false;
                    }
                }
                () = moved(&mut moves, member) => return true,
            }
        }
    }

    /// Wakes the waiter. False when the stream has to be opened again.
    fn read(&mut self, reply: &WatchResponse) -> bool {
        if !reply.canceled() && reply.events().is_empty() {
            return true;
        }
        let Some(watch) = self.wanted.get_mut(&reply.watch_id()) else { return true };
        if let Some(wake) = watch.wake.take() {
            // The waiter may have given up.
            let _ = wake.send(());
        }
        if reply.canceled() {
            self.wanted.remove(&reply.watch_id());
        }
        // A stream goes on with the token that it began with, and a server that refuses a watch may
        // just not know that token any more.
        !reply.canceled() || reply.compact_revision() > 0
    }
}

/// Until another member is talked to.
async fn moved(moves: &mut watch::Receiver<usize>, from: usize) {
    // The sender lives as long as the task that waits here.
    let _ = moves.wait_for(|current| *current != from).await;
}
