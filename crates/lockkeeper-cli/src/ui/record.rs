//! `--record FILE`: the history as JSON lines, so that it survives a restart.
//!
//! The file is appended to, and rewritten when it has twice as many lines as are kept. A crash can
//! leave half a line at the end, which is skipped.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{Flock, FlockArg};

use super::history::{MOST_RECORDS, Record};
use crate::exit::Failure;

#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    /// Locked, so that two servers do not write into each other's lines.
    file: Flock<File>,
    lines: usize,
    /// Whether the last line may be incomplete: after a crash, or on a full disk.
    torn: bool,
    /// How many lines there may be before the file is rewritten.
    most: usize,
}

impl Recorder {
    /// Opens or creates the file, and reads its contents.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<Record>), Failure> {
        let refuse =
            |error: io::Error| Failure::own(format!("record to {}", path.display()), error);
        let file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(refuse)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let path = path.display();
            Failure::usage(format!("another lockkeeper records to {path}; name another file"))
        })?;
        let (past, lines) = read(&file).map_err(refuse)?;
        let torn = lines > 0 && !ends_with_newline(&file).map_err(refuse)?;
        Ok((Self { path: path.to_owned(), file, lines, torn, most: 2 * MOST_RECORDS }, past))
    }

    /// Appends; rewrites the file from `all` (oldest first) when it has become too long.
    pub(crate) fn append(
        &mut self,
        records: &[Arc<Record>],
        all: impl Iterator<Item = Arc<Record>>,
    ) -> io::Result<()> {
        if self.lines + records.len() > self.most {
            return self.rewrite(all);
        }
        // Whatever the last write left behind stays on its own line.
        let mut text = if self.torn { b"\n".to_vec() } else { Vec::new() };
        for record in records {
            serde_json::to_writer(&mut text, &**record)?;
            text.push(b'\n');
        }
        self.lines += records.len();
        let written = self.file.write_all(&text);
        self.torn = written.is_err();
        written
    }

    fn rewrite(&mut self, all: impl Iterator<Item = Arc<Record>>) -> io::Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&name)?;
        let file =
            Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
        let mut out = BufWriter::new(&*file);
        let mut lines = 0;
        for record in all {
            serde_json::to_writer(&mut out, &*record)?;
            out.write_all(b"\n")?;
            lines += 1;
        }
        out.flush()?;
        drop(out);
        file.sync_all()?;
        fs::rename(&name, &self.path)?;
        (self.file, self.lines, self.torn) = (file, lines, false);
        Ok(())
    }
}

/// The readable records, the last ones if there are too many, and the number of lines.
fn read(file: &File) -> io::Result<(Vec<Record>, usize)> {
    let mut records = std::collections::VecDeque::new();
    let mut lines = 0;
    for line in BufReader::new(file).split(b'\n') {
        lines += 1;
        if let Ok(record) = serde_json::from_slice(&line?) {
            // Every hold has two lines: its beginning and its end.
            if records.len() == 2 * MOST_RECORDS {
                records.pop_front();
            }
            records.push_back(record);
        }
    }
    Ok((records.into(), lines))
}

fn ends_with_newline(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    let mut last = [0];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut last, length.saturating_sub(1))?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::super::history::{Outcome, Span};
    use super::super::model::tests::{at, lock};
    use super::*;

    fn hold(n: u64) -> Arc<Record> {
        let held = lock("k", &["a@h 1"], &[]);
        Arc::new(Record::Hold(Span::new(&held, &held.holders[0], Some(at(n)), Outcome::Ended)))
    }

    #[test]
    fn what_was_recorded_is_there_again_also_after_half_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let (mut recorder, past) = Recorder::open(&path).unwrap();
        assert!(past.is_empty());
        recorder.append(&[hold(1), hold(2)], std::iter::empty()).unwrap();
        assert!(Recorder::open(&path).unwrap_err().message.contains("name another file"));
        drop(recorder);
        let mut text = fs::read_to_string(&path).unwrap();
        text.truncate(text.len() - 5);
        fs::write(&path, text).unwrap();
        let (mut recorder, past) = Recorder::open(&path).unwrap();
        assert_eq!(past, [(*hold(1)).clone()]);
        recorder.append(&[hold(3)], std::iter::empty()).unwrap();
        drop(recorder);
        assert_eq!(Recorder::open(&path).unwrap().1, [(*hold(1)).clone(), (*hold(3)).clone()]);
    }

    #[test]
    fn the_file_does_not_grow_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        let (mut recorder, _) = Recorder::open(&path).unwrap();
        recorder.most = 10;
        for n in 0..100 {
            let kept: Vec<_> = (n.max(5) - 5..=n).map(hold).collect();
            recorder.append(&[hold(n)], kept.into_iter()).unwrap();
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= 10, "{lines}");
        }
        drop(recorder);
        assert_eq!(Recorder::open(&path).unwrap().1.last().unwrap().end(), at(99));
    }
}
