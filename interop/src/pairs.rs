//! Which clients meet, over which store, and with which tests.

use std::path::PathBuf;

use lockkeeper_testkit::server::redis::Sentinels;

use crate::arbiter::Arbiter;
use crate::driver::{Outcome, Program};
use crate::failovers::failovers;
use crate::meeting::{Meaning, Meeting, PROCESSES, Trial, Woken, note};
use crate::scenes::kind;
use crate::store::Store;
use crate::table::{Property, Row};

/// One run over any of the pairs.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) arbiter: Arbiter,
    /// Where the foreign drivers were built.
    pub(crate) built: PathBuf,
    /// Whether our releases are careless, to see the run fail.
    pub(crate) broken: bool,
    pub(crate) rows: Vec<Row>,
}

/// A meeting, by its name on the command line.
type Named = (&'static str, fn(&mut Run) -> Outcome);

/// All clients that our drivers meet.
const MEETINGS: [Named; 10] = [
    ("redisson", redisson),
    ("curator", curator),
    ("kazoo", kazoo),
    ("redis-py", redis_py),
    ("node-redlock", node_redlock),
    ("redlock", redlock),
    ("etcd", etcd),
    ("psql", psql),
    ("cluster", cluster),
    ("sentinel", sentinel),
];

fn redisson(run: &mut Run) -> Outcome {
    let store = Store::redis();
    let theirs = run.java("RedissonDriver", &store.hosts());
    let mut meeting = Meeting::new(run, "Redis", &store, &store.url(), &theirs)?;
    meeting.hold(&Trial {
        with: "Redisson `RLock`",
        kinds: &[kind("mutex")],
        means: &[Meaning::Reentrance],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Redisson `RFairLock`",
        kinds: &[kind("fair")],
        means: &[Meaning::Reentrance, Meaning::Order],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Redisson `RReadWriteLock`",
        kinds: &[kind("read"), kind("write")],
        means: &[Meaning::ReadWrite],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Redisson `RSpinLock`",
        kinds: &[kind("spin")],
        woken: Woken::Not("both ask again, up to every 0.1 s; its release tells nobody"),
        means: &[Meaning::Reentrance],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Redisson `RMultiLock` of two `RLock`s, our `Multi`",
        kinds: &[kind("multi")],
        woken: Woken::Not("as `RLock`"),
        ..Trial::TOLD
    })?;
    meeting.refuse(
        "Redisson `RSemaphore`, `RPermitExpirableSemaphore`",
        &[("semaphore", &["permit", "mutex"]), ("expirable", &["permit", "mutex"])],
        &["semaphore", "expirable", "mutex"],
        "not shared: ours has a layout of its own, and refuses theirs as a conflict; theirs gets nothing from ours",
    )?;
    meeting.refuse(
        "Redisson `RLock` and `RReadWriteLock` of one name",
        &[("mutex", &["read", "write"]), ("write", &["mutex"])],
        &[],
        "not shared: Redisson lets both in, ours refuses as a conflict",
    )?;
    drop(meeting);
    let url = format!("{}?fence=redisson", store.url());
    Meeting::new(run, "Redis", &store, &url, &theirs)?.hold(&Trial {
        with: "Redisson `RFencedLock`, ours with `fence=redisson`",
        kinds: &[kind("fenced")],
        means: &[Meaning::Reentrance],
        ..Trial::TOLD
    })
}

fn cluster(run: &mut Run) -> Outcome {
    let store = Store::cluster();
    let theirs = run.java("RedissonDriver", &store.hosts());
    let mut meeting = Meeting::new(run, "Redis Cluster", &store, &store.url(), &theirs)?;
    meeting.hold(&Trial {
        with: "Redisson `RLock`, cluster mode",
        kinds: &[kind("mutex")],
        means: &[Meaning::Reentrance],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Redisson `RReadWriteLock`, cluster mode",
        kinds: &[kind("read"), kind("write")],
        means: &[Meaning::ReadWrite],
        ..Trial::TOLD
    })
}

fn sentinel(run: &mut Run) -> Outcome {
    let servers = Sentinels::start();
    let (ours, theirs) = (run.ours(&servers.url()), run.java("RedissonDriver", &servers.url()));
    let mut row = Row::new("Redis, Sentinel", "Redisson `RLock`, sentinel mode");
    let seen = failovers(&servers, (&ours, &theirs), PROCESSES);
    let tried = note(&mut row, Property::Exclusion, seen);
    run.rows.push(row);
    tried
}

fn curator(run: &mut Run) -> Outcome {
    let store = Store::zookeeper()?;
    let theirs = run.java("CuratorDriver", &format!("{}/locks", store.hosts()));
    let mut meeting = Meeting::new(run, "ZooKeeper", &store, &store.url(), &theirs)?;
    meeting.hold(&Trial {
        with: "Curator `InterProcessMutex`",
        kinds: &[kind("mutex")],
        means: &[Meaning::Reentrance, Meaning::Order, Meaning::Revocation],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Curator `InterProcessReadWriteLock`",
        kinds: &[kind("read"), kind("write")],
        means: &[Meaning::ReadWrite],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Curator `InterProcessSemaphoreV2` of three, our semaphore of three",
        kinds: &[kind("permit")],
        woken: Woken::Not("as the semaphore of one"),
        killed: false,
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Curator `InterProcessSemaphoreMutex`, our semaphore of one",
        kinds: &[kind("semaphoremutex")],
        ..Trial::TOLD
    })?;
    meeting.hold(&Trial {
        with: "Curator `InterProcessMultiLock` of two, our `Multi`",
        kinds: &[kind("multi")],
        woken: Woken::Not("as `InterProcessMutex`"),
        ..Trial::TOLD
    })
}

fn kazoo(run: &mut Run) -> Outcome {
    let store = Store::zookeeper()?;
    let theirs = run.python("kazoo", &format!("{}/locks", store.hosts()));
    Meeting::new(run, "ZooKeeper", &store, &store.url(), &theirs)?.hold(&Trial {
        with: "kazoo `Lock` with `extra_lock_patterns=[\"-lock-\"]`",
        kinds: &[kind("mutex")],
        means: &[Meaning::Order],
        ..Trial::TOLD
    })
}

fn redis_py(run: &mut Run) -> Outcome {
    let store = Store::redis();
    let url = format!("{}?layout=string", store.url());
    let theirs = run.python("redis-py", &store.hosts());
    Meeting::new(run, "Redis, `layout=string`", &store, &url, &theirs)?.hold(&Trial {
        with: "redis-py `Lock`",
        kinds: &[kind("mutex")],
        woken: Woken::Not("both ask again"),
        ..Trial::TOLD
    })
}

fn node_redlock(run: &mut Run) -> Outcome {
    let store = Store::redis();
    let url = format!("{}?layout=string", store.url());
    let theirs = run.node(&store.hosts());
    Meeting::new(run, "Redis, `layout=string`", &store, &url, &theirs)?.hold(&Trial {
        with: "node-redlock over one server",
        kinds: &[kind("mutex")],
        woken: Woken::Not("both ask again"),
        ..Trial::TOLD
    })
}

fn redlock(run: &mut Run) -> Outcome {
    let store = Store::redlock();
    let theirs = run.node(&store.hosts());
    Meeting::new(run, "Redlock, five servers", &store, &store.url(), &theirs)?.hold(&Trial {
        with: "node-redlock over the same five, `retryCount: 0` in a loop",
        kinds: &[kind("mutex")],
        // Every section is a vote of five servers, and another one if votes were split.
        sections: (340, 340),
        woken: Woken::Not("both ask again"),
        ..Trial::TOLD
    })
}

fn etcd(run: &mut Run) -> Outcome {
    let store = Store::etcd()?;
    let theirs = run.go("concurrency", &store.hosts());
    Meeting::new(run, "etcd", &store, &store.url(), &theirs)?.hold(&Trial {
        with: "Go `concurrency.Mutex`",
        kinds: &[kind("mutex")],
        means: &[Meaning::Order],
        ..Trial::TOLD
    })?;
    let theirs = run.python("etcdctl", &store.hosts());
    Meeting::new(run, "etcd", &store, &store.url(), &theirs)?.hold(&Trial {
        with: "`etcdctl lock`",
        kinds: &[kind("mutex")],
        // Every lock is a process.
        sections: (650, 50),
        means: &[Meaning::Order],
        ..Trial::TOLD
    })
}

fn psql(run: &mut Run) -> Outcome {
    let store = Store::postgres()?;
    let url = store.url();
    let plain = url.split('?').next().unwrap_or_default();
    let theirs = run.python("psql", plain);
    Meeting::new(run, "PostgreSQL, `strategy=advisory`", &store, &url, &theirs)?.hold(&Trial {
        with: "psql, `pg_advisory_lock(lockkeeper_id(…))`",
        kinds: &[kind("mutex")],
        ..Trial::TOLD
    })
}

impl Run {
    /// Runs meetings, and records the results. A failure does not prevent the others from running.
    pub(crate) fn meet(&mut self, wanted: &[String]) -> Outcome {
        if let Some(stranger) = wanted.iter().find(|w| !MEETINGS.iter().any(|(name, _)| name == w))
        {
            let known: Vec<_> = MEETINGS.iter().map(|(name, _)| *name).collect();
            return Err(format!("nobody is called {stranger:?}; there are {}", known.join(", ")));
        }
        let mut failed = Vec::new();
        for (name, meeting) in MEETINGS {
            let is_wanted = wanted.is_empty() || wanted.iter().any(|w| w == name);
            if is_wanted && let Err(problem) = meeting(self) {
                eprintln!("FAILED: {name}: {problem}");
                failed.push(name);
            }
        }
        match failed.is_empty() && self.rows.iter().all(Row::passed) {
            true => Ok(()),
            false => Err(format!("not everything passed; {} ended early", failed.join(", "))),
        }
    }

    /// Our own driver.
    pub(crate) fn ours(&self, url: &str) -> Program {
        let me = std::env::current_exe().expect("a program knows its file");
        let drive = if self.broken { "drive-broken" } else { "drive" };
        Program::new([&me.display().to_string(), drive, url])
    }

    pub(crate) fn java(&self, class: &str, address: &str) -> Program {
        let built = self.built("java");
        let path = format!("{built}/classes:{built}/lib/*");
        let light = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"];
        let what = ["-cp", &path, &format!("interop.{class}"), address];
        Program::new(["java"].into_iter().chain(light).chain(what))
    }

    pub(crate) fn python(&self, client: &str, address: &str) -> Program {
        let built = self.built("python");
        let (python, driver) = (format!("{built}/bin/python"), format!("{built}/driver.py"));
        Program::new([&python, &driver, client, address])
    }

    pub(crate) fn node(&self, addresses: &str) -> Program {
        Program::new(["node", &format!("{}/driver.mjs", self.built("node")), addresses])
    }

    pub(crate) fn go(&self, library: &str, address: &str) -> Program {
        Program::new([&format!("{}/driver", self.built("go")), library, address])
    }

    pub(crate) fn rust(&self, addresses: &str) -> Program {
        Program::new([&format!("{}/debug/driver", self.built("rust")), addresses])
    }

    fn built(&self, language: &str) -> String {
        self.built.join(language).display().to_string()
    }
}
