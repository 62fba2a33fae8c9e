//! What the operating system knows of time and of us, one function each.

use std::time::{Duration, SystemTime};

/// Time since boot, suspend included.
///
/// `None` on systems where no such clock is known here. Elapsed time is then told by the runtime's clock
/// and the wall clock, of which at least one counts a suspend.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn boot() -> Option<Duration> {
    read(nix::time::ClockId::CLOCK_BOOTTIME)
}

/// As above. The monotonic clock of macOS goes on while the machine sleeps, unlike that of Linux.
#[cfg(target_os = "macos")]
pub(super) fn boot() -> Option<Duration> {
    read(nix::time::ClockId::CLOCK_MONOTONIC)
}

/// As above, without any help from the system.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
pub(super) fn boot() -> Option<Duration> {
    None
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "macos"))]
fn read(id: nix::time::ClockId) -> Option<Duration> {
    let time = nix::time::clock_gettime(id).ok()?;
    Some(Duration::new(time.tv_sec().try_into().ok()?, time.tv_nsec().try_into().ok()?))
}

/// The wall clock. Before 1970 it reads as zero, and the other clocks decide.
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
