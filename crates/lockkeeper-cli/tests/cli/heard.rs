//! A command whose messages are read while it runs.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::place::Place;

/// A command whose messages are read while it runs; it is killed if a test fails.
pub(crate) struct Heard {
    pub(crate) child: Child,
    lines: Receiver<String>,
}

impl Heard {
    pub(crate) fn start(place: &Place, words: &str) -> Self {
        let mut child = place.lockkeeper(words).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        Self { child, lines: lines(stderr) }
    }

    /// Waits for a line with these words.
    #[track_caller]
    pub(crate) fn says(&self, what: &str) -> String {
        self.says_any(&[what])
    }

    /// Waits for a line with one of these.
    #[track_caller]
    pub(crate) fn says_any(&self, what: &[&str]) -> String {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(Duration::from_secs(30)) {
                Ok(line) if what.iter().any(|what| line.contains(what)) => return line,
                Ok(line) => said.push(line),
                Err(error) => panic!("{error}: no {what:?} in {said:#?}"),
            }
        }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (say, said) = channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| say.send(line))
    });
    said
}
