//! The blocking API, without async.
//!
//! `cargo run -p lockkeeper --example blocking`

use lockkeeper::blocking::Client;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let client = Client::connect(format!("file://{}/locks", scratch.path().display()))?;

    let guard = client.mutex("report").note("monthly figures").acquire()?;
    println!("held with fence {}", guard.fence());
    if client.mutex("report").try_acquire()?.is_none() {
        println!("nobody else gets it meanwhile");
    }
    for lock in client.list("")? {
        let holder = &lock.holders[0];
        println!(
            "{}: {} ({})",
            lock.key,
            holder.who.as_deref().unwrap_or("?"),
            holder.note.as_deref().unwrap_or("")
        );
    }
    guard.release()?;

    let readers: Vec<_> =
        (0..3).map(|_| client.read("table").acquire()).collect::<Result<_, _>>()?;
    println!(
        "{} readers together, and a writer gets in: {}",
        readers.len(),
        client.write("table").try_acquire()?.is_some()
    );
    Ok(())
}
