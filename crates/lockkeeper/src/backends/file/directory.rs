//! Where the lock files are: a directory of one's own, a file name per key, and a slow broom.
//!
//! Lock files are not removed when they are released: whoever just opened one would lock a file that
//! nobody else finds. Only files that were idle for a month are, under their own lock.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::statfs::{FsType, statfs};
use rustix::fs::{AtFlags, StatxFlags};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::key::Key;

/// File names longer than this are replaced by a hash: file systems stop at 255 bytes.
const LONGEST_NAME: usize = 200;

const SUFFIX: &str = ".lock";

/// How long a lock file is idle before it is removed, and how often anyone looks.
const IDLE: Duration = Duration::from_secs(30 * 24 * 3600);
const SWEEP_EVERY: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    /// The mode of lock files: for the owner alone, or also for the group if the directory is.
    mode: u32,
}

impl Directory {
    /// The default: under the user's state directory.
    pub(super) fn default_path() -> Result<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let state = variable("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || variable("HOME").map(|home| Path::new(&home).join(".local/state"));
        state.or_else(home).map(|state| state.join("lockkeeper/locks")).ok_or_else(|| {
            Error::Config(
                "file: needs a home: set HOME or XDG_STATE_HOME, or name a directory as file:///dir"
                    .to_owned(),
            )
        })
    }

    /// Opens the directory, and makes it if it is not there.
    pub(super) fn open(path: PathBuf, network_allowed: bool) -> Result<Self> {
        let shown = path.display().to_string();
        let cannot = |doing: &str, error: io::Error| {
            Error::broken("file", format!("{doing} the lock directory {shown}"), error)
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| cannot("make", error))?;
        let about = fs::metadata(&path).map_err(|error| cannot("look at", error))?;
        if about.mode() & 0o002 != 0 {
            return Err(Error::Config(format!(
                "everyone may write into {shown}, so anyone could take locks away; \
                 name a directory that only its owner (0700) or group (0770) can write into"
            )));
        }
        let directory = Self { path, mode: 0o600 | (about.mode() & 0o060) };
        match directory.network().map_err(|error| cannot("look at", error))? {
            Some(kind) if !network_allowed => Err(Error::Config(format!(
                "{shown} is on a network file system ({kind}), where the kernel may lose a lock \
                 without a word; name a local directory, or say ?network=allow to take that risk"
            ))),
            _ => Ok(directory),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The lock file of a key.
    pub(super) fn file_of(&self, key: &Key) -> PathBuf {
        self.path.join(file_name(key.as_str()))
    }

    /// Opens a lock file, and makes it if it is not there.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        // Without a time of access, which would make every look at the file a change to its inode.
        // Only the file's owner may ask for that.
        match self.open_with(path, libc::O_NOATIME) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.open_with(path, 0)
            }
            opened => opened,
        }
    }

    fn open_with(&self, path: &Path, flags: i32) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | flags);
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let file = options.create(true).mode(self.mode).open(path)?;
        if self.mode != 0o600 {
            // The umask may have taken the group's right away.
            file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        }
        Ok(file)
    }

    /// All lock files.
    pub(super) fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == &SUFFIX[1..]) {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// The kind of network file system that the directory is on, if it is on one.
    pub(super) fn network(&self) -> io::Result<Option<&'static str>> {
        const NETWORK: &[(i64, &str)] = &[
            (0x6969, "NFS"),
            (0x517b, "SMB"),
            (0xff53_4d42, "CIFS"),
            (0xfe53_4d42, "SMB2"),
            (0x0102_1997, "9p"),
            (0x5346_414f, "AFS"),
            (0x00c3_6400, "Ceph"),
            (0x0bd0_0bd0, "Lustre"),
            (0x7461_636f, "OCFS2"),
            (0x0116_1970, "GFS2"),
        ];
        let FsType(kind) = statfs(&self.path)?.filesystem_type();
        // The kernel's number is 32 bits wide; some are sign-extended on the way.
        let kind = kind & 0xffff_ffff;
        Ok(NETWORK.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name))
    }

    /// Lock files that are old enough to be removed, if nobody looked for a day.
    pub(super) fn to_sweep(&self) -> Vec<PathBuf> {
        let stamp = self.path.join(".swept");
        if age(&stamp).is_some_and(|age| age < SWEEP_EVERY) {
            return Vec::new();
        }
        // Everything here is for tidiness alone: what fails is left to the next one.
        let Ok(file) =
            OpenOptions::new().write(true).create(true).truncate(true).mode(self.mode).open(&stamp)
        else {
            return Vec::new();
        };
        let _ = file.set_modified(SystemTime::now());
        let files = self.files().unwrap_or_default();
        files.into_iter().filter(|path| age(path).is_some_and(|age| age > IDLE)).collect()
    }
}

