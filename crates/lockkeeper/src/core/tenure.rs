//! How long a client may keep a lock among its own tasks while other clients want it.

use std::time::Duration;

use tokio::time::Instant;

/// How long a client may keep a key without a break while other clients want it.
const TURN: Duration = Duration::from_millis(100);

/// How long it then pauses for them, at first. Clients with a slow connection need more, so the
/// pause doubles [a few times](DOUBLINGS); then it starts again, because a client that never comes
/// must not cost much.
const PAUSE: Duration = Duration::from_millis(5);
const DOUBLINGS: u32 = 3;

/// How long this client has kept the key from one task to the next.
///
/// If the store keeps no order, the next task of the same client asks before any other client
/// learns of the release, and would always win.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// Since when it has had the key without a pause for others.
    pub(super) since: Option<Instant>,
    /// Whether other clients wait, as the engine reported.
    pub(super) wanted: bool,
    /// How many pauses there have been.
    chances: u32,
}

impl Tenure {
    /// Returns how long to pause for other clients, and counts the pause.
    pub(super) fn gives_way(&mut self) -> Option<Duration> {
        if !self.wanted || self.since?.elapsed() < TURN {
            return None;
        }
        let pause = PAUSE * (1 << (self.chances % (DOUBLINGS + 1)));
        self.chances = self.chances.wrapping_add(1);
        self.wanted = false;
        self.since = Some(Instant::now() + pause);
        Some(pause)
    }
}
