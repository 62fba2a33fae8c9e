//! What is stored: names of nodes and their order in a queue, and the data of nodes.
//!
//! Node names are Curator's: `_c_<uuid>-lock-<sequence>`, and `__READ__` and `__WRIT__` for a
//! read-write lock. The sequence is a signed 32-bit counter that wraps around and restarts with a
//! new parent, so it orders the nodes that are in a queue at the same time, and is never a fence.
//!
//! The data says who holds or waits, why, and for a semaphore how many permits. Other clients that
//! share the lock write their address or nothing, which is shown as it is.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use zookeeper_client as zk;

use crate::engine::{Entry, Fence, Mode, Request};
use crate::key::Key;

/// The directory of a semaphore's queue.
pub(super) const LOCKS: &str = "locks";

/// The directory of its permits that are taken.
pub(super) const LEASES: &str = "leases";

/// The node beside the locks that lists the last breaks. No key is encoded like this.
pub(super) const BROKEN: &str = "%broken";

/// The node that lists the last requests to give way: a marked node has no room for who asks and why.
pub(super) const ASKED: &str = "%asked";

/// The data of a node whose holder is asked to give way, as Curator writes it.
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

/// The prefix of our data.
const MARK: &str = "lockkeeper";

/// Marks a claim that was granted later than its node was created.
const LATER: &str = "later";

/// What a node in a queue stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Mutex,
    // A reader that was a writer has the same sequence, and sorts after it.
    Write,
    Read,
    Lease,
    /// A reader of kazoo's, which does not see our nodes.
    KazooRead,
}

/// The words in node names that identify their kind.
const WORDS: [(&str, Kind); 6] = [
    ("__READ__", Kind::Read),
    ("__WRIT__", Kind::Write),
    ("lock-", Kind::Mutex),
    ("lease-", Kind::Lease),
    // kazoo's: its nodes are in one queue with ours, though we never create such nodes.
    ("__lock__", Kind::Mutex),
    ("__rlock__", Kind::KazooRead),
];

impl Kind {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::Mutex => Kind::Mutex,
            Mode::Write => Kind::Write,
            Mode::Read => Kind::Read,
            Mode::Permits { .. } => Kind::Lease,
        }
    }

    pub(super) fn mode(self) -> Mode {
        match self {
            Kind::Mutex => Mode::Mutex,
            Kind::Write => Mode::Write,
            Kind::Read | Kind::KazooRead => Mode::Read,
            // A foreign lease does not tell the limit.
            Kind::Lease => Mode::Permits { take: 1, limit: 0 },
        }
    }

    /// Whether clients that create such nodes see each other.
    pub(super) fn mixes(self, other: Kind) -> bool {
        let kazoo = [self, other].contains(&Kind::KazooRead);
        (self == Kind::Mutex) == (other == Kind::Mutex) && !kazoo
    }

    /// What a lock with such a node at the head of its queue is in use as.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::KazooRead => "a read-write lock of kazoo's",
            other => other.mode().kind(),
        }
    }

    /// The end of a node's name, before its sequence.
    pub(super) fn word(self) -> &'static str {
        WORDS.iter().find(|(_, kind)| *kind == self).expect("every kind has a word").0
    }
}

/// A node in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) kind: Kind,
    sequence: i32,
}

impl Node {
    fn parse(name: &str) -> Option<Self> {
        let read = |(word, kind): &(&str, Kind)| {
            let (head, tail) = name.rsplit_once(word)?;
            // kazoo's id consists of digits only. `block-0000000001` belongs to another program.
            let kazoo = head.len() == 32 && head.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !(head.is_empty() || head.ends_with('-') || kazoo) {
                return None;
            }
            // Ten digits, one of which is the sign once the counter has wrapped around.
            let sequence = tail.parse().ok().filter(|n: &i32| format!("{n:010}") == tail)?;
            Some(Self { name: name.to_owned(), kind: *kind, sequence })
        };
        WORDS.iter().find_map(read)
    }

