//! `explain`: what an engine promises and what it does not, in plain sentences.
//!
//! Every sentence about a promise comes from one field of [`Guarantees`], so a new field cannot be
//! forgotten.

use lockkeeper::endpoint::Endpoint;
use lockkeeper::engine::{
    Death, FenceSource, Guarantees, Order, Reentrance, Scope, Support, Survives, Wakeup,
};
use lockkeeper::engines;

use crate::args::{Explain, Where};
use crate::config::Config;
use crate::exit;
use crate::output::print;

pub(crate) fn explain(args: Explain) -> exit::Outcome {
    if args.table {
        return print(&table()).map(|()| 0);
    }
    let endpoint: Endpoint =
        Config::load()?.endpoint(&Where { url: args.url, ..Where::default() })?;
    if args.schema {
        return print(engines::schema(&endpoint)?).map(|()| 0);
    }
    let guarantees = engines::guarantees(&endpoint)?;
    let servers = match guarantees.engine {
        "redis" | "redlock" => ", for Redis and Valkey",
        "mysql" => ", for MariaDB and MySQL",
        // Only behind a pooler do its waiters poll.
        "postgres" if guarantees.wakeup == Wakeup::BackOff => ", behind a transaction-mode pooler",
        _ => "",
    };
    let mut text = format!("{endpoint} is the engine {}{servers}.\n", guarantees.engine);
    for sentence in sentences(&guarantees) {
        text += &format!("- {sentence}\n");
    }
    if let Some(sentence) = deployment(&guarantees) {
        text += &format!("- {sentence}\n");
    }
    print(&text).map(|()| 0)
}

/// What a client finds out about the servers when it connects, and what follows from it.
fn deployment(g: &Guarantees) -> Option<&'static str> {
    Some(match (g.engine, g.death, g.wakeup) {
        ("postgres", Death::Lease, Wakeup::Push) => {
            "It works behind a transaction-mode pooler, which is detected when a client connects; there, \
             waiters poll instead."
        }
        ("postgres", Death::Session, _) => {
            "It is refused behind a transaction-mode pooler, which is detected when a client connects: \
             such a lock lives in a session. strategy=lease works there."
        }
        ("mysql", Death::Lease, _) => {
            "It works through all members of a Galera cluster or a multi-primary group at once."
        }
        ("mysql", Death::Session, _) => {
            "It is refused at members of a Galera cluster or a multi-primary group: the other members \
             know nothing of such locks. strategy=lease works there."
        }
        _ => return None,
    })
}

/// For promises that were added to the library after this command was built.
const NEWER: &str =
    "It promises something that this command does not know yet; see the engine's page.";

