//! The resource's side of a lock: data that rejects stale holders.
//!
//! This is the whole rule, for data in this process. A database, a queue or a service does the same
//! with a column, a key or a header; `docs/semantics.md` shows it in SQL and Lua.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::engine::Fence;

/// Data that can only be accessed with a fence, and rejects fences older than the newest it has
/// seen.
///
/// Comparing the fence and doing the work are one atomic step.
///
/// ```
/// use lockkeeper::{Fence, Fenced};
///
/// let balance = Fenced::new(0);
/// let (old, new) = (Fence::new(1), Fence::new(2));
/// balance.access(old, |balance| *balance += 10)?;
/// balance.access(new, |balance| *balance += 1)?;
/// let refused = balance.access(old, |balance| *balance = 0).unwrap_err();
/// assert_eq!(refused.to_string(), "fence 1 is too old: 2 was here");
/// # Ok::<(), lockkeeper::Stale>(())
/// ```
///
/// The permits of a semaphore have one fence per slot: keep one `Fenced` per slot.
#[derive(Debug)]
pub struct Fenced<T> {
    inner: Mutex<(Fence, T)>,
}

impl<T> Fenced<T> {
    /// Wraps data that has not been accessed yet.
    pub fn new(data: T) -> Self {
        Self::after(Fence::default(), data)
    }

    /// Wraps data that was stored together with the highest fence it had seen.
    pub fn after(fence: Fence, data: T) -> Self {
        Self { inner: Mutex::new((fence, data)) }
    }

    /// Runs `work` on the data, unless it was accessed with a higher fence before.
    ///
    /// Reads raise the fence too: what a holder reads stays true until that holder writes.
    ///
    /// # Errors
    /// [`Stale`] if the fence is too old. The work is not run then.
    pub fn access<R>(&self, fence: Fence, work: impl FnOnce(&mut T) -> R) -> Result<R, Stale> {
        // A panic in `work` leaves the fence set, which is all that has to be consistent here.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (highest, data) = &mut *inner;
        if fence < *highest {
            return Err(Stale { fence, highest: *highest });
        }
        *highest = fence;
        Ok(work(data))
    }

    /// Returns the highest fence and the data, to be stored together.
    pub fn into_parts(self) -> (Fence, T) {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Fenced<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// The fence of an access was too old: the data was accessed with a higher one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The fence of the access.
    pub fence: Fence,
    /// The highest fence seen so far.
    pub highest: Fence,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} is too old: {} was here", self.fence, self.highest)
    }
}

impl std::error::Error for Stale {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_keeps_older_writers_out() {
        let data = Fenced::after(Fence::new(5), "old");
        assert_eq!(
            data.access(Fence::new(4), |data| *data),
            Err(Stale { fence: Fence::new(4), highest: Fence::new(5) })
        );
        assert_eq!(data.access(Fence::new(7), |data| *data), Ok("old"));
        assert!(data.access(Fence::new(6), |data| *data = "late").is_err());
        assert_eq!(data.into_parts(), (Fence::new(7), "old"));
    }

    #[test]
    fn the_same_holder_may_access_repeatedly() {
        let data: Fenced<u32> = Fenced::default();
        for _ in 0..3 {
            data.access(Fence::new(1), |data| *data += 1).unwrap();
        }
        assert_eq!(data.into_parts(), (Fence::new(1), 3));
    }

    #[test]
    fn work_that_panics_does_not_open_the_gate() {
        let data = Fenced::new(0);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            data.access(Fence::new(2), |_| panic!("in the middle of it"))
        }));
        assert!(caught.is_err());
        assert!(data.access(Fence::new(1), |_| ()).is_err());
        assert!(data.access(Fence::new(2), |_| ()).is_ok());
    }
}
