//! Locks that outlive the command that took them: `acquire`, `renew` and `release` by a handle.

pub(crate) mod handle;
pub(crate) mod holder;
