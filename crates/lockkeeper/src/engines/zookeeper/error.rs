//! Maps the errors of the client crate to those of this crate.

use zookeeper_client as zk;

use crate::error::Error;

pub(super) const NAME: &str = "zookeeper";

/// The error of a failed request: transient or permanent.
pub(super) fn failed(doing: impl Into<String>) -> impl FnOnce(zk::Error) -> Error {
    move |error| {
        if passes(&error) {
            Error::unreachable(NAME, doing, error)
        } else {
            Error::broken(NAME, doing, error)
        }
    }
}

/// Whether the session has ended, with everything it held.
pub(super) fn ends_session(error: &zk::Error) -> bool {
    matches!(error, zk::Error::SessionExpired | zk::Error::ClientClosed | zk::Error::AuthFailed)
}

/// Whether the request was certainly not executed.
pub(super) fn refused(error: &zk::Error) -> bool {
    use zk::Error::*;
    matches!(
        error,
        NoNode
            | NoAuth
            | NodeExists
            | InvalidAcl
            | NoChildrenForEphemerals
            | QuotaExceeded
            | Unimplemented
            | NotReadOnly
            | Throttled
            | BadArguments(_)
    )
}

fn passes(error: &zk::Error) -> bool {
    use zk::Error::*;
    matches!(
        error,
        ConnectionLoss
            | Timeout
            | NoHosts
            | NoNode
            | SessionExpired
            | SessionMoved
            | ClientClosed
            | NotReadOnly
            | Throttled
            | Custom(_)
    )
}