    /// `_c_<uuid>-`, which is the same for all nodes of one claim; the whole name if it has none.
    pub(super) fn id(&self) -> &str {
        let id = self.name.get(..ID_LENGTH);
        id.filter(|id| id.starts_with("_c_")).unwrap_or(&self.name)
    }

    /// The node of a waiter for permits is named like that of a mutex.
    pub(super) fn waiting_for_permits(self) -> Self {
        Self { kind: Kind::Lease, ..self }
    }

    /// Which permit of how many a lease of ours is. A foreign one does not tell.
    pub(super) fn permit(&self) -> Option<(u32, u32)> {
        let middle = self.name.get(ID_LENGTH..)?.split_once("-lease-")?.0;
        let (slot, limit) = middle.split_once('.')?;
        Some((slot.parse().ok()?, limit.parse().ok()?))
    }
}

/// The children of a lock that are in its queue, in order. Other nodes are left out.
pub(super) fn queue(children: &[String]) -> Vec<Node> {
    let mut nodes: Vec<_> = children.iter().filter_map(|name| Node::parse(name)).collect();
    if let Some(base) = nodes.first().map(|node| node.sequence) {
        // The counter wraps around: the distance counts, and there are never 2^31 waiters.
        nodes.sort_by_key(|node| (node.sequence.wrapping_sub(base), node.kind));
    }
    nodes
}

/// A permit of kazoo's among the children of a lock: a node of 32 hexadecimal digits.
pub(super) fn kazoo_permit(children: &[String]) -> Option<&str> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let permit = children.iter().find(|name| name.len() == 32 && name.bytes().all(hex));
    permit.map(String::as_str)
}

/// The length of `_c_<uuid>-`.
pub(super) const ID_LENGTH: usize = 40;

/// A new `_c_<uuid>-`, by which a node is found again if the reply to its creation was lost.
pub(super) fn new_id() -> String {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).expect("the operating system gives random bits");
    // Marked as a random UUID, as other clients expect.
    bits[6] = (bits[6] & 0x0f) | 0x40;
    bits[8] = (bits[8] & 0x3f) | 0x80;
    let hex: String = bits.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes everything");
        hex
    });
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("_c_{a}-{b}-{c}-{d}-{e}-")
}

/// A key as one path segment, so that lock `a` is no parent of lock `a/b`.
///
/// `top` means that it is at the top of the tree, where one name is reserved.
pub(super) fn encode(key: &Key, top: bool) -> String {
    let key = key.as_str();
    let taken = matches!(key, "." | "..") || (top && key == "zookeeper");
    let mut segment = String::with_capacity(key.len());
    for (at, byte) in key.bytes().enumerate() {
        let plain = (byte.is_ascii_graphic() || byte == b' ') && byte != b'/' && byte != b'%';
        if plain && !(taken && at == 0) {
            segment.push(char::from(byte));
        } else {
            write!(segment, "%{byte:02X}").expect("a string takes everything");
        }
    }
    segment
}

/// The key of a path segment; `None` if it was not created by [`encode`].
pub(super) fn decode(segment: &str, top: bool) -> Option<Key> {
    let key = Key::new(percent_decode(segment)?).ok()?;
    (encode(&key, top) == segment).then_some(key)
}

