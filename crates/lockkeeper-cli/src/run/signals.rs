//! Signals that are read instead of handled.
//!
//! They are blocked before anything else happens and read from a file descriptor, so there is no
//! moment in which one is missed or kills a half-started run. A signal that was ignored when we
//! were started stays ignored, for us and for the command: that is how `nohup` works.

use std::fs;
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::net::unix::pipe;

/// Passed on to the command.
pub(crate) const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// The signals of this process, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Not a pipe, but read like one.
    records: pipe::Receiver,
    /// The mask with which we were started, and with which the command is started.
    original: SigSet,
}

impl Signals {
    /// Blocks and collects the signals that a wrapper has to handle. Needs a runtime.
    pub(crate) fn collect() -> std::io::Result<Self> {
        let mut wanted = unignored(&FORWARDED);
        wanted.add(Signal::SIGTSTP);
        wanted.add(Signal::SIGCONT);
        let (fd, original) = block(wanted)?;
        let fd = fd.as_fd().try_clone_to_owned()?;
        Ok(Self { records: pipe::Receiver::from_owned_fd_unchecked(fd)?, original })
    }

    pub(crate) fn original(&self) -> &SigSet {
        &self.original
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// A signal is consumed only by the call that returns it.
    pub(crate) async fn next(&self) -> Signal {
        loop {
            if self.records.readable().await.is_err() {
                // The runtime is shutting down; nothing waits for the result.
                return std::future::pending().await;
            }
            if let Some(signal) = self.pending() {
                return signal;
            }
        }
    }

    /// A signal that has already arrived.
    pub(crate) fn pending(&self) -> Option<Signal> {
        let mut record = [0; RECORD];
        // The kernel writes whole records, which start with the signal's number.
        self.records.try_read(&mut record).ok().filter(|read| *read == RECORD)?;
        let number = i32::from_ne_bytes(record[..4].try_into().expect("four bytes"));
        Signal::try_from(number).ok()
    }
}

/// The size of the record of one signal.
const RECORD: usize = size_of::<nix::sys::signalfd::siginfo>();

/// Blocks signals, and returns a descriptor for them together with the previous mask.
///
/// SIGTTOU is blocked as well: a process that changes the terminal's foreground group must not be
/// stopped for it.
pub(crate) fn block(mut wanted: SigSet) -> nix::Result<(SignalFd, SigSet)> {
    let fd = SignalFd::with_flags(&wanted, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    wanted.add(Signal::SIGTTOU);
    let original = wanted.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    Ok((fd, original))
}

/// One signal, if there is one.
pub(crate) fn read(fd: &SignalFd) -> Option<Signal> {
    let info = fd.read_signal().ok().flatten()?;
    i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
}

/// Those of these signals that are not ignored.
pub(crate) fn unignored(signals: &[Signal]) -> SigSet {
    let ignored = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored & (1 << (*signal as i32 - 1)) == 0).collect()
}

/// A mask as text, to pass it to the guardian.
pub(crate) fn mask_to_text(mask: &SigSet) -> String {
    mask.iter().map(|signal| (signal as i32).to_string()).collect::<Vec<_>>().join(",")
}

/// The mask that [`mask_to_text`] wrote.
pub(crate) fn mask_from_text(text: &str) -> SigSet {
    text.split(',').filter_map(|n| Signal::try_from(n.parse::<i32>().ok()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_survive_the_way_to_the_guardian() {
        for mask in [SigSet::empty(), SigSet::from_iter([Signal::SIGTERM, Signal::SIGUSR1])] {
            assert_eq!(mask_from_text(&mask_to_text(&mask)), mask);
        }
    }
}
