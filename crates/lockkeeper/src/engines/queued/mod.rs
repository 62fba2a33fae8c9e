//! The queue protocol of ZooKeeper and etcd, written once: [`QueuedClaim`] over a [`Queue`].
//!
//! Every claim makes an entry in the queue of its lock. The store keeps entries in order of arrival and
//! removes those of dead clients, and nobody gets ahead of an entry that exists. So being ahead *is*
//! holding, and "it is in" stays true while the entry is there. A stale read can let nobody in too early;
//! all it can hide is that our own entry is gone, which is why a grant is confirmed by a write.

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

    /// What a look at the queue shows.
    type View: Send + Sync;

    /// What a waiter waits for.
    type Ahead: fmt::Debug + Send + Sync;

    /// Whether a waiter has nothing new to see, where a cheap request tells.
    async fn is_unchanged(&self, _ahead: &Self::Ahead) -> bool {
        false
    }

    /// Makes an entry if there is none, and looks at the queue.
    ///
    /// An entry whose reply was lost is found again. Without [`Request::queue`](crate::engine::Request::queue) it looks first, and makes
    /// no entry if it would have to wait.
    ///
    /// # Errors
    /// [`Error::Conflict`](crate::Error::Conflict) if the key is in use as another kind; the claim then leaves.
    async fn enter(&mut self, asked: Moment) -> Result<Entered<Self::View>>;

    /// Whether it is our turn, and if not, what has to happen first.
    async fn turn(&mut self, view: &Self::View) -> Result<Turn<Self::Ahead>>;

    /// It is our turn: makes sure of it by a write, and says which fence and slots it gives.
    ///
    /// `None` when the store changed since `view`, and has to be looked at again.
    async fn confirm(&mut self, view: Self::View, asked: Moment) -> Result<Option<Grant>>;

    /// Until it is worth looking again.
    ///
    /// # Cancel safety
    /// May be dropped at any await.
    async fn wait(&mut self, ahead: &mut Self::Ahead) -> Result<()>;

    /// Removes whatever is there of us, or may be there. The request leaves on the first poll.
    async fn leave(&mut self) -> Result<Released>;
}

/// The answer of [`Queue::enter`].
pub(super) enum Entered<V> {
    /// Our entry is there, and this is what the queue looks like.
    Queued(V),
    /// It made no entry, because it would have to wait.
    Busy,
    /// The entry was taken away meanwhile.
    Gone,
}

/// The answer of [`Queue::turn`].
pub(super) enum Turn<A> {
    In,
    Behind(A),
}

/// Whose turn it is in a queue of these modes, where order alone decides.
pub(super) fn turn(queue: impl IntoIterator<Item = Mode>, at: usize) -> admission::Turn {
    let entry = |(owner, mode)| Queued { owner, mode, granted: false };
    let queue: Vec<_> = queue.into_iter().enumerate().map(entry).collect();
    admission::turn(&queue, at)
}
