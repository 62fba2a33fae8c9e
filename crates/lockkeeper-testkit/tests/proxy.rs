//! The proxy itself, in front of a server that sends everything twice.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_testkit::proxy::{Proxy, Way};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// Longer than anything takes that happens at all.
const SHORT: Duration = Duration::from_millis(150);

/// An echo, and how many bytes reached it.
async fn echo() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                while let Ok(n @ 1..) = stream.read(&mut buffer).await {
                    count.fetch_add(n, Ordering::SeqCst);
                    if stream.write_all(&buffer[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

async fn start() -> (Proxy, TcpStream, Arc<AtomicUsize>) {
    let (server, seen) = echo().await;
    let proxy = Proxy::start(server).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, "hello").await.unwrap(), "hello");
    assert_eq!(seen.swap(0, Ordering::SeqCst), 5);
    (proxy, stream, seen)
}

async fn ask(stream: &mut TcpStream, what: &str) -> std::io::Result<String> {
    stream.write_all(what.as_bytes()).await?;
    hear(stream, what.len()).await
}

async fn hear(stream: &mut TcpStream, bytes: usize) -> std::io::Result<String> {
    let mut answer = vec![0; bytes];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

async fn wait_until_seen(seen: &AtomicUsize, bytes: usize) {
    while seen.load(Ordering::SeqCst) < bytes {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn latency_is_added_each_way() {
    let (proxy, mut stream, _) = start().await;
    proxy.latency(Duration::from_millis(40));
    let started = Instant::now();
    ask(&mut stream, "slow").await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(80), "{:?}", started.elapsed());
}

#[tokio::test]
async fn held_requests_arrive_late() {
    let (proxy, mut stream, seen) = start().await;
    proxy.hold(Way::ToServer);
    assert!(timeout(SHORT, ask(&mut stream, "late")).await.is_err());
    assert_eq!(seen.load(Ordering::SeqCst), 0, "the server saw what was held back");
    proxy.heal().await;
    assert_eq!(hear(&mut stream, 4).await.unwrap(), "late");
}

#[tokio::test]
async fn held_replies_arrive_late_after_the_effect() {
    let (proxy, mut stream, seen) = start().await;
    proxy.hold(Way::ToClient);
    assert!(timeout(SHORT, ask(&mut stream, "done")).await.is_err());
    wait_until_seen(&seen, 4).await;
    proxy.heal().await;
    assert_eq!(hear(&mut stream, 4).await.unwrap(), "done");
}

#[tokio::test]
async fn a_swallowed_reply_never_comes_and_ends_its_connection_when_healed() {
    let (proxy, mut stream, seen) = start().await;
    proxy.swallow_replies(1);
    assert!(timeout(SHORT, ask(&mut stream, "lost")).await.is_err());
    wait_until_seen(&seen, 4).await;
    // Only one was to be dropped, so others are not affected.
    let mut other = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut other, "fine").await.unwrap(), "fine");
    proxy.heal().await;
    assert_eq!(hear(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(ask(&mut other, "still").await.unwrap(), "still");
}

#[tokio::test]
async fn one_reply_is_swallowed_after_others_and_then_it_is_known_to_be() {
    let (proxy, mut stream, seen) = start().await;
    proxy.swallow_reply_after(2);
    assert_eq!(ask(&mut stream, "one").await.unwrap(), "one");
    assert_eq!(ask(&mut stream, "two").await.unwrap(), "two");
    assert_eq!(proxy.still_to_swallow(), 1);
    stream.write_all(b"three").await.unwrap();
    proxy.swallowed().await;
    assert_eq!((proxy.still_to_swallow(), seen.load(Ordering::SeqCst)), (0, 11));
    let mut other = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut other, "fine").await.unwrap(), "fine");
    proxy.heal().await;
    assert_eq!(hear(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_reset_is_a_reset_and_new_connections_work() {
    let (proxy, mut stream, _) = start().await;
    proxy.reset();
    assert_eq!(hear(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, "again").await.unwrap(), "again");
}

#[tokio::test]
async fn refused_connections_are_refused_and_old_ones_go_on() {
    let (proxy, mut stream, _) = start().await;
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ask(&mut stream, "old").await.unwrap(), "old");
    proxy.heal().await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, "new").await.unwrap(), "new");
}

#[tokio::test]
async fn a_connection_is_cut_after_exactly_so_many_bytes() {
    for (way, seen_by_server, heard) in [(Way::ToServer, 3, None), (Way::ToClient, 8, Some(3))] {
        let (server, seen) = echo().await;
        let proxy = Proxy::start(server).await;
        proxy.cut_after(way, 3);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"12345678").await.unwrap();
        let mut answer = Vec::new();
        let error = stream.read_to_end(&mut answer).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        wait_until_seen(&seen, seen_by_server).await;
        assert_eq!(seen.load(Ordering::SeqCst), seen_by_server);
        assert_eq!(proxy.forwarded(way), 3);
        // A reset may overtake bytes that were not read yet; it never adds any.
        assert!(answer.len() <= heard.unwrap_or(3), "{answer:?}");
    }
}
