//! Ports for servers that may be killed and started again.
//!
//! Easy to get wrong: the system also uses its ephemeral ports for outgoing connections. While a
//! server is down, its own clients could take such a port.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

/// Below the ephemeral range, with room for a second port above.
const RANGE: std::ops::Range<u16> = 10_000..22_000;

/// The offset of the second port, for servers that have a cluster bus.
const BUS: u16 = 10_000;

/// A free port that no outgoing connection will be given. The one 10000 above it is free as well.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut given = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for _ in 0..1_000 {
        let port = fastrand::u16(RANGE);
        if given.insert(port) && is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
    panic!("there is no free port between {} and {}", RANGE.start, RANGE.end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_assigned_twice() {
        let ports: BTreeSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
        assert!(ports.iter().all(|port| RANGE.contains(port)));
    }
}
