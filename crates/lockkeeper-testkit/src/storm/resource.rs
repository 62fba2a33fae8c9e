//! What the locks of a storm protect, served to all processes by the one that no fault hits.
//!
//! Every access is made twice: to a resource that checks fences, and to an unfenced twin, which
//! shows what would have been lost without fences.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::history::{Access, Object, Resource};

/// The resource and its twin, at a socket.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) socket: PathBuf,
    both: Arc<Both>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Both {
    fenced: Resource,
    twin: Resource,
}

impl Served {
    pub(super) fn start(directory: &Path) -> Self {
        let socket = directory.join("resource");
        let listener =
            UnixListener::bind(&socket).expect("the storm's directory can be written to");
        let both = Arc::new(Both { fenced: Resource::fenced(), twin: Resource::unfenced() });
        let serve = both.clone();
        let accept = async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A process that is killed takes its connections with it.
                let both = serve.clone();
                tokio::spawn(async move { both.serve(stream).await });
            }
        };
        Self { socket, both, task: tokio::spawn(accept).abort_handle() }
    }

    /// The accesses to the resource, and those to its twin. They are not kept.
    pub(super) fn take_logs(&self) -> [Vec<Access>; 2] {
        [self.both.fenced.take_log(), self.both.twin.take_log()]
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Both {
    async fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let (input, mut output) = stream.into_split();
        let (mut input, mut line, mut answers) =
            (BufReader::new(input), String::new(), String::new());
        while input.read_line(&mut line).await? > 0 {
            answers +=
                &self.answer(line.trim_end()).ok_or_else(|| io::Error::other(line.clone()))?;
            line.clear();
            // Requests that arrive together are answered together.
            if !input.buffer().contains(&b'\n') {
                output.write_all(answers.as_bytes()).await?;
                answers.clear();
            }
        }
        Ok(())
    }

    fn answer(&self, line: &str) -> Option<String> {
        let words: Vec<_> = line.split(' ').collect();
        let [key, slot, fence, owner, shared, saw, twin_saw] = words[..] else { return None };
        let object = (key.to_owned(), slot.parse().ok()?);
        let (fence, shared) = (fence.parse().ok()?, shared == "true");
        let access = |resource: &Resource, saw: &str| match saw.parse() {
            Ok(saw) => resource.write(&object, fence, owner, saw).then_some(saw),
            Err(_) => resource.read(&object, fence, owner, shared),
        };
        // One that was refused already asks the twin alone.
        let value = if saw == "refused" { None } else { access(&self.fenced, saw) };
        let twin = access(&self.twin, twin_saw)?;
        let value = value.map_or("refused".to_owned(), |value| value.to_string());
        Some(format!("{value} {twin}\n"))
    }
}

/// A process's connection to both resources, which its tasks share.
#[derive(Debug)]
pub(super) struct Remote(mpsc::UnboundedSender<(String, oneshot::Sender<Read>)>);

/// What was read: the number of the last write, of the resource if it did not refuse, and of its
/// twin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) value: Option<u64>,
    twin: u64,
}

impl Remote {
    pub(super) async fn connect(socket: &Path) -> io::Result<Self> {
        let (input, mut output) = UnixStream::connect(socket).await?.into_split();
        let (requests, mut asked) = mpsc::unbounded_channel();
        let (waiting, answered) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut some: Vec<(String, oneshot::Sender<Read>)> = Vec::new();
            while asked.recv_many(&mut some, 64).await > 0 {
                let mut lines = String::new();
                for (line, answer) in some.drain(..) {
                    lines += &line;
                    let _ = waiting.send(answer);
                }
                if output.write_all(lines.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        tokio::spawn(hear(BufReader::new(input), answered));
        Ok(Self(requests))
    }

    pub(super) async fn read(
        &self,
        object: &Object,
        fence: u64,
        owner: &str,
        shared: bool,
    ) -> io::Result<Read> {
        self.ask(object, fence, owner, shared, "-", "-").await
    }

    /// Writes on top of what was read. False if the resource refused, now or before.
    pub(super) async fn write(
        &self,
        object: &Object,
        fence: u64,
        owner: &str,
        saw: Read,
    ) -> io::Result<bool> {
        let value = saw.value.map_or("refused".to_owned(), |value| value.to_string());
        let twin = saw.twin.to_string();
        Ok(self.ask(object, fence, owner, false, &value, &twin).await?.value.is_some())
    }

    async fn ask(
        &self,
        (key, slot): &Object,
        fence: u64,
        owner: &str,
        shared: bool,
        saw: &str,
        twin: &str,
    ) -> io::Result<Read> {
        let line = format!("{key} {slot} {fence} {owner} {shared} {saw} {twin}\n");
        let (answer, answered) = oneshot::channel();
        // Whether it was sent, the answer shows.
        let _ = self.0.send((line, answer));
        answered.await.map_err(|_| io::Error::other("the resource does not answer"))
    }
}

/// Passes answers to those that wait for them, in the order in which they asked. Ends at the first
/// that makes no sense.
async fn hear(
    mut input: BufReader<OwnedReadHalf>,
    mut waiting: mpsc::UnboundedReceiver<oneshot::Sender<Read>>,
) {
    let mut line = String::new();
    while input.read_line(&mut line).await.is_ok() {
        let parsed = line.trim_end().split_once(' ').and_then(|(value, twin)| {
            Some(Read { value: value.parse().ok(), twin: twin.parse().ok()? })
        });
        let (Some(read), Some(answer)) = (parsed, waiting.recv().await) else { return };
        let _ = answer.send(read);
        line.clear();
    }
}
