//! Finds out who broke a lock that is gone.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;

use super::acquire::CALL_LIMIT;
use super::hold::Hold;
use crate::engine::Break;
use crate::error::Loss;
use crate::who::whoami;

/// How long a holder that lost its lock waits to be told who broke it: it should stop.
pub(super) const TOLD_WITHIN: Duration = Duration::from_millis(500);

/// How long one that has stopped waits: nothing depends on it any more.
const TOLD_LATER: Duration = Duration::from_secs(3);

impl Hold {
    /// Its release found the lock gone: it was lost before, and nobody noticed.
    pub(super) fn was_gone(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.over != Some(Loss::Released) {
                return;
            }
            state.over = Some(Loss::Gone);
            state.asking_why = true;
        }
        tracing::warn!(parent: &self.span, key = %self.key, "lock was gone when it was released");
        self.inner.runtime.spawn(self.clone().ask_why(TOLD_LATER));
    }

    /// Asks the engine whether somebody broke the lock, and if so, makes that the reason of the loss.
    ///
    /// The hold is over already: [`loss`](Hold::loss) does not wait for this, and
    /// [`lost`](Hold::lost) does so only briefly. An answer that comes later is still shown.
    pub(super) async fn ask_why(self: Arc<Self>, within: Duration) {
        let mut asking = std::pin::pin!(timeout(CALL_LIMIT, self.inner.engine.broken()));
        let answer = match timeout(within, &mut asking).await {
            Ok(answer) => answer,
            Err(_) => {
                self.state().asking_why = false;
                self.changed.notify_waiters();
                asking.await
            }
        };
        let breaks = answer.ok().and_then(Result::ok).unwrap_or_default();
        let since = SystemTime::now().checked_sub(self.since.elapsed()).unwrap_or(UNIX_EPOCH);
        let who = whoami();
        let it = breaks.into_iter().find(|one| {
            self.granted_fences().into_iter().any(|fence| one.ended(&self.key, fence, &who, since))
        });
        let mut state = self.state();
        state.asking_why = false;
        if let Some(Break { by, why, .. }) = it {
            let loss = Loss::Broken { by, why };
            tracing::warn!(parent: &self.span, key = %self.key, reason = %loss, "lock was broken");
            state.over = Some(loss);
        }
        drop(state);
        self.changed.notify_waiters();
    }
}
