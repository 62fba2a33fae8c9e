//! Testing code that uses locks: no server, no waiting, and failures on demand.
//!
//! [`Memory`] is the engine `memory:` with controls for tests. Its only clock is the runtime's, so
//! with `#[tokio::test(start_paused = true)]` (tokio's feature `test-util`) an hour of leases takes
//! no time.
//!
//! ```
//! use std::time::Duration;
//! use lockkeeper::testing::Memory;
//! use lockkeeper::{Client, Error, Loss};
//!
//! # async fn nightly(client: &Client) -> lockkeeper::Result<()> {
//! #     let work = async |_: &lockkeeper::Guard| tokio::time::sleep(Duration::from_secs(600)).await;
//! #     client.mutex("nightly").run(work).await
//! # }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let store = Memory::new();
//! let client = Client::new(store.clone()); // the code under test takes a client
//!
//! let cut = async {
//!     tokio::time::sleep(Duration::from_secs(150)).await;
//!     store.partition(true);
//! };
//! let (ended, ()) = tokio::join!(nightly(&client), cut);
//! assert!(matches!(ended, Err(Error::Lost { reason: Loss::Expired, .. })));
//! # }
//! ```
//!
//! | to test that | use |
//! |---|---|
//! | a lock is busy | a second client of a clone of the store, which acquires it |
//! | a lease expires without the holder noticing | [`Memory::expire`] |
//! | the store does not answer | [`Memory::partition`] |
//! | the store is slow | [`Memory::delay`] |
//! | calls fail, or their replies get lost, at random with a seed | [`Faults`] around the store, with a [`Plan`] |
//! | an operator breaks a lock, or asks for it | [`Client::break_lock`](crate::Client::break_lock), [`Client::request_yield`](crate::Client::request_yield) |
//! | the service shuts down | [`Client::shutdown`](crate::Client::shutdown) |

pub use crate::engines::memory::Memory;
pub use crate::layers::faults::{Faults, Plan};
