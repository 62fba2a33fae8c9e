//! Mutual exclusion between processes and machines, over the stores you already run.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! use lockkeeper::Client;
//!
//! let client = Client::connect("memory:").await?; // or "file:", which needs nothing either
//!
//! // The work is cancelled before anyone else can be let in, should the lock be lost.
//! let fence = client.mutex("orders/42").run(async |hold| hold.fence()).await?;
//! println!("done under fence {fence}");
//! # Ok(())
//! # }
//! ```
//!
//! Or with the guard in your own hands, waiting for as long as you like, or not at all:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! # let client = lockkeeper::Client::connect("memory:").await?;
//! use std::time::Duration;
//! use lockkeeper::Error;
//!
//! let guard = client.mutex("report").acquire().await?;
//!
//! // Busy is an answer, not an error; a wait that took too long is one.
//! assert!(client.mutex("report").try_acquire().await?.is_none());
//! let late = client.mutex("report").acquire_within(Duration::from_millis(10)).await;
//! assert!(matches!(late, Err(Error::Timeout { .. })));
//!
//! guard.check()?; // is it still ours, by the clock, now?
//! guard.release().await?; // or drop it
//! # Ok(())
//! # }
//! ```
//!
//! Work that cannot simply be dropped hears of a loss a margin before the lock can pass on:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! # let client = lockkeeper::Client::connect("memory:").await?;
//! # async fn next_page() -> Option<u32> { None }
//! let guard = client.semaphore("crawlers", 4).acquire().await?; // one of four
//! loop {
//!     tokio::select! {
//!         reason = guard.lost() => break println!("stopping: {reason}"),
//!         page = next_page() => match page {
//!             Some(page) => println!("page {page}"),
//!             None => break,
//!         },
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A service that ends on SIGTERM leaves nothing behind if it [shuts the client down](Client::shutdown).
//! Without that, a guard that is dropped is released as long as the runtime lives, and whatever is held
//! when `main` returns, the runtime is dropped or the process is killed stays locked for its lease.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let client = lockkeeper::Client::connect("memory:").await?;
//! # use std::time::Duration;
//! # async fn terminated() {}
//! terminated().await; // tokio::signal::unix, SignalKind::terminate()
//! let late = client.shutdown(Duration::from_secs(10)).await;
//! if !late.is_empty() {
//!     eprintln!("released under their holders: {late:?}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Every engine is a cargo feature: `memory` and `file` (the default), `redis` (which brings
//! `redis:` and `redlock:`), `postgres`, `mysql`, `zookeeper`, `zookeeper-tls` and `etcd`.
//! [`Guarantees`] is what an engine promises, as data.
//!
//! - [`Client`] opens an engine and makes locks: [`mutex`](Client::mutex), [`read`](Client::read),
//!   [`write`](Client::write), [`semaphore`](Client::semaphore), [`election`](Client::election).
//! - [`Lock`] has the terms and the ways to acquire; [`Multi`] takes several at once.
//! - [`Guard`] is a lock that is held: its [`fence`](Guard::fence), whether it is
//!   [still ours](Guard::check), and the [news of its loss](Guard::lost).
//! - [`blocking`] has the same words for code without async; [`testing`] is for tests of your own.
//! - [`engine`] is the contract for those who write an engine; [`admission`] is the rule by which
//!   engines admit; [`layers`] wraps engines.
//!
//! A lease lock alone never protects data: a holder can be paused for any length of time between
//! looking at the clock and writing. The resource has to refuse fences lower than one it has seen,
//! as [`Fenced`] does for data in memory.

// Badges that name the feature of each engine, on docs.rs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod client;
mod core;
mod election;
pub mod engine;
pub mod engines;
mod error;
mod fenced;
mod guard;
mod key;
pub mod layers;
mod lock;
mod multi;
mod owner;
#[cfg(feature = "memory")]
pub mod testing;
mod who;

pub use crate::core::{Backoff, admission, clock};
pub use client::Client;
pub use election::{Election, Leader, Observer, Term};
pub use engine::{Entry, Fence, Finding, Guarantees, Mode, Severity, Snapshot};
pub use engines::endpoint;
pub use error::{Error, Loss, Result};
pub use fenced::{Fenced, Stale};
pub use guard::{Guard, Release, Trouble};
pub use key::Key;
pub use lock::{DEFAULT_TTL, Lock};
pub use multi::{Multi, MultiGuard};
pub use owner::{Owner, Token};
pub use who::whoami;
