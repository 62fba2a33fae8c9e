//! The kernel's open file description locks: byte-range locks that belong to an open file, not to a
//! process.
//!
//! Classic `fcntl` locks are released when *any* descriptor of the file is closed in the process;
//! these are not. They end when the last descriptor of their open file is closed, and so also when
//! the process dies. Locked bytes need not exist.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// A range of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) start: i64,
    pub(super) len: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    Shared,
    Exclusive,
}

/// Locks the bytes if no conflicting lock exists.
pub(super) fn try_lock(file: &File, bytes: Bytes, hold: Hold) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&describe(bytes, kind(hold)))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Locks the bytes, and sleeps in the kernel until that is possible.
pub(super) fn lock(file: &File, bytes: Bytes, hold: Hold) -> io::Result<()> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&describe(bytes, kind(hold)))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Unlocks the bytes.
pub(super) fn unlock(file: &File, bytes: Bytes) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&describe(bytes, libc::F_UNLCK)))?;
    Ok(())
}

/// Whether another open file has locked any of the bytes exclusively. Has no side effects.
///
/// Watchers lock a byte shared, and are not seen.
pub(super) fn is_held(file: &File, bytes: Bytes) -> io::Result<bool> {
    let mut question = describe(bytes, kind(Hold::Shared));
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut question))?;
    Ok(i32::from(question.l_type) != libc::F_UNLCK)
}

fn kind(hold: Hold) -> i32 {
    match hold {
        Hold::Shared => libc::F_RDLCK,
        Hold::Exclusive => libc::F_WRLCK,
    }
}

fn describe(bytes: Bytes, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: bytes.start,
        l_len: bytes.len,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTE: Bytes = Bytes { start: 7, len: 1 };

    #[test]
    fn two_open_files_of_one_process_exclude_each_other() {
        let scratch = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(scratch.path()).unwrap();
        let (a, b, watcher) = (open(), open(), open());
        assert!(try_lock(&a, BYTE, Hold::Exclusive).unwrap());
        assert!(!try_lock(&b, BYTE, Hold::Exclusive).unwrap());
        assert!(is_held(&watcher, BYTE).unwrap());
        // Closing a duplicate unlocks nothing; closing the last descriptor does.
        drop(a.try_clone().unwrap());
        assert!(is_held(&watcher, BYTE).unwrap());
        drop(a);
        assert!(!is_held(&watcher, BYTE).unwrap());
        assert!(try_lock(&b, BYTE, Hold::Shared).unwrap());
        assert!(!is_held(&watcher, BYTE).unwrap(), "a watcher is not a holder");
    }
}
