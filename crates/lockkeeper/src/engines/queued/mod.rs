//! The queue protocol of ZooKeeper and etcd, written once: [`QueuedClaim`] over a [`Queue`].
//!
//! Every claim creates an entry in the queue of its lock. The store keeps entries in order of
//! arrival and removes those of dead clients, and no entry is ever inserted ahead of an existing
//! one. So being first *is* holding, and a grant stays valid as long as the entry exists. A stale
//! read can never grant too early. All it can hide is that our own entry is gone, which is why a
//! grant is confirmed by a write.

mod claim;

pub(super) use claim::QueuedClaim;

use std::fmt;

use async_trait::async_trait;

use crate::core::admission::{self, Queued};
use crate::core::clock::Moment;
use crate::engine::{Grant, Mode, Released};
use crate::error::Result;

/// One claim's view of the queue of a lock, in the terms of its store.
#[async_trait]
pub(super) trait Queue: fmt::Debug + Send + Sync {
    const ENGINE: &'static str;

    /// What a read of the queue returns.
    type View: Send + Sync;

    /// What a waiter waits for.
    type Ahead: fmt::Debug + Send + Sync;

    /// Whether a waiter has nothing new to read, if a cheap request can tell.
    async fn is_unchanged(&self, _ahead: &Self::Ahead) -> bool {
        false
    }

    /// Creates an entry if there is none, and reads the queue.
    ///
    /// An entry whose reply was lost is found again. Without
    /// [`Request::queue`](crate::engine::Request::queue), it reads first, and creates no entry if
    /// it would have to wait.
    ///
    /// # Errors
    /// [`Error::Conflict`](crate::Error::Conflict) if the key is in use as another kind; the claim
    /// then leaves.
    async fn enter(&mut self, asked: Moment) -> Result<Entered<Self::View>>;

    /// Whether it is our turn, and if not, what has to happen first.
    async fn turn(&mut self, view: &Self::View) -> Result<Turn<Self::Ahead>>;

    /// It is our turn: confirms that by a write, and returns the grant with its fence and slots.
    ///
    /// `None` if the store changed since `view`, and has to be read again.
    async fn confirm(&mut self, view: Self::View, asked: Moment) -> Result<Option<Grant>>;

    /// Waits until it is worth reading again.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    async fn wait(&mut self, ahead: &mut Self::Ahead) -> Result<()>;

    /// Removes everything of ours that exists or may exist. The request is sent on the first poll.
    async fn leave(&mut self) -> Result<Released>;
}

/// The result of [`Queue::enter`].
pub(super) enum Entered<V> {
    /// Our entry exists, and this is the queue.
    Queued(V),
    /// No entry was created, because it would have to wait.
    Busy,
    /// The entry was removed meanwhile.
    Gone,
}

/// The result of [`Queue::turn`].
pub(super) enum Turn<A> {
    In,
    Behind(A),
}

/// Whose turn it is in a queue of these modes, if order alone decides.
pub(super) fn turn(queue: impl IntoIterator<Item = Mode>, at: usize) -> admission::Turn {
    let entry = |(owner, mode)| Queued { owner, mode, granted: false };
    let queue: Vec<_> = queue.into_iter().enumerate().map(entry).collect();
    admission::turn(&queue, at)
}
