//! The identity of the file behind a descriptor or a path.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags};

/// Identifies a file, to check whether a path still leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: (u32, u32),
    inode: u64,
}

impl Identity {
    /// The identity of this file, and its size.
    pub(super) fn of_file(file: &File) -> io::Result<(Self, u64)> {
        Self::ask(file, c"", AtFlags::EMPTY_PATH)
    }

    /// The identity of the file at a path, and its size.
    pub(super) fn of_path(path: &Path) -> io::Result<(Self, u64)> {
        Self::ask(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Requests only the inode and the size: reading the times would make the kernel record the
    /// time of the next write precisely, and so double the cost of that write.
    fn ask(
        directory: impl AsFd,
        path: impl rustix::path::Arg,
        flags: AtFlags,
    ) -> io::Result<(Self, u64)> {
        let wanted = StatxFlags::INO | StatxFlags::SIZE;
        let about = rustix::fs::statx(directory, path, flags, wanted)?;
        let device = (about.stx_dev_major, about.stx_dev_minor);
        Ok((Self { device, inode: about.stx_ino }, about.stx_size))
    }
}
