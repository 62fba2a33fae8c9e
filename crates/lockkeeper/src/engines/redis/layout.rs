//! The names of everything that belongs to one lock, their common slot in a Cluster, and the
//! records they hold.
//!
//! Names that start with `redisson_` are Redisson's and follow its rule: the lock's name in braces,
//! unless it contains a brace itself. By that rule, `x` and `{x}` get the same auxiliary names.
//! That is harmless for channels, but not for our own keys, so our own names keep the two apart.
//!
//! In a Cluster, that rule puts the auxiliary names of some locks (`a{b`, `x{}y`, `a}b`) into other
//! slots, and Redisson fails on them. We give those another hash tag, one that hashes to the right
//! slot.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::{Mode, Request};

/// The names around one lock.
#[derive(Debug, Clone)]
pub(in crate::engines) struct KeyNames {
    lock: String,
    /// The slot of the lock in a Cluster; unused elsewhere.
    slot: u16,
    /// A hash tag for the lock's slot, for a lock in a Cluster whose own name has none.
    tag: Option<String>,
}

impl KeyNames {
    /// The names of a key in stores that are used with this prefix.
    pub(in crate::engines) fn new(prefix: &str, key: &str, in_cluster: bool) -> Self {
        let lock = [prefix, key].concat();
        if !in_cluster {
            return Self { lock, slot: 0, tag: None };
        }
        let plain = Self { slot: slot(&lock), lock, tag: None };
        let apart = |name: String| slot(&name) != plain.slot;
        let tag = (apart(plain.stem() + ":") || apart(plain.state())).then(|| {
            let tags = (0u32..).map(|n| format!("{n:x}"));
            tags.into_iter().find(|tag| slot(tag) == plain.slot).expect("every slot has one")
        });
        Self { tag, ..plain }
    }

    /// The lock itself: Redisson's hash, or the string of `layout=string`.
    pub(in crate::engines) fn lock(&self) -> &str {
        &self.lock
    }

    /// Our hash next to it: the fence, and a record of the last holder.
    pub(in crate::engines) fn state(&self) -> String {
        self.own(STATE)
    }

    /// The queue of a mutex that is not fair: its claims in order.
    pub(in crate::engines) fn mutex_queue(&self) -> String {
        self.own(MUTEX_QUEUE)
    }

    /// What is known of each claim in the queue.
    pub(in crate::engines) fn waiters(&self) -> String {
        self.own(WAITERS)
    }

    /// A key that never exists. A server whose slot migrates runs a script if it has all its keys,
    /// and then refuses to write to those that the script has deleted; it does not begin a script
    /// with a key that it does not have.
    pub(super) fn absent(&self) -> String {
        self.own("lockkeeper_absent")
    }

    /// Both queues: of fair mutexes, and of everything else.
    pub(in crate::engines) fn queues(&self) -> [String; 2] {
        [Mode::Mutex, Mode::Read].map(|mode| self.queue_keys(mode).swap_remove(2))
    }

    /// Redisson's fence counter.
    pub(in crate::engines) fn token(&self) -> String {
        self.shared("redisson_lock_token")
    }

    /// The keys of the scripts that queue, in their order.
    pub(in crate::engines) fn queue_keys(&self, mode: Mode) -> Vec<String> {
        let (queue, timeouts) = match mode {
            Mode::Mutex => ("redisson_lock_queue", "redisson_lock_timeout"),
            _ => ("", ""),
        };
        let or_own = |theirs: &str, ours| match theirs {
            "" => self.own(ours),
            theirs => self.shared(theirs),
        };
        vec![
            self.lock.clone(),
            self.state(),
            or_own(queue, "lockkeeper_queue"),
            or_own(timeouts, "lockkeeper_timeout"),
            self.own("lockkeeper_beats"),
            self.claims(),
            self.who(),
            self.permits(),
            self.slots(),
        ]
    }

    pub(in crate::engines) fn claims(&self) -> String {
        self.own("lockkeeper_claims")
    }

    pub(in crate::engines) fn who(&self) -> String {
        self.own("lockkeeper_who")
    }

    /// Holders that were asked to give way, and what the channel of each starts with.
    pub(in crate::engines) fn asked(&self) -> String {
        self.own("lockkeeper_asked")
    }

    pub(in crate::engines) fn permits(&self) -> String {
        self.own("lockkeeper_permits")
    }

    pub(in crate::engines) fn slots(&self) -> String {
        self.own("lockkeeper_slots")
    }

