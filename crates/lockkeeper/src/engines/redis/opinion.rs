//! What sentinels report about their master, and what follows from it.

use redis::RedisError;

/// The address of a server.
pub(super) type Address = (String, u16);

/// What is known of the view of one sentinel.
#[derive(Debug, Clone)]
pub(super) enum Opinion {
    /// It has not answered yet.
    Unknown,
    Silent(RedisError),
    /// It does not know a master of that name.
    Ignorant,
    Said(View),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct View {
    pub(super) epoch: u64,
    pub(super) address: Address,
    pub(super) promoting: bool,
}

/// The views of the sentinels that have one.
pub(super) fn said(opinions: &[Opinion]) -> impl Iterator<Item = &View> {
    opinions.iter().filter_map(|opinion| match opinion {
        Opinion::Said(view) => Some(view),
        _ => None,
    })
}

/// The master, if any sentinel knows it; `Some(None)` while another one is being promoted.
pub(super) fn decide(opinions: &[Opinion], newest: Option<&View>) -> Option<Option<View>> {
    let said_best = said(opinions).max_by_key(|view| view.epoch)?;
    let best = newest.filter(|newest| newest.epoch > said_best.epoch).unwrap_or(said_best);
    // A sentinel that leads a failover reports the epoch of the old configuration until it is done.
    let promoting = said(opinions).any(|view| view.promoting && view.epoch >= best.epoch);
    Some((!promoting).then(|| View { promoting: false, ..best.clone() }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::batch::silent;
    use super::*;

    pub(in super::super) fn says(epoch: u64, port: u16, promoting: bool) -> Opinion {
        Opinion::Said(View { epoch, address: ("h".to_owned(), port), promoting })
    }

    pub(in super::super) fn silence() -> Opinion {
        Opinion::Silent(silent())
    }

    /// The port of the master.
    fn decided(opinions: &[Opinion]) -> Option<Option<u16>> {
        decide(opinions, None).map(|master| master.map(|view| view.address.1))
    }

    #[test]
    fn the_newest_configuration_counts() {
        let opinions = [says(3, 1, false), says(4, 2, false), says(3, 1, false)];
        assert_eq!(decided(&opinions), Some(Some(2)));
    }

    #[test]
    fn there_is_no_master_while_one_is_promoted() {
        let opinions = [says(3, 1, false), says(3, 1, true), silence()];
        assert_eq!(decided(&opinions), Some(None));
        // A sentinel that stayed behind in a failover that another one completed.
        let opinions = [says(4, 2, false), says(3, 1, true), silence()];
        assert_eq!(decided(&opinions), Some(Some(2)));
    }

    #[test]
    fn a_silent_sentinel_changes_nothing() {
        assert_eq!(decided(&[silence(), Opinion::Unknown, Opinion::Ignorant]), None);
    }
}
