//! A process, in any language, that acquires and releases locks on command.
//!
//! Orders go to its input and answers come from its output, one line each; `ready` comes first.
//! It is killed when dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long a driver may take to start. A busy machine starts a JVM slowly.
const START: Duration = Duration::from_secs(120);

/// How long anything else may take that does not wait for a lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to start a driver; the length of its leases is passed at the start.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    line: Vec<String>,
}

/// A driver that runs.
#[derive(Debug)]
pub(crate) struct Driver {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

/// An error message.
pub(crate) type Outcome<T = ()> = Result<T, String>;

impl Program {
    pub(crate) fn new(line: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self { line: line.into_iter().map(|word| word.as_ref().to_owned()).collect() }
    }

    /// Starts it and waits until it is ready.
    pub(crate) fn start(&self, lease: Duration) -> Outcome<Driver> {
        let driver = self.spawn(lease)?;
        driver.is_ready()?;
        Ok(driver)
    }

    /// Starts several at once.
    pub(crate) fn start_many(&self, lease: Duration, count: usize) -> Outcome<Vec<Driver>> {
        let drivers = (0..count).map(|_| self.spawn(lease)).collect::<Outcome<Vec<_>>>()?;
        drivers.iter().try_for_each(Driver::is_ready)?;
        Ok(drivers)
    }

    fn spawn(&self, lease: Duration) -> Outcome<Driver> {
        let (program, arguments) = self.line.split_first().expect("a program has a name");
        let mut child = Command::new(program)
            .args(arguments)
            .arg(lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        let orders = child.stdin.take().expect("it is a pipe");
        let output = child.stdout.take().expect("it is a pipe");
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let name = format!("{} ({})", self.line.join(" "), child.id());
        Ok(Driver { name, child, orders, answers })
    }
}

impl Driver {
    /// Whether it is a client of ours.
    pub(crate) fn is_ours(&self) -> bool {
        self.name.contains("lockkeeper-interop")
    }

    fn is_ready(&self) -> Outcome {
        match self.answer(START)?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("{}: {other}", self.name)),
        }
    }

    /// Sends an order; its answer comes later.
    pub(crate) fn tell(&mut self, order: &str) -> Outcome {
        let sent = writeln!(self.orders, "{order}").and_then(|()| self.orders.flush());
        sent.map_err(|error| format!("{} takes no orders: {error}", self.name))
    }

    /// The next answer, if it comes in time.
    pub(crate) fn answer(&self, limit: Duration) -> Outcome<String> {
        match self.answers.recv_timeout(limit) {
            Ok(line) => match line.strip_prefix("error ") {
                Some(problem) => Err(format!("{}: {problem}", self.name)),
                None => Ok(line),
            },
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{} did not answer within {limit:?}", self.name))
            }
            Err(RecvTimeoutError::Disconnected) => Err(format!("{} ended", self.name)),
        }
    }

    /// An answer that has already arrived, if any.
    pub(crate) fn said(&self) -> Option<String> {
        self.answers.try_recv().ok()
    }

    /// Sends an order and waits for its answer.
    pub(crate) fn ask(&mut self, order: &str) -> Outcome<String> {
        self.tell(order)?;
        self.answer(PATIENCE).map_err(|problem| format!("{order}: {problem}"))
    }

    /// Sends an order that must have this answer.
    pub(crate) fn expect(&mut self, order: &str, wanted: &str) -> Outcome {
        let answer = self.ask(order)?;
        match answer.split(' ').next() == Some(wanted) {
            true => Ok(()),
            false => Err(format!("{order}: {answer} instead of {wanted} from {}", self.name)),
        }
    }

    /// Stops it with `SIGSTOP`, or continues it.
    pub(crate) fn stop(&self, stop: bool) {
        let signal = if stop { "-STOP" } else { "-CONT" };
        let _ = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
    }

    /// Kills it with `SIGKILL`; returns when it is dead.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}