    /// What a writer leaves at a server of a quorum, so that new readers let it go first.
    pub(in crate::engines) fn wish(&self) -> String {
        self.own("lockkeeper_wish")
    }

    /// The channel that notifies every waiter of a release; semaphores have none.
    pub(in crate::engines) fn base_channel(&self, mode: Mode) -> String {
        match mode {
            Mode::Mutex => self.shared("redisson_lock__channel"),
            _ => self.shared("redisson_rwlock"),
        }
    }

    /// The channel of releases in `layout=string`, which foreign clients do not use.
    pub(in crate::engines) fn string_channel(&self) -> String {
        self.own("lockkeeper_channel")
    }

    /// The prefix of the channel of a single waiter; its entry in the queue follows.
    pub(in crate::engines) fn wake_channel(&self, mode: Mode) -> String {
        match mode {
            Mode::Mutex => self.shared("redisson_lock__channel") + ":",
            _ => self.own("lockkeeper_wake") + ":",
        }
    }

    /// The prefix of the channel of a client whose claims wait in the queue of a mutex. Queued waiters of
    /// other kinds have channels with the same prefix, of their own entries.
    pub(in crate::engines) fn mutex_queue_channel(&self) -> String {
        self.own("lockkeeper_wake") + ":"
    }

    /// The prefix of the keys of single read holds.
    pub(in crate::engines) fn stem(&self) -> String {
        match (&self.tag, self.lock.contains('{')) {
            (Some(tag), _) => format!("{{{tag}}}:{}", self.lock),
            (None, true) => self.lock.clone(),
            (None, false) => format!("{{{}}}", self.lock),
        }
    }

    /// The slot of the lock in a Cluster; elsewhere the same for all.
    pub(in crate::engines) fn slot(&self) -> u16 {
        self.slot
    }

    fn shared(&self, kind: &str) -> String {
        match (&self.tag, self.lock.contains('{')) {
            // Same as below, in one allocation, because every release needs it.
            (None, false) => [kind, ":{", &self.lock, "}"].concat(),
            _ => [kind, ":", &self.stem()].concat(),
        }
    }

    fn own(&self, kind: &str) -> String {
        match (&self.tag, self.lock.contains('{')) {
            (Some(tag), _) => [kind, "#{", tag, "}:", &self.lock].concat(),
            (None, true) => [kind, "#:", &self.lock].concat(),
            (None, false) => [kind, ":{", &self.lock, "}"].concat(),
        }
    }
}

const STATE: &str = "lockkeeper";
const MUTEX_QUEUE: &str = "lockkeeper_mutex_queue";
const WAITERS: &str = "lockkeeper_waiters";

/// The list of the last locks that were broken, in stores that are used with this prefix.
pub(in crate::engines) fn broken_list(prefix: &str) -> String {
    format!("lockkeeper_broken:{prefix}")
}

/// The prefix of the keys of single read holds, if this is the name of our hash next to a lock.
pub(in crate::engines) fn stem_of(state: &str) -> Option<&str> {
    let rest = state.strip_prefix(STATE)?;
    rest.strip_prefix(':').or_else(|| rest.strip_prefix("#:")).or_else(|| rest.strip_prefix('#'))
}

/// The keys that a script uses beside a mutex queue without being given their names: see
/// `lua/mutex_queue.lua`.
pub(super) fn beside_queue(key: &str) -> Option<[String; 2]> {
    let rest = key.strip_prefix(MUTEX_QUEUE)?;
    Some([STATE, WAITERS].map(|name| [name, rest].concat()))
}

/// The pattern that matches all locks whose name starts so, and their states, among others.
pub(in crate::engines) fn pattern_of(start: &str) -> String {
    let mut pattern = "*".to_owned();
    for c in start.chars() {
        if "*?[]\\^".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "*"
}

/// The lock that this state belongs to.
pub(in crate::engines) fn lock_of_state(state: &str) -> Option<&str> {
    let rest = state.strip_prefix(STATE)?;
    if let Some(tagged) = rest.strip_prefix("#{") {
        return Some(tagged.split_once("}:")?.1);
    }
    match rest.strip_prefix("#:") {
        Some(lock) => Some(lock).filter(|lock| lock.contains('{')),
        None => rest.strip_prefix(":{")?.strip_suffix('}').filter(|lock| !lock.contains('{')),
    }
}

/// The slot of a name: the checksum of its hash tag if it has one, otherwise of the whole name.
pub(in crate::engines) fn slot(name: &str) -> u16 {
    let tag = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map_or(name, |(tag, _)| if tag.is_empty() { name } else { tag });
    crc16(hashed.as_bytes()) % SLOTS
}

/// The number of slots in a Cluster.
pub(in crate::engines) const SLOTS: u16 = 16384;

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    })
}

