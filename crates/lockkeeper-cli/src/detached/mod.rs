//! Locks that outlive the command that acquired them: `acquire`, `renew` and `release` by a handle.

pub(crate) mod handle;
pub(crate) mod holder;
pub(crate) mod protocol;