/// Which file this is, to see whether a path still leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: (u32, u32),
    inode: u64,
}

impl Identity {
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        Self::ask(file, c"", AtFlags::EMPTY_PATH)
    }

    pub(super) fn of_path(path: &Path) -> io::Result<Self> {
        Self::ask(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Asks for nothing but the inode: a look at the times would make the kernel note the next
    /// write's time exactly, and so double the cost of that write.
    fn ask(directory: impl AsFd, path: impl rustix::path::Arg, flags: AtFlags) -> io::Result<Self> {
        let about = rustix::fs::statx(directory, path, flags, StatxFlags::INO)?;
        let device = (about.stx_dev_major, about.stx_dev_minor);
        Ok(Self { device, inode: about.stx_ino })
    }
}

fn age(path: &Path) -> Option<Duration> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    // A time in the future counts as new.
    Some(modified.elapsed().unwrap_or_default())
}

/// A name that no two keys share, also where case does not matter or accents are rewritten:
/// lower-case letters, digits, `-` and `_` stand for themselves, all else is spelled in hexadecimal.
fn file_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + SUFFIX.len());
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.len() > LONGEST_NAME {
        // `=` never comes out of the spelling above.
        name = Sha256::digest(key.as_bytes())
            .iter()
            .fold("=".to_owned(), |name, byte| name + &format!("{byte:02x}"));
    }
    name + SUFFIX
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_plain_short_and_differ() {
        let keys = [
            "a",
            "A",
            "a ",
            "a/b",
            "a%2fb",
            "..",
            ".",
            "../a",
            "é",
            "e\u{301}",
            "%",
            "=",
            "{a}",
            "*",
            "'",
            "\u{202e}a",
        ];
        let names: HashSet<_> = keys.iter().map(|key| file_name(key)).collect();
        assert_eq!(names.len(), keys.len());
        for name in &names {
            assert!(!name.contains('/') && !name.starts_with('.'), "{name}");
            assert_eq!(*name, name.to_lowercase());
        }
        assert_eq!(file_name("orders-42"), "orders-42.lock");
        assert!(file_name(&"X".repeat(512)).len() < 255);
    }

    #[test]
    fn a_directory_that_everyone_can_write_into_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let message = Directory::open(scratch.path().to_owned(), false).unwrap_err().to_string();
        assert!(message.contains("0700"), "{message}");
    }

    #[test]
    fn a_new_directory_is_for_its_owner_alone_and_a_group_directory_for_its_group() {
        let scratch = tempfile::tempdir().unwrap();
        let own = Directory::open(scratch.path().join("a/b"), false).unwrap();
        assert_eq!(fs::metadata(own.path()).unwrap().mode() & 0o777, 0o700);
        let mode = |directory: &Directory| {
            let file = directory.open_file(&directory.path().join("k.lock")).unwrap();
            file.metadata().unwrap().mode() & 0o777
        };
        assert_eq!(mode(&own), 0o600);
        let team = scratch.path().join("team");
        fs::create_dir(&team).unwrap();
        fs::set_permissions(&team, fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(mode(&Directory::open(team, false).unwrap()), 0o660);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]
        #[test]
        fn two_keys_never_share_a_file(a in ".{1,60}", b in ".{1,60}") {
            prop_assert_eq!(a == b, file_name(&a) == file_name(&b));
        }
    }
}
