//! Application data in Redis, some of which looks like a lock at first sight.

use crate::conformance::Store;

/// Commands, one per `;`, with `KEY` for the name.
const DATA: [&str; 16] = [
    "HSET KEY name bob mode dark",
    "HSET KEY name bob",
    "HSET KEY hits 7",
    "HSET KEY hits 7; PEXPIRE KEY 600000",
    "HSET KEY mode read",
    "HSET KEY mode read; PEXPIRE KEY 600000",
    "HSET KEY mode read pages 7; PEXPIRE KEY 600000",
    "HSET KEY mode write pages:write 7; PEXPIRE KEY 600000",
    "HSET KEY mode semaphore limit 3 taken 1; PEXPIRE KEY 600000",
    "HSET KEY 0d1c0000-0000-4000-8000-000000000000:57 1",
    "HSET KEY 0d1c0000-0000-4000-8000-000000000000:57 1 hits 7; PEXPIRE KEY 600000",
    "HSET KEY 0d1c0000-0000-4000-8000-000000000000:57 open; PEXPIRE KEY 600000",
    "RPUSH KEY a",
    "SADD KEY a",
    "ZADD KEY 1 a",
    "XADD KEY 1-1 a b",
];

/// Strings, which are no locks unless `layout=string` says that they may be.
const STRINGS: [&str; 2] = ["SET KEY text", "SET KEY text PX 600000"];

/// Adds the data to a store, at names that start with `prefix`. `ask` sends a command to every server.
pub fn with_data(
    mut store: Store,
    prefix: &str,
    strings: bool,
    ask: impl Fn(&[&str]) -> String + Clone + Send + Sync + 'static,
) -> Store {
    let all = DATA.into_iter().chain(STRINGS.into_iter().filter(|_| strings));
    for commands in all {
        let (planting, looking) = (ask.clone(), ask.clone());
        let (here, there) = (prefix.to_owned(), prefix.to_owned());
        store = store.data(
            commands,
            move |key| {
                let name = format!("{here}{key}");
                for command in commands.split("; ") {
                    let words: Vec<_> =
                        command.split(' ').map(|w| if w == "KEY" { &name } else { w }).collect();
                    planting(&words);
                }
                std::future::ready(())
            },
            move |key| {
                let name = format!("{there}{key}");
                let lasting = looking(&["PTTL", &name]).lines().map(lasting).collect::<String>();
                std::future::ready(looking(&["DUMP", &name]) + &lasting)
            },
        );
    }
    store
}

/// Whether a key expires, and whether its expiry was changed.
fn lasting(left: &str) -> &'static str {
    match left.trim().parse::<i64>() {
        Ok(-1) => " never ends",
        Ok(500_000..=600_000) => " ends in ten minutes",
        _ => " ends soon",
    }
}
