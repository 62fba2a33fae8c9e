//! `flock`, and fd-lock over it. Both block a thread.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use lockkeeper_benchmarks::{Contender, Failure, Order, Section};

fn paths(order: &Order) -> impl Iterator<Item = PathBuf> {
    let directory = Path::new(&order.address);
    (0..order.clients * order.tasks).map(move |n| directory.join(order.key(n % order.tasks)))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

/// As scripts do it: open, lock, close.
pub(crate) struct Flock(PathBuf);

pub(crate) fn flock(order: &Order) -> Vec<Flock> {
    paths(order).map(Flock).collect()
}

impl Contender for Flock {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let file = open(&self.0)?;
        file.lock()?;
        section.enter().await?;
        drop(file);
        Ok(())
    }
}

pub(crate) struct FdLock(fd_lock::RwLock<File>);

pub(crate) fn fd_lock(order: &Order) -> Result<Vec<FdLock>, Failure> {
    paths(order).map(|path| Ok(FdLock(fd_lock::RwLock::new(open(&path)?)))).collect()
}

impl Contender for FdLock {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let guard = self.0.write()?;
        section.enter().await?;
        drop(guard);
        Ok(())
    }
}
