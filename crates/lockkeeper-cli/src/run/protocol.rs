//! The messages between the wrapper and the guardian, over the socket between them.
//!
//! Every message is one frame of fixed size, written at once. The most important message has no
//! frame: the end of the stream means that the peer is dead.

/// From the wrapper to the guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// When to end the command, unless a later order moves it.
    Deadline(Deadline),
    /// Pass this signal on to the command's group.
    Signal(i32),
    /// The lock was checked; the stopped group may continue, in the terminal's foreground if set.
    Resume { foreground: bool },
}

/// From the guardian to the wrapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs, as the leader of its own group.
    Started(i32),
    /// The command could not be started, for this `errno`.
    Failed(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The deadline was reached: TERM was sent to all, or they are being killed.
    Ended { killed: bool },
    /// All processes have ended; the command returned this code.
    Exited(i32),
    /// All processes have ended; the command was killed by this signal.
    Signalled(i32),
}

/// Two moments of boot time, in nanoseconds: a clock that both processes share, and that counts
/// suspend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// When to send TERM, unless the command has ended.
    pub(crate) term: u64,
    /// When to send KILL.
    pub(crate) kill: u64,
}

impl Deadline {
    /// There is no lease: the group may take its time.
    pub(crate) const NEVER: Self = Self { term: u64::MAX, kill: u64::MAX };
}

/// The size of a message.
pub(crate) const FRAME: usize = 17;

pub(crate) type Frame = [u8; FRAME];

impl Order {
    pub(crate) fn encode(self) -> Frame {
        match self {
            Order::Deadline(Deadline { term, kill }) => frame(b'D', term, kill),
            Order::Signal(signal) => frame(b'S', unsigned(signal), 0),
            Order::Resume { foreground } => frame(b'R', foreground.into(), 0),
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Option<Self> {
        let (kind, a, b) = parts(frame);
        Some(match kind {
            b'D' => Order::Deadline(Deadline { term: a, kill: b }),
            b'S' => Order::Signal(signed(a)),
            b'R' => Order::Resume { foreground: a != 0 },
            _ => return None,
        })
    }
}

impl Report {
    pub(crate) fn encode(self) -> Frame {
        match self {
            Report::Started(pid) => frame(b'P', unsigned(pid), 0),
            Report::Failed(errno) => frame(b'F', unsigned(errno), 0),
            Report::Stopped(signal) => frame(b'T', unsigned(signal), 0),
            Report::Ended { killed } => frame(b'E', killed.into(), 0),
            Report::Exited(code) => frame(b'X', unsigned(code), 0),
            Report::Signalled(signal) => frame(b'K', unsigned(signal), 0),
        }
    }

    pub(crate) fn decode(frame: &Frame) -> Option<Self> {
        let (kind, a, _) = parts(frame);
        Some(match kind {
            b'P' => Report::Started(signed(a)),
            b'F' => Report::Failed(signed(a)),
            b'T' => Report::Stopped(signed(a)),
            b'E' => Report::Ended { killed: a != 0 },
            b'X' => Report::Exited(signed(a)),
            b'K' => Report::Signalled(signed(a)),
            _ => return None,
        })
    }
}

fn frame(kind: u8, a: u64, b: u64) -> Frame {
    let mut frame = [0; FRAME];
    frame[0] = kind;
    frame[1..9].copy_from_slice(&a.to_le_bytes());
    frame[9..].copy_from_slice(&b.to_le_bytes());
    frame
}

fn parts(frame: &Frame) -> (u8, u64, u64) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    (frame[0], number(&frame[1..9]), number(&frame[9..]))
}

fn unsigned(n: i32) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn signed(n: u64) -> i32 {
    i32::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        for order in [
            Order::Deadline(Deadline { term: 7, kill: u64::MAX }),
            Order::Signal(15),
            Order::Resume { foreground: true },
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        for report in [
            Report::Started(4711),
            Report::Failed(2),
            Report::Stopped(20),
            Report::Ended { killed: true },
            Report::Exited(255),
            Report::Signalled(9),
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        assert_eq!(Order::decode(&[0; FRAME]), None);
    }
}
