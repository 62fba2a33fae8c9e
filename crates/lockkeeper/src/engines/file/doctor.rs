//! Checks whether the lock files of a directory exclude, are writable, and are shared as they
//! should be.

use std::io;
use std::os::unix::fs::FileExt;

use super::directory::Directory;
use super::epoch::deciding;
use super::ofd_lock::{self, Hold};
use super::opened::PAGE;
use crate::engine::Finding;

pub(super) fn examine(directory: &Directory) -> Vec<Finding> {
    let place = directory.path().display();
    let tried = (|| {
        let scratch = directory.scratch()?;
        let second = directory.open_existing(&scratch.path)?;
        ofd_lock::lock(&scratch.file, deciding(0), Hold::Exclusive)?;
        let excludes = !ofd_lock::try_lock(&second, deciding(0), Hold::Exclusive)?;
        // As much as a new lock file, and synced to disk.
        scratch.file.write_all_at(&[b'\n'; PAGE], 0)?;
        scratch.file.sync_all()?;
        Ok::<_, io::Error>((excludes, directory.is_shared_well(&scratch.file)?))
    })();
    let shared_well = !matches!(tried, Ok((_, false)));
    let excludes = match tried {
        Ok((true, _)) => {
            Finding::fine(format!("locks in {place} exclude each other, and can be written"))
        }
        Ok((false, _)) => Finding::problem(
            format!("locks in {place} do not exclude each other"),
            "use a directory on a local file system",
        ),
        Err(error) => Finding::problem(
            format!("cannot use lock files in {place}: {error}"),
            match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "make room on the disk: keys that are new cannot be locked"
                }
                _ => "make the directory writable for this user, or name another one",
            },
        ),
    };
    let network = match directory.network() {
        Ok(None) => Finding::fine(format!("{place} is on a local file system")),
        Ok(Some(kind)) => Finding::problem(
            format!("{place} is on a network file system ({kind})"),
            "use a local directory, or an engine made for several machines",
        ),
        Err(error) => Finding::warning(
            format!("cannot tell what kind of file system {place} is on: {error}"),
            "make sure that it is a local one",
        ),
    };
    let mut findings = vec![excludes, network];
    if !shared_well {
        findings.push(Finding::problem(
            format!("{place} is for a group, but files that this user makes there are not"),
            "be a member of the directory's group, or set its group bit: chmod 2770",
        ));
    }
    findings
}
