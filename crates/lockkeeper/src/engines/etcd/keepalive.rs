//! The keep-alive stream: one per client, for all its leases.
//!
//! A stream lives on one connection and dies with it. Requests that it leaves without an answer are
//! sent again on a new one, at the next member. No answer at all is [`KeepAliveOutcome::Unknown`],
//! never "gone".

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::client::{Exchange, LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use super::cluster::Cluster;
use crate::engines::disconnections::Disconnections;

/// The outcome of keeping a lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAliveOutcome {
    /// Extended to its full length.
    Alive,
    /// The store no longer knows it.
    Gone,
    /// No member answered.
    Unknown,
}

/// The stream, opened on demand.
#[derive(Debug, Default)]
pub(super) struct KeepAlive {
    stream: AsyncMutex<Option<Stream>>,
}

#[derive(Debug)]
struct Stream {
    orders: mpsc::Sender<LeaseKeepAliveRequest>,
    member: usize,
    asked: Arc<Asked>,
    reader: AbortHandle,
}

/// The callers that wait for an answer about each lease. The answers about one lease come in order.
#[derive(Debug, Default)]
struct Asked {
    /// `None` once the stream has ended.
    waiting: Mutex<Option<HashMap<i64, VecDeque<oneshot::Sender<i64>>>>>,
}

impl KeepAlive {
    /// Keeps leases alive, each counted from before this call, with this timeout per member.
    pub(super) async fn keep(
        &self,
        cluster: &Cluster,
        leases: &[i64],
        patience: Duration,
    ) -> Vec<KeepAliveOutcome> {
        let mut outcomes = vec![KeepAliveOutcome::Unknown; leases.len()];
        // At least twice: the first stream may turn out to have ended long ago.
        for _ in 0..cluster.addresses().count().max(2) {
            let member = cluster.current();
            let until = Instant::now() + patience;
            let open: Vec<_> =
                (0..leases.len()).filter(|n| outcomes[*n] == KeepAliveOutcome::Unknown).collect();
            let ids: Vec<_> = open.iter().map(|n| leases[*n]).collect();
            let Ok(Ok(answers)) = timeout_at(until, self.send(cluster, member, &ids)).await else {
                self.forget(member).await;
                cluster.leave(member);
                continue;
            };
            for (n, answer) in open.into_iter().zip(answers) {
                outcomes[n] = match timeout_at(until, answer).await {
                    Ok(Ok(ttl)) if ttl > 0 => KeepAliveOutcome::Alive,
                    Ok(Ok(_)) => KeepAliveOutcome::Gone,
                    _ => KeepAliveOutcome::Unknown,
                };
            }
            if !outcomes.contains(&KeepAliveOutcome::Unknown) {
                break;
            }
            self.forget(member).await;
            cluster.leave(member);
        }
        outcomes
    }

    /// Sends the requests on the stream of this member. The answers are the remaining seconds.
    async fn send(
        &self,
        cluster: &Cluster,
        member: usize,
        leases: &[i64],
    ) -> Result<Vec<oneshot::Receiver<i64>>, Status> {
        let mut answers = Vec::with_capacity(leases.len());
        let mut stream = self.stream.lock().await;
        stream.take_if(|stream| stream.member != member || stream.asked.has_ended());
        for id in leases.iter().copied() {
            let order = LeaseKeepAliveRequest { id };
            let (reply, coming) = oneshot::channel();
            match &mut *stream {
                Some(stream) => {
                    stream.asked.add(id, reply);
                    let ended = |_| Status::unavailable("the stream has ended");
                    stream.orders.send(order).await.map_err(ended)?;
                }
                none => {
                    let asked = Arc::new(Asked { waiting: Mutex::new(Some(HashMap::new())) });
                    asked.add(id, reply);
                    let exchange = cluster.client(member).keep_alive(order).await?;
                    let disconnections = cluster.disconnections.clone();
                    *none = Some(Stream::new(exchange, asked, member, disconnections));
                }
            }
            answers.push(coming);
        }
        Ok(answers)
    }

    /// Closes the stream of a member that does not answer.
    async fn forget(&self, member: usize) {
        self.stream.lock().await.take_if(|stream| stream.member == member);
    }
}

impl Stream {
    fn new(
        exchange: Exchange<LeaseKeepAliveRequest, LeaseKeepAliveResponse>,
        asked: Arc<Asked>,
        member: usize,
        disconnections: Disconnections,
    ) -> Self {
        let Exchange { orders, mut replies } = exchange;
        let answered = asked.clone();
        let reader = tokio::spawn(async move {
            while let Ok(Some(reply)) = replies.message().await {
                answered.resolve(reply.id, reply.ttl);
            }
            answered.end();
            disconnections.report();
        });
        Self { orders, member, asked, reader: reader.abort_handle() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
        self.asked.end();
    }
}

impl Asked {
    fn add(&self, lease: i64, reply: oneshot::Sender<i64>) {
        // Dropped at once if the stream has ended, which the receiver takes for no answer.
        if let Some(waiting) = &mut *self.lock() {
            waiting.entry(lease).or_default().push_back(reply);
        }
    }

    fn resolve(&self, lease: i64, ttl: i64) {
        let mut asked = self.lock();
        let Some(waiting) = &mut *asked else { return };
        let Some(queue) = waiting.get_mut(&lease) else { return };
        let reply = queue.pop_front();
        if queue.is_empty() {
            waiting.remove(&lease);
        }
        drop(asked);
        if let Some(reply) = reply {
            // The caller may have given up.
            let _ = reply.send(ttl);
        }
    }

    fn end(&self) {
        *self.lock() = None;
    }

    fn has_ended(&self) -> bool {
        self.lock().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashMap<i64, VecDeque<oneshot::Sender<i64>>>>> {
        self.waiting.lock().expect("nothing panics under this lock")
    }
}
