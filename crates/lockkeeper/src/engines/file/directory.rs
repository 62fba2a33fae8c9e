//! The directory of the lock files: a file name per key, and a slow cleanup.
//!
//! Lock files are not removed on release: another process that has just opened one would lock a
//! file that can no longer be found. Only files that were idle for a month are removed, under their
//! own lock.
//!
//! Easy to get wrong: others may write into the directory too. Nothing here follows a link, or uses
//! a file that has a second name, and a directory of another user is refused.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::statfs::{FsType, statfs};
use nix::unistd::{Uid, User, geteuid};

use super::file_name::{SUFFIX, file_name};
use crate::error::{Error, Result};
use crate::key::Key;

/// How long a lock file is idle before it is removed, and how often that is checked.
const IDLE: Duration = Duration::from_secs(30 * 24 * 3600);
const SWEEP_EVERY: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    /// The mode of lock files: for the owner alone, or also for the group if the directory is.
    mode: u32,
    /// The group of lock files, if they are for a group.
    group: Option<u32>,
    /// Whether a network file system is accepted.
    network_allowed: bool,
}

impl Directory {
    /// The default: under the user's state directory.
    pub(super) fn default_path() -> Result<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let state = variable("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || variable("HOME").map(|home| Path::new(&home).join(".local/state"));
        state.or_else(home).map(|state| state.join("lockkeeper/locks")).ok_or_else(|| {
            Error::Config(format!(
                "file: needs a home: set HOME or XDG_STATE_HOME, or name a directory, such as {}",
                homeless()
            ))
        })
    }

    /// The directory as it is. If it does not exist, the first acquire creates it; inspecting does
    /// not.
    pub(super) fn find(path: PathBuf, network_allowed: bool) -> Result<Self> {
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { path, mode: 0o600, group: None, network_allowed })
            }
            _ => Self::open(path, network_allowed),
        }
    }

    /// Creates the directory, now that it is needed.
    pub(super) fn make(&self) -> Result<Self> {
        Self::open(self.path.clone(), self.network_allowed)
    }

    /// Opens the directory, and creates it if it does not exist.
    pub(super) fn open(path: PathBuf, network_allowed: bool) -> Result<Self> {
        let shown = path.display().to_string();
        let cannot = |doing: &str, error: io::Error| {
            Error::broken("file", format!("{doing} the lock directory {shown}"), error)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| {
            let advice = format!("{error}; name a directory, such as {}", homeless());
            cannot("make", io::Error::new(error.kind(), advice))
        })?;
        let about = fs::metadata(&path).map_err(|error| cannot("look at", error))?;
        let link = fs::symlink_metadata(&path).map_err(|error| cannot("look at", error))?;
        for about in [&link, &about] {
            if !is_trusted(about) {
                return Err(Error::Config(format!(
                    "{shown} belongs to another user ({}), who could take locks away or plant \
                     links there; name a directory of your own (0700). {}",
                    name_of(about.uid()),
                    how_to_share(&path)
                )));
            }
        }
        if about.mode() & 0o002 != 0 {
            let inside = path.join(format!("lockkeeper-{}", geteuid()));
            return Err(Error::Config(format!(
                "everyone may write into {shown}, so anyone could take locks away; name a directory \
                 in it, such as {}, which is made for you alone (0700). {}",
                url_of(&inside),
                how_to_share(&path.join("NAME"))
            )));
        }
        let group = (about.mode() & 0o020 != 0).then_some(about.gid());
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        let directory = Self { path, mode, group, network_allowed };
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

    /// Opens a lock file, and creates it if it does not exist.
    pub(super) fn open_file(&self, path: &Path) -> io::Result<File> {
        loop {
            match self.open_existing(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            match self.create(path) {
                // Another process was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created,
            }
        }
    }

    /// Opens an existing lock file.
    pub(super) fn open_existing(&self, path: &Path) -> io::Result<File> {
        // Without updating the access time, or every read of the file would change its inode. Only
        // the file's owner may request that.
        let open = |flags| {
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | flags;
            File::options().read(true).write(true).custom_flags(flags).open(path)
        };
        let opened = match open(libc::O_NOATIME) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open(0),
            opened => opened,
        };
        let file = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES) => self.explain_refusal(path, error),
            Some(libc::ELOOP) => io::Error::other("it is a link; remove it"),
            _ => error,
        })?;
        let about = file.metadata()?;
        if about.is_file() && about.nlink() < 2 {
            return Ok(file);
        }
        Err(io::Error::other("it is not a plain file with one name; remove it"))
    }

    /// Creates a new file.
    fn create(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
        let file = options.mode(self.mode).open(path)?;
        if let Some(group) = self.group {
            if file.metadata()?.gid() != group {
                // For a directory without the setgid bit, which would do this (2770). It fails for
                // a user who is not in the group but may write here by an access control list.
                let _ = std::os::unix::fs::fchown(&file, None, Some(group));
            }
            // The umask may have removed the group's permissions.
            file.set_permissions(fs::Permissions::from_mode(self.mode))?;
        }
        Ok(file)
    }

    /// Adds to an error whose file it is that we may not open, and what to do.
    fn explain_refusal(&self, path: &Path, error: io::Error) -> io::Error {
        let (Some(group), Ok(about)) = (self.group, fs::symlink_metadata(path)) else {
            return error;
        };
        let (path, directory) = (quoted(path), quoted(&self.path));
        io::Error::new(
            error.kind(),
            format!(
                "{error}: it belongs to {} and group {}, mode {:03o}; as its owner or root, run: \
                 chgrp {group} {path} && chmod 660 {path} && chmod g+s {directory}",
                name_of(about.uid()),
                about.gid(),
                about.mode() & 0o777,
            ),
        )
    }

    /// Creates a temporary file with an unpredictable name.
    pub(super) fn scratch(&self) -> io::Result<Scratch> {
        let path = self.path.join(format!(".scratch-{:016x}", fastrand::u64(..)));
        Ok(Scratch { file: self.create(&path)?, path })
    }

    /// Whether all users of the directory can use the files that we create.
    pub(super) fn is_shared_well(&self, file: &File) -> io::Result<bool> {
        let about = file.metadata()?;
        Ok(self.group.is_none_or(|group| about.gid() == group && about.mode() & 0o060 == 0o060))
    }

    /// All lock files.
    pub(super) fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(files),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == &SUFFIX[1..]) {
                files.push(path);
            }
        }
        Ok(files)
    }

    /// The kind of network file system that the directory is on, if it is on one.
    pub(super) fn network(&self) -> io::Result<Option<&'static str>> {
        const NETWORK: &[(u32, &str)] = &[
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
        // The kernel's number is 32 bits wide; C libraries have wider types for it, signed or not.
        let kind = kind as u32;
        Ok(NETWORK.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| *name))
    }

    /// Lock files that are old enough to be removed, if the last sweep was more than a day ago.
    pub(super) fn to_sweep(&self) -> Vec<PathBuf> {
        let stamp = self.path.join(".swept");
        if age(&stamp).is_some_and(|age| age < SWEEP_EVERY) {
            return Vec::new();
        }
        // This is only housekeeping: whatever fails is left to the next sweep. The file is written
        // to because only its owner could set its time.
        let stamped = self.open_file(&stamp).and_then(|file| file.write_all_at(b"swept\n", 0));
        if stamped.is_err() {
            return Vec::new();
        }
        let files = self.files().unwrap_or_default();
        files.into_iter().filter(|path| age(path).is_some_and(|age| age > IDLE)).collect()
    }
}