/// How long the data next to a lock outlives its last use.
const LIFE: Duration = Duration::from_secs(3600);

/// Identifies a claim in the lock and in its queue.
pub(in crate::engines) fn entry(identity: &str, token: &str, mode: Mode) -> String {
    match mode {
        Mode::Permits { .. } => token.to_owned(),
        Mode::Write => format!("{identity}:write"),
        _ => identity.to_owned(),
    }
}

/// Who holds or waits, and why: for people, stored next to the lock.
pub(in crate::engines) fn record(request: &Request, entry: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let permits;
    let mode = match request.mode {
        Mode::Permits { take, limit } => {
            permits = format!("{take}/{limit}");
            &permits
        }
        Mode::Mutex if request.fair => "fair",
        other => other.kind(),
    };
    let note = request.note.as_deref().unwrap_or_default();
    [mode, &short(since), entry, &request.who, note].join("\t")
}

/// How long the data of a lock outlives its last use.
pub(in crate::engines) fn life(ttl: Duration) -> Duration {
    LIFE.max(ttl * 2)
}

pub(in crate::engines) fn millis(time: Duration) -> String {
    // Rounded up: a lease is never shorter than requested.
    short(time.as_micros().div_ceil(1000))
}

/// A number that fits a machine word is much faster to format.
fn short(number: u128) -> String {
    u64::try_from(number).unwrap_or(u64::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(key: &str) -> KeyNames {
        KeyNames::new("", key, false)
    }

    #[test]
    fn slots_are_those_of_the_server() {
        for (name, expected) in [
            ("foo", 12182),
            ("redisson_lock__channel:{foo}", 12182),
            ("a{b", 13340),
            ("x{}y", 16116),
            ("{a}b}", 15495),
            ("lock:foo", 10995),
        ] {
            assert_eq!(slot(name), expected, "{name}");
        }
    }

    #[test]
    fn all_names_of_a_lock_share_its_slot_in_a_cluster() {
        for key in
            ["orders/42", "{user}/cart", "a{b}c", "a{b}c{d", "a{b", "x{}y", "{}", "a}b", "}{"]
        {
            let names = KeyNames::new("", key, true);
            let mut all = [names.queue_keys(Mode::Mutex), names.queue_keys(Mode::Read)].concat();
            all.extend([names.token(), names.base_channel(Mode::Read), names.string_channel()]);
            all.extend([names.wake_channel(Mode::Read), names.wake_channel(Mode::Mutex)]);
            all.push(names.stem() + ":field:rwlock_timeout:1");
            for name in all {
                assert_eq!(slot(&name), names.slot(), "{key}: {name}");
            }
        }
        // Where Redisson's rule works, we follow it.
        for key in ["N", "a{N}b"] {
            assert_eq!(KeyNames::new("", key, true).tag, None);
        }
    }

    #[test]
    fn redisson_names_are_redissons() {
        let plain = names("N");
        assert_eq!(plain.base_channel(Mode::Mutex), "redisson_lock__channel:{N}");
        assert_eq!(plain.base_channel(Mode::Read), "redisson_rwlock:{N}");
        assert_eq!(plain.wake_channel(Mode::Mutex), "redisson_lock__channel:{N}:");
        assert_eq!(plain.token(), "redisson_lock_token:{N}");
        assert_eq!(
            plain.queue_keys(Mode::Mutex)[2..4],
            ["redisson_lock_queue:{N}", "redisson_lock_timeout:{N}"]
        );
        assert_eq!(plain.stem(), "{N}");
        assert_eq!(names("a{N}").base_channel(Mode::Mutex), "redisson_lock__channel:a{N}");
    }

    proptest! {
        #[test]
        fn every_state_leads_back_to_its_own_lock(
            a in "[a{}:*#]{1,6}",
            b in "[a{}:*#]{1,6}",
            in_cluster in any::<bool>(),
        ) {
            let state = |key| KeyNames::new("", key, in_cluster).state();
            let (first, second) = (state(&a), state(&b));
            prop_assert_eq!(lock_of_state(&first), Some(a.as_str()));
            prop_assert_eq!(a == b, first == second);
        }
    }
}
