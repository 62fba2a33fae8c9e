//! Time and identity from the operating system, one function each.

use std::time::{Duration, SystemTime};

/// Time since boot, suspend included.
///
/// `None` on systems without a known clock of this kind. Then the runtime's clock and the wall
/// clock decide, of which at least one counts a suspend.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn boot() -> Option<Duration> {
    read(nix::time::ClockId::CLOCK_BOOTTIME)
}

/// Same as above. Unlike on Linux, the monotonic clock of macOS keeps counting while the machine
/// sleeps.
#[cfg(target_os = "macos")]
pub(super) fn boot() -> Option<Duration> {
    read(nix::time::ClockId::CLOCK_MONOTONIC)
}

/// Same as above, without such a clock.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
pub(super) fn boot() -> Option<Duration> {
    None
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
fn read(id: nix::time::ClockId) -> Option<Duration> {
    let time = nix::time::clock_gettime(id).ok()?;
    Some(Duration::new(time.tv_sec().try_into().ok()?, time.tv_nsec().try_into().ok()?))
}

/// The wall clock. A time before 1970 reads as zero, and the other clocks decide.
pub(super) fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// `user@host`.
#[cfg(unix)]
pub(crate) fn user_and_host() -> String {
    use nix::unistd::{User, gethostname, getuid};
    let user = User::from_uid(getuid()).ok().flatten();
    let user = user.map_or_else(|| getuid().to_string(), |user| user.name);
    format!("{user}@{}", gethostname().unwrap_or_default().to_string_lossy())
}

/// `user@host`.
#[cfg(not(unix))]
pub(crate) fn user_and_host() -> String {
    let variable = |name| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    format!("{}@{}", variable("USERNAME"), variable("COMPUTERNAME"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_of_this_system_are_read_and_go_forward() {
        let (boot, wall) = (boot(), wall());
        assert!(!wall.is_zero());
        if cfg!(any(target_os = "linux", target_os = "macos")) {
            assert!(boot.is_some_and(|boot| !boot.is_zero()));
        }
        assert!(super::boot() >= boot && super::wall() >= wall);
    }
}
