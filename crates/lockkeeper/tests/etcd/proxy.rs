//! The way to one server, with a switch for what happens on it.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the way does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything passes.
    Open,
    /// Requests arrive, and their replies are lost.
    NoReplies,
    /// Nothing arrives, and nobody is told.
    Hole,
    /// Connections are cut, and new ones are cut too.
    Cut,
}

/// A way to a server.
pub(crate) struct Proxy {
    address: SocketAddr,
    switch: watch::Sender<Switch>,
}

#[derive(Debug, Clone, Copy)]
struct Switch {
    way: Way,
    /// How often connections were cut: one that was made before the last time is cut, also if the way
    /// was opened again before it noticed.
    cuts: usize,
}

impl Proxy {
    /// Listens on a free port and leads to this address.
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let switch = watch::Sender::new(Switch { way: Way::Open, cuts: 0 });
        let switches = switch.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server.clone(), switches.subscribe()));
            }
        });
        Self { address, switch }
    }

    /// `host:port` to connect to.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn set(&self, way: Way) {
        self.switch.send_modify(|switch| {
            switch.way = way;
            switch.cuts += usize::from(way == Way::Cut);
        });
    }
}

async fn carry(client: TcpStream, server: String, switch: watch::Receiver<Switch>) {
    let mut cut = switch.clone();
    let Switch { way, cuts } = *switch.borrow();
    if way == Way::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    tokio::select! {
        () = copy(client_reads, server_writes, switch.clone(), &[Way::Open, Way::NoReplies]) => {}
        () = copy(server_reads, client_writes, switch, &[Way::Open]) => {}
        _ = async { cut.wait_for(|switch| switch.cuts != cuts).await.map(|_| ()) } => {}
    }
}

/// Carries bytes as long as the way lets them pass. What it did not let pass is lost, so the
/// connection is of no use afterwards: nothing more is carried on it.
async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    switch: watch::Receiver<Switch>,
    passing: &[Way],
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut whole = true;
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        whole &= passing.contains(&switch.borrow().way);
        if whole && to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