/// A file that is removed after use.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether this belongs to root or to the current user.
fn is_trusted(about: &fs::Metadata) -> bool {
    about.uid() == 0 || about.uid() == geteuid().as_raw()
}

fn name_of(user: u32) -> String {
    let known = User::from_uid(Uid::from_raw(user)).ok().flatten();
    known.map_or_else(|| format!("uid {user}"), |known| known.name)
}

/// A URL for a user whose home directory is missing or not writable.
fn homeless() -> String {
    let sticky =
        |path: &&str| fs::metadata(path).is_ok_and(|about| about.mode() & 0o1002 == 0o1002);
    let base = ["/run/lock"].iter().find(|path| sticky(path)).unwrap_or(&"/tmp");
    format!("file://{base}/lockkeeper-{}, which is made for you alone", geteuid())
}

fn how_to_share(directory: &Path) -> String {
    let directory = quoted(directory);
    format!("To share one, let root make it for a group: install -d -g GROUP -m 2770 {directory}")
}

/// Quotes a path as one word for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@%".contains(c);
    match text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The URL of a directory.
fn url_of(path: &Path) -> String {
    url::Url::from_file_path(path)
        .map_or_else(|()| format!("file://{}", path.display()), Into::into)
}

fn age(path: &Path) -> Option<Duration> {
    let modified = fs::symlink_metadata(path).ok()?.modified().ok()?;
    // A time in the future counts as new.
    Some(modified.elapsed().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_everyone_can_write_into_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let message = Directory::open(scratch.path().to_owned(), false).unwrap_err().to_string();
        assert!(message.contains("0700") && message.contains("2770"), "{message}");
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

    #[test]
    fn advice_can_be_pasted_into_a_shell() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("it's mine");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let message = Directory::open(path, false).unwrap_err().to_string();
        assert!(message.contains("it's%20mine/lockkeeper-"), "{message}");
        assert!(message.contains(r"it'\''s mine/NAME'"), "{message}");
    }

    #[test]
    fn a_directory_is_made_by_the_first_lock_and_not_by_a_look() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("locks");
        let directory = Directory::find(path.clone(), false).unwrap();
        assert!(directory.files().unwrap().is_empty());
        assert!(directory.to_sweep().is_empty());
        assert!(!path.exists());
        assert_eq!(directory.make().unwrap().mode, directory.mode);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }
}
