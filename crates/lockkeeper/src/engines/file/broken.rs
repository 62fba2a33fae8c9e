//! The list of the last locks that were broken: one file in the directory of the locks.

use std::fs::TryLockError;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::directory::Directory;
use crate::engine::Break;
use crate::engine::broken::{listed, with_line, without_line};

/// How long another process may change the list. One that is stopped meanwhile blocks no break.
const PATIENCE: Duration = Duration::from_secs(1);

/// Adds a line.
pub(super) async fn add(directory: &Directory, line: &str) -> io::Result<()> {
    change(directory, |text| with_line(text, line)).await
}

/// Removes a line.
pub(super) async fn remove(directory: &Directory, line: &str) -> io::Result<()> {
    change(directory, |text| without_line(text, line)).await
}

/// The last breaks. A line that is being written is malformed, and left out.
pub(super) fn breaks(directory: &Directory) -> io::Result<Vec<Break>> {
    let mut text = Vec::new();
    match directory.open_existing(&path(directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?.read_to_end(&mut text)?,
    };
    Ok(listed(String::from_utf8_lossy(&text).lines().filter_map(Break::parse)))
}

async fn change(directory: &Directory, change: impl Fn(&str) -> String) -> io::Result<()> {
    let mut file = directory.open_file(&path(directory))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                sleep(Duration::from_millis(5)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let changed = change(&String::from_utf8_lossy(&text));
    file.rewind()?;
    file.write_all(changed.as_bytes())?;
    file.set_len(changed.len() as u64)
}

/// Lock files do not start with a dot.
fn path(directory: &Directory) -> PathBuf {
    directory.path().join(".broken")
}