/// Text with its `%XX` decoded; `None` if the result is not UTF-8.
pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first == b'%' {
            let code = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(code, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The data of a node whose claim had to wait, once it is let in: it holds since now, not since its creation.
pub(super) fn write_later(request: &Request) -> Vec<u8> {
    let text = String::from_utf8(write_record(request, None)).expect("a record is text");
    text.replacen('\n', &format!(" {LATER}\n"), 1).into_bytes()
}

/// The data of a node. A permit of a semaphore carries the fence of the queue node that it came from.
pub(super) fn write_record(request: &Request, fence: Option<Fence>) -> Vec<u8> {
    let (take, limit) = match request.mode {
        Mode::Permits { take, limit } => (take, limit),
        _ => (0, 0),
    };
    let fence = fence.map_or(0, Fence::get);
    let (identity, who) = (request.identity(), &request.who);
    let note = request.note.as_deref().unwrap_or_default();
    format!("{MARK} {take} {limit} {fence}\n{identity}\n{who}\n{note}").into_bytes()
}

/// What is known of a node, by its data and its creation, or the moment when it was let in.
pub(super) fn read_record(name: &str, mode: Mode, data: &[u8], stat: &zk::Stat) -> Entry {
    let at = |ms: i64| SystemTime::UNIX_EPOCH + Duration::from_millis(ms.try_into().unwrap_or(0));
    let mut entry = Entry {
        since: Some(at(stat.ctime)),
        fence: Some(Fence::new(stat.czxid.try_into().unwrap_or(0))),
        ..Entry::new(name, mode)
    };
    let text = std::str::from_utf8(data).unwrap_or_default();
    let mut lines = text.splitn(4, '\n');
    let mut head = lines.next().unwrap_or_default().split(' ');
    if head.next() != Some(MARK) {
        let shown = !text.is_empty() && data != REVOKE && text.len() <= 256;
        entry.who = shown.then(|| text.escape_debug().to_string());
        return entry;
    }
    let mut number = || head.next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    let (take, limit, fence) = (number(), number(), number());
    if head.next() == Some(LATER) {
        entry.since = Some(at(stat.mtime));
    }
    if matches!(mode, Mode::Permits { .. }) && limit > 0 {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        entry.mode = Mode::Permits { take: small(take), limit: small(limit) };
    }
    if fence > 0 {
        entry.fence = Some(Fence::new(fence));
    }
    let mut text = || lines.next().filter(|line| !line.is_empty()).map(str::to_owned);
    entry.identity = text().unwrap_or(entry.identity);
    if let Some(who) = text() {
        entry = entry.by(&who);
    }
    entry.note = text();
    entry
}

/// The data of a read-write lock's directory: the fence of its last writer, for readers to carry.
pub(super) fn write_fence(fence: Fence) -> Vec<u8> {
    format!("{MARK} fence {fence}").into_bytes()
}

/// The fence of the last writer; `None` if the directory holds something else.
pub(super) fn read_fence(data: &[u8]) -> Option<Fence> {
    if data.is_empty() {
        return Some(Fence::new(0));
    }
    let number = std::str::from_utf8(data).ok()?.strip_prefix("lockkeeper fence ")?;
    number.parse().ok().map(Fence::new)
}

/// The fence that readers carry, by the directory of their lock; `None` if it holds something else.
///
/// If the directory was removed with its record and created again, it is newer than every fence it
/// had.
pub(super) fn fence_of_readers(data: &[u8], stat: &zk::Stat) -> Option<Fence> {
    let born = Fence::new(stat.czxid.try_into().unwrap_or(0));
    read_fence(data).map(|noted| noted.max(born))
}

/// Whether a node ends with a session, as all nodes of locks do.
///
/// Containers and TTL nodes have a marker in place of the session's id.
pub(super) fn owned_by_a_session(stat: &zk::Stat) -> bool {
    const CONTAINER: u64 = 1 << 63;
    const LIFETIME: u64 = 0xff_0000;
    let owner = stat.ephemeral_owner.cast_unsigned();
    owner != 0 && owner != CONTAINER && owner >> 40 != LIFETIME
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(queue: &[Node]) -> Vec<&str> {
        queue.iter().map(|node| node.name.as_str()).collect()
    }

    #[test]
    fn nodes_of_the_recipe_are_read_and_others_are_not() {
        let curator = "_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-lock-0000000012";
        let children =
            ["leases", "locks", "0abc", "lock-12", "block-0000000010", "lock-0000000011", curator]
                .map(str::to_owned);
        assert_eq!(names(&queue(&children)), ["lock-0000000011", curator]);
        assert_eq!(Node::parse("lock--000000177").map(|node| node.sequence), Some(-177));
        let node = Node::parse(curator).unwrap();
        assert_eq!(node.id(), "_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-");
        assert_eq!(node.kind, Kind::Mutex);
        let id = new_id();
        assert_eq!(id.len(), ID_LENGTH);
        let lease = Node::parse(&format!("{id}2.5-lease-0000000007")).unwrap();
        assert_eq!((lease.id(), lease.permit(), lease.kind), (&*id, Some((2, 5)), Kind::Lease));
        assert_eq!(Node::parse(&format!("{id}lease-0000000007")).unwrap().permit(), None);
    }

    #[test]
    fn nodes_of_kazoo_are_waited_for_and_never_made() {
        let kazoo = "1f0e5b5e0a1c4e0f8d2b3c4d5e6f7a8b__lock__0000000003".to_owned();
        let before = "_c_53345f98-9423-4e0c-a7b5-9f819e3ec2e1-lock-0000000002".to_owned();
        let after = "_c_63345f98-9423-4e0c-a7b5-9f819e3ec2e1-lock-0000000004".to_owned();
        let ordered = queue(&[after.clone(), kazoo.clone(), before.clone()]);
        assert_eq!(names(&ordered), [&before, &kazoo, &after]);
        let reader = Node::parse("1f0e5b5e0a1c4e0f8d2b3c4d5e6f7a8b__rlock__0000000003").unwrap();
        assert_eq!(reader.kind, Kind::KazooRead);
        assert!(!Kind::Write.mixes(reader.kind) && !reader.kind.mixes(Kind::Write));
        assert!(kazoo_permit(&["1f0e5b5e0a1c4e0f8d2b3c4d5e6f7a8b".to_owned()]).is_some());
        assert!(kazoo_permit(&[kazoo, before, after]).is_none());
        assert_eq!((Kind::Mutex.word(), Kind::Read.word()), ("lock-", "__READ__"));
    }

    #[test]
    fn order_survives_the_wrap_of_the_counter() {
        let ordered =
            ["lock-2147483646", "lock-2147483647", "lock--2147483648", "lock--2147483647"];
        for turn in 0..ordered.len() {
            let mut children = ordered.map(str::to_owned);
            children.rotate_left(turn);
            assert_eq!(names(&queue(&children)), ordered);
        }
    }

    proptest! {
        #[test]
        fn any_queue_is_put_in_order(start: i32, steps in prop::collection::vec(0..1_000i32, 1..40), seed: u64) {
            let mut sequence = start;
            let mut ordered = Vec::new();
            for step in steps {
                sequence = sequence.wrapping_add(step + 1);
                ordered.push(format!("lock-{sequence:010}"));
            }
            let mut children = ordered.clone();
            fastrand::Rng::with_seed(seed).shuffle(&mut children);
            let queue = queue(&children);
            prop_assert_eq!(names(&queue), ordered);
        }

        #[test]
        fn keys_come_back_from_their_segments(key in "[^\\p{C}]{1,100}", top: bool) {
            let Ok(key) = Key::new(&key) else { return Ok(()) };
            let segment = encode(&key, top);
            prop_assert!(!segment.contains('/') && !matches!(&*segment, "." | ".." | ""));
            prop_assert_eq!(decode(&segment, top), Some(key));
        }
    }

    #[test]
    fn plain_keys_are_plain_segments_and_reserved_ones_are_not() {
        let encoded = |key: &str, top| encode(&Key::new(key).unwrap(), top);
        assert_eq!(encoded("orders-42_x.y", false), "orders-42_x.y");
        assert_eq!(encoded("a/b%é", false), "a%2Fb%25%C3%A9");
        assert_eq!((encoded("..", false), encoded(".a", false)), ("%2E.".into(), ".a".into()));
        assert_eq!(encoded("zookeeper", true), "%7Aookeeper");
        assert_eq!(encoded("zookeeper", false), "zookeeper");
        // A segment that `encode` would not write is no key.
        assert_eq!(decode("%61", false), None);
        assert_eq!(decode("%zz", false), None);
    }
}
