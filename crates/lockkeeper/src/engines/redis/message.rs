//! What a script tells one waiter of a mutex, on the channel of its client.

/// A message to a waiter in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The lock was handed to it.
    Granted(HandOver),
    /// It may be its turn, and has to ask.
    Ask,
    /// The lock is free for clients outside the queue; it has to ask if none of them wants it.
    Later,
    /// It holds the lock, and others want it.
    Wish,
}

/// A lock that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HandOver {
    /// The last attempt of the waiter that the server knew of.
    pub(super) beat: u64,
    pub(super) fence: u64,
    /// How many times in a row it was handed over.
    pub(super) passes: u32,
}

impl Message {
    /// Parses what follows the claim in a message; `None` if it is malformed.
    pub(super) fn read(text: &str) -> Option<Self> {
        match text {
            "ask" => return Some(Message::Ask),
            "later" => return Some(Message::Later),
            "wish" => return Some(Message::Wish),
            _ => {}
        }
        let mut numbers = text.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (beat, fence, passes) = (next()?, next()?, next()?);
        Some(Message::Granted(HandOver { beat, fence, passes: u32::try_from(passes).ok()? }))
    }

    /// Puts it into an inbox. A grant is not replaced by a lesser message.
    pub(super) fn deliver(self, inbox: &mut Option<Message>) {
        if !matches!(inbox, Some(Message::Granted(_))) || matches!(self, Message::Granted(_)) {
            *inbox = Some(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_the_scripts() {
        let granted = HandOver { beat: 3, fence: 1_794_917_179_013_569, passes: 10 };
        assert_eq!(Message::read("3 1794917179013569 10"), Some(Message::Granted(granted)));
        assert_eq!(Message::read("ask"), Some(Message::Ask));
        assert_eq!(Message::read("later"), Some(Message::Later));
        assert_eq!(Message::read("wish"), Some(Message::Wish));
        for bad in ["", "0", "3 4", "3 x 1", "-1 2 3"] {
            assert_eq!(Message::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_grant_is_not_lost_to_a_later_hint() {
        let mut inbox = None;
        Message::Ask.deliver(&mut inbox);
        let granted = Message::read("1 2 3").unwrap();
        granted.deliver(&mut inbox);
        Message::Ask.deliver(&mut inbox);
        assert_eq!(inbox, Some(granted));
    }
}