/// One or two sentences per field, promises and limits alike.
fn sentences(g: &Guarantees) -> Vec<String> {
    let Guarantees {
        read_write,
        semaphore,
        most_permits,
        order,
        fence,
        death,
        wakeup,
        scope,
        survives,
        reentrance,
        hand_over,
        keep,
        ..
    } = *g;
    let scope = match scope {
        Scope::Process => {
            "It excludes tasks and threads of one process. It does not exclude other processes."
        }
        Scope::Machine => {
            "It excludes processes of one machine. It does not exclude other machines."
        }
        Scope::Network => "It excludes all clients of the same store, on any machine.",
        _ => NEWER,
    };
    let death = match death {
        Death::Lease => {
            "A holder that dies keeps the lock until its lease expires (--ttl). \
             A holder that is paused for longer than that has lost it, and is signalled the loss."
        }
        Death::Session => {
            "A holder that dies keeps the lock until its session expires at the server. \
             A holder that is paused for longer than that has lost it, and is signalled the loss."
        }
        Death::AtOnce => {
            "A holder that dies frees the lock at once. \
             There is no lease: a holder that is paused keeps the lock for as long as it is paused."
        }
        _ => NEWER,
    };
    let survives = match survives {
        Survives::NothingApart => {
            "There is no store apart from what uses it, so none can fail by itself. \
             A reboot frees every lock."
        }
        Survives::None => {
            "It does not survive the store: a lock that a restart or failover forgets may be granted again \
             while the former holder still works. Use the fence."
        }
        Survives::Restart => {
            "Exclusion survives a restart of the store with its data on disk. \
             It does not survive the loss of that data."
        }
        Survives::Minority => {
            "Exclusion survives the loss of any minority of the store's members. \
             Without a majority, no lock is granted."
        }
        _ => NEWER,
    };
    let fence = match fence {
        FenceSource::Counter => {
            "Every grant has a fence from a counter in this process, which restarts with the process."
        }
        FenceSource::Hybrid => {
            "Every grant has a fence: the last one plus one, or the store's clock if that is further. \
             It could go back only if the store forgot its counter and its clock went back too."
        }
        FenceSource::Revision => {
            "Every grant has a fence, the store's own revision number, which never decreases."
        }
        FenceSource::Quorum => "Every grant has a fence from a counter that a majority agrees on.",
        _ => NEWER,
    };
    let order = match order {
        Order::Fifo => "Waiters are served in order of arrival, always.".to_owned(),
        Order::Server => {
            "Waiters are served in the order in which the server queues them.".to_owned()
        }
        Order::Chance(reason) => {
            format!("Waiters are served in no order. --fair is refused: {reason}.")
        }
        _ => NEWER.to_owned(),
    };
    let wakeup = match wakeup {
        Wakeup::Notify => "Waiters are woken inside the process.",
        Wakeup::Kernel => "Waiters sleep in the kernel, which wakes them.",
        Wakeup::Push => "Waiters are notified by the store; they also poll now and then.",
        Wakeup::Server => "Waiters sleep in the server, which wakes them.",
        Wakeup::BackOff => {
            "Waiters poll after a random delay, so a free lock may stay free for a moment."
        }
        _ => NEWER,
    };
    let reentrance = match reentrance {
        Reentrance::Client => {
            "An owner may enter again inside one client; another process with the same owner may not, \
             except under `lockkeeper run --owner`, which recognises the run around it."
        }
        Reentrance::Store => {
            "An owner may re-enter, even from another process that names the same owner."
        }
        _ => NEWER,
    };
    let hand_over = match hand_over {
        Support::Yes => "Tasks of one process hand a lock over among themselves for up to 10 ms, \
                         then the store decides again."
            .to_owned(),
        Support::No(reason) => {
            format!("Tasks of one process do not hand a lock over among themselves: {reason}.")
        }
    };
    let keep = match keep {
        Support::Yes => "A program may keep a released mutex until somebody else wants it \
                         (Lock::keep), and take it again without the store. \
                         If it crashes meanwhile, the lock stays until its lease expires."
            .to_owned(),
        Support::No(reason) => format!("A released lock cannot be kept (Lock::keep): {reason}."),
    };
    vec![
        scope.to_owned(),
        death.to_owned(),
        survives.to_owned(),
        fence.to_owned(),
        "A lock alone does not protect data from a holder that was paused: the resource has to refuse \
         fences lower than one it has seen."
            .to_owned(),
        order,
        wakeup.to_owned(),
        supported("Read and write locks (--shared, --exclusive)", read_write),
        match semaphore {
            Support::Yes => format!(
                "Semaphores (--limit N) are supported; one claim takes at most {most_permits} permits."
            ),
            refused => supported("Semaphores (--limit N)", refused),
        },
        reentrance.to_owned(),
        hand_over,
        keep,
    ]
}

fn supported(what: &str, support: Support) -> String {
    match support {
        Support::Yes => format!("{what} are supported."),
        Support::No(reason) => format!("{what} are refused: {reason}."),
    }
}

/// The README's table.
fn table() -> String {
    let mut text = "\
| engine | URL | excludes | order | read/write | semaphore | re-entrant | fence | dead holder | waits by | exclusion survives |
|---|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for (url, g) in engines::ways() {
        let yes = |support| if support == Support::Yes { "yes" } else { "refused" };
        let cells = [
            g.engine,
            &format!("`{url}`"),
            &g.scope.to_string(),
            &g.order.to_string(),
            yes(g.read_write),
            yes(g.semaphore),
            &g.reentrance.to_string(),
            &g.fence.to_string(),
            &g.death.to_string(),
            &g.wakeup.to_string(),
            &g.survives.to_string(),
        ];
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_explained_with_promises_and_limits() {
        for (url, guarantees) in engines::ways() {
            let text = sentences(&guarantees).join("\n");
            assert!(text.contains("does not"), "{url}: {text}");
            assert_eq!(sentences(&guarantees).len(), 12);
        }
    }

    #[test]
    fn the_table_has_a_row_per_engine() {
        assert_eq!(table().lines().count(), 2 + engines::ways().count());
        let columns = |line: &str| line.matches('|').count();
        let counts: Vec<_> = table().lines().map(columns).collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    }
}
