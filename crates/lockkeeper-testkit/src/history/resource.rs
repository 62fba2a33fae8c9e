//! A resource that locks protect: it rejects fences lower than one it has seen, and keeps a log.
//!
//! Easy to get wrong: the fence has to be raised before the first *read*. Otherwise a stale holder
//! may still write between the new holder's read and its write, and that write is lost.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// What is protected: a key, and for semaphores one of its permits.
pub type Object = (String, u32);

/// One access, accepted or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Access {
    /// What was accessed.
    pub object: Object,
    /// Under which fence.
    pub fence: u64,
    /// By whom.
    pub owner: String,
    /// Whether the lock was a shared one.
    pub shared: bool,
    /// For a write, which write it builds on (0 for none) and its own number.
    pub write: Option<(u64, u64)>,
    /// Whether it was let through.
    pub accepted: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.write {
            Some((saw, wrote)) => write!(f, "write {wrote} over {saw}")?,
            None => write!(f, "a read")?,
        }
        let (key, slot) = &self.object;
        write!(f, " of {key:?} slot {slot} by {} under fence {}", self.owner, self.fence)
    }
}

/// Any number of objects, each with its own fence.
#[derive(Debug)]
pub struct Resource {
    fenced: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<Object, Protected>,
    log: Vec<Access>,
    writes: u64,
}

#[derive(Debug, Default)]
struct Protected {
    /// The highest fence, and its owner once an exclusive holder used it.
    fence: u64,
    owner: Option<String>,
    /// The number of the last write.
    value: u64,
}

impl Resource {
    /// A resource that checks fences.
    pub fn fenced() -> Self {
        Self { fenced: true, state: Mutex::default() }
    }

    /// A resource that does not check fences, to show the consequences.
    pub fn unfenced() -> Self {
        Self { fenced: false, state: Mutex::default() }
    }

    /// Raises the fence and reads: the number of the last write, or `None` when refused.
    pub fn read(&self, object: &Object, fence: u64, owner: &str, shared: bool) -> Option<u64> {
        self.access(object, fence, owner, shared, None)
    }

    /// Writes on top of what was read. False when refused.
    pub fn write(&self, object: &Object, fence: u64, owner: &str, saw: u64) -> bool {
        self.access(object, fence, owner, false, Some(saw)).is_some()
    }

    /// What happened so far, in order.
    pub fn log(&self) -> Vec<Access> {
        self.lock().log.clone()
    }

    /// The same, which is then no longer kept.
    pub(crate) fn take_log(&self) -> Vec<Access> {
        std::mem::take(&mut self.lock().log)
    }

    fn access(
        &self,
        object: &Object,
        fence: u64,
        owner: &str,
        shared: bool,
        saw: Option<u64>,
    ) -> Option<u64> {
        let mut state = self.lock();
        let state = &mut *state;
        let protected = state.objects.entry(object.clone()).or_default();
        let another = protected.owner.as_deref().is_some_and(|first| first != owner);
        let stale = fence < protected.fence || (fence == protected.fence && !shared && another);
        let accepted = !self.fenced || !stale;
        if accepted {
            if fence > protected.fence {
                (protected.fence, protected.owner) = (fence, None);
            }
            if !shared {
                protected.owner = Some(owner.to_owned());
            }
        }
        let write = saw.map(|saw| {
            state.writes += 1;
            (saw, state.writes)
        });
        if let (true, Some((_, wrote))) = (accepted, write) {
            protected.value = wrote;
        }
        let value = protected.value;
        let (object, owner) = (object.clone(), owner.to_owned());
        state.log.push(Access { object, fence, owner, shared, write, accepted });
        accepted.then_some(value)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}
