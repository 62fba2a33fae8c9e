//! The calls of locks whose release wakes waiters, or nobody: strings, fair mutexes, read-write locks and
//! semaphores. Those of the common mutex are in [`mutex_queue`](super::mutex_queue).

use std::time::Duration;

use crate::engine::Mode;

use super::claim::{RedisClaim, WAITER_LEASE};
use super::connection::{Call, Reply};
use super::layout::{life, millis, record};
use super::script::{self, Script};

/// How long Redisson's clients wait for a silent waiter before they drop it, by default.
const PATIENCE: Duration = Duration::from_secs(300);

impl RedisClaim {
    pub(super) async fn call_string(&self, take: bool) -> redis::RedisResult<Reply> {
        let (request, settings) = (&self.request, &self.store.settings);
        let (field, lock) = (request.token.to_string(), self.names.lock().to_owned());
        if !take {
            let (script, channel) = (&script::STRING_RELEASE, self.names.string_channel());
            let args = [field.as_str(), &channel, self.store.publish()];
            let call = Call { script, keys: &[lock], args: &args, hinted: false, replicas: 0 };
            return self.store.servers.call(self.names.slot(), &call).await;
        }
        let mut keys = vec![lock, self.names.state()];
        keys.extend(settings.redisson_fence.then(|| self.names.token()));
        let (life, ttl) = (millis(life(request.ttl)), millis(request.ttl));
        let record = record(request, &field);
        let args = [life.as_str(), &ttl, &field, &record];
        let (script, replicas) = (&script::STRING, settings.replicas);
        let call = Call { script, keys: &keys, args: &args, hinted: true, replicas };
        self.store.servers.call(self.names.slot(), &call).await
    }

    pub(super) async fn call_queued(&self, take: bool) -> redis::RedisResult<Reply> {
        let (request, mode) = (&self.request, self.request.mode);
        let mut keys = self.names.queue_keys(mode);
        if mode == Mode::Mutex {
            keys.extend([self.names.mutex_queue(), self.names.waiters()]);
            keys.extend(self.store.settings.redisson_fence.then(|| self.names.token()));
        }
        let entry = self.entry();
        let token = request.owner.as_ref().map_or_else(String::new, |_| request.token.to_string());
        let record = record(request, &entry);
        let flag = |is: bool| if is { "1" } else { "0" };
        let (ttl, life) = (millis(request.ttl), millis(life(request.ttl)));
        let (lease, patience) = (millis(WAITER_LEASE), millis(PATIENCE));
        let (wake, base) = (self.names.wake_channel(mode), self.names.base_channel(mode));
        let (stem, waiters) = (self.names.stem(), self.names.mutex_queue_channel());
        let mut args = vec![
            ttl.as_str(),
            &entry,
            &token,
            &record,
            "1",
            flag(request.queue),
            &lease,
            &patience,
            &life,
            self.store.publish(),
            &wake,
            &base,
            &stem,
        ];
        let (take_text, limit_text);
        if let Mode::Permits { take, limit } = mode {
            (take_text, limit_text) = (take.to_string(), limit.to_string());
            args.extend([take_text.as_str(), limit_text.as_str()]);
        } else if mode == Mode::Mutex {
            args.push(&waiters);
        }
        let script: &'static Script = match (mode, take) {
            (Mode::Mutex, true) => &script::FAIR_MUTEX,
            (Mode::Mutex, false) => &script::FAIR_MUTEX_RELEASE,
            (Mode::Read, true) => &script::READ,
            (Mode::Read, false) => &script::READ_RELEASE,
            (Mode::Write, true) => &script::WRITE,
            (Mode::Write, false) => &script::WRITE_RELEASE,
            (Mode::Permits { .. }, true) => &script::PERMITS,
            (Mode::Permits { .. }, false) => &script::PERMITS_RELEASE,
        };
        let replicas = if take { self.store.settings.replicas } else { 0 };
        let call = Call { script, keys: &keys, args: &args, hinted: true, replicas };
        self.store.servers.call(self.names.slot(), &call).await
    }
}
