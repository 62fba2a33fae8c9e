//! Mutual exclusion between processes and machines, over the stores you already run.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> lockkeeper::Result<()> {
//! use lockkeeper::Client;
//!
//! let client = Client::connect("memory:").await?; // or "file:", which needs nothing either
//!
//! // If the lock is lost, the work is cancelled before any other client can acquire it.
//! let fence = client.mutex("orders/42").run(async |hold| hold.fence()).await?;
//! println!("done under fence {fence}");
//! # Ok(())
//! # }
//! ```
//!
//! Or hold the guard yourself, and wait as long as you like or not at all:
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
//! // Busy is an answer, not an error; a wait that exceeds its limit is an error.
//! assert!(client.mutex("report").try_acquire().await?.is_none());
//! let late = client.mutex("report").acquire_within(Duration::from_millis(10)).await;
//! assert!(matches!(late, Err(Error::Timeout { .. })));
//!
//! guard.check()?; // is it still held, by the clock, now?
//! guard.release().await?; // or drop it
//! # Ok(())
//! # }
//! ```
//!
//! Work that must not simply be dropped can wait for the loss instead, which is signalled a margin
//! before another client can acquire the lock:
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
//! A service that ends on SIGTERM should [shut the client down](Client::shutdown), which releases
//! everything. Otherwise dropped guards are released only as long as the runtime lives, and locks
//! that are still held when `main` returns, the runtime is dropped or the process is killed stay
//! locked until their leases expire.
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
//! [`Guarantees`] describes what an engine promises, as data.
//!
//! - [`Client`] connects to an engine and creates locks: [`mutex`](Client::mutex),
//!   [`read`](Client::read), [`write`](Client::write), [`semaphore`](Client::semaphore),
//!   [`election`](Client::election).
//! - [`Lock`] configures a lock and acquires it; [`Multi`] acquires several at once.
//! - [`Guard`] is a lock that you hold: its [`fence`](Guard::fence), whether it is [still
//!   held](Guard::check), and a [signal when it is lost](Guard::lost).
//! - [`blocking`] is the same API for code without async; [`testing`] helps to test code that uses
//!   locks.
//! - [`engine`] is the contract for writing an engine; [`admission`] is the rule by which engines
//!   grant locks to waiters; [`layers`] are engines that wrap engines.
//!
//! A lease lock alone never protects data: a holder can be paused for any length of time between
//! checking the clock and writing. The resource has to reject fences lower than one it has seen, as
//! [`Fenced`] does for data in memory.

// docs.rs shows which feature enables each engine.
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
mod masked;
mod multi;
mod owner;
#[cfg(feature = "memory")]
pub mod testing;
mod who;

pub use crate::core::{Backoff, Outage, Outages, admission, clock};
pub use client::Client;
pub use election::{Election, Leader, Observer, Term};
pub use engine::{
    Break, BrokenHold, Entry, Fence, Finding, Guarantees, Mode, Severity, Snapshot, YieldRequest,
};
pub use engines::endpoint;
pub use error::{Error, Loss, Result};
pub use fenced::{Fenced, Stale};
pub use guard::{Guard, Release, Trouble};
pub use key::Key;
pub use lock::{DEFAULT_TTL, Lock};
pub use multi::{Multi, MultiGuard};
pub use owner::{Owner, Token};
pub use who::whoami;
