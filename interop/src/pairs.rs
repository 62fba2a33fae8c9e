//! Which clients meet, over which store, and what is tried with them.

use std::path::PathBuf;

use crate::arbiter::Arbiter;
use crate::driver::{Driver, Outcome, Program};
use crate::scenes::{self, Kind, LONG, kind};
use crate::store::Store;
use crate::table::{Property, Row};

/// How many processes of each side fight.
const PROCESSES: usize = 3;

/// How often a wake-up is measured.
const ROUNDS: usize = 7;

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

/// Everyone whom our drivers meet, by the name that the command line knows.
pub(crate) const MEETINGS: [(&str, fn(&mut Run) -> Outcome); 8] = [
    ("redisson", redisson),
    ("curator", curator),
    ("kazoo", kazoo),
    ("redis-py", redis_py),
    ("node-redlock", node_redlock),
    ("etcd", etcd),
    ("psql", psql),
    ("cluster", cluster),
];

fn redisson(run: &mut Run) -> Outcome {
    let store = Store::redis();
    let theirs = run.java("RedissonDriver", &store.addresses()[0]);
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
        killed: false,
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
    let store = Store::cluster()?;
    let theirs = run.java("RedissonDriver", &store.addresses().join(","));
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

fn curator(run: &mut Run) -> Outcome {
    let store = Store::zookeeper()?;
    let theirs = run.java("CuratorDriver", &format!("{}/locks", store.addresses()[0]));
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
        killed: false,
        ..Trial::TOLD
    })
}

fn kazoo(run: &mut Run) -> Outcome {
    let store = Store::zookeeper()?;
    let theirs = run.python("kazoo", &format!("{}/locks", store.addresses()[0]));
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
    let theirs = run.python("redis-py", &store.addresses()[0]);
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
    let theirs = run.node(&store.addresses()[0]);
    Meeting::new(run, "Redis, `layout=string`", &store, &url, &theirs)?.hold(&Trial {
        with: "node-redlock over one server",
        kinds: &[kind("mutex")],
        woken: Woken::Not("both ask again"),
        ..Trial::TOLD
    })
}

fn etcd(run: &mut Run) -> Outcome {
    let store = Store::etcd()?;
    let theirs = run.go(&store.addresses()[0]);
    Meeting::new(run, "etcd", &store, &store.url(), &theirs)?.hold(&Trial {
        with: "Go `concurrency.Mutex`",
        kinds: &[kind("mutex")],
        means: &[Meaning::Order],
        ..Trial::TOLD
    })?;
    let theirs = run.python("etcdctl", &store.addresses()[0]);
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
    /// Holds meetings, and notes what happened. One that fails does not keep the others from happening.
    pub(crate) fn meet(&mut self, wanted: &[String]) -> Outcome {
        if let Some(stranger) = wanted.iter().find(|w| !MEETINGS.iter().any(|(name, _)| name == w))
        {
            let known: Vec<_> = MEETINGS.iter().map(|(name, _)| *name).collect();
            return Err(format!("nobody is called {stranger:?}; there are {}", known.join(", ")));
        }
        let mut failed = Vec::new();
        for (name, meeting) in MEETINGS {
            if wanted.is_empty() || wanted.iter().any(|w| w == name) {
                if let Err(problem) = meeting(self) {
                    eprintln!("FAILED: {name}: {problem}");
                    failed.push(name);
                }
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

    fn java(&self, class: &str, address: &str) -> Program {
        let built = self.built("java");
        let path = format!("{built}/classes:{built}/lib/*");
        let light = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"];
        let what = ["-cp", &path, &format!("interop.{class}"), address];
        Program::new(["java"].into_iter().chain(light).chain(what))
    }

    fn python(&self, client: &str, address: &str) -> Program {
        let built = self.built("python");
        let (python, driver) = (format!("{built}/bin/python"), format!("{built}/driver.py"));
        Program::new([&python, &driver, client, address])
    }

    fn node(&self, addresses: &str) -> Program {
        Program::new(["node", &format!("{}/driver.mjs", self.built("node")), addresses])
    }

    fn go(&self, address: &str) -> Program {
        Program::new([&format!("{}/driver", self.built("go")), address])
    }

    fn built(&self, language: &str) -> String {
        self.built.join(language).display().to_string()
    }
}

/// Both sides at one store.
struct Meeting<'a> {
    arbiter: Arbiter,
    rows: &'a mut Vec<Row>,
    engine: &'static str,
    store: &'a Store,
    ours: Vec<Driver>,
    theirs: Vec<Driver>,
    /// How to start another one, to be killed: ours, theirs.
    victims: [Program; 2],
}

/// What is tried with one kind of lock.
struct Trial<'a> {
    with: &'static str,
    kinds: &'a [Kind],
    /// How many sections each process of ours and of theirs has.
    sections: (usize, usize),
    woken: Woken,
    killed: bool,
    means: &'a [Meaning],
}

impl Trial<'_> {
    const TOLD: Trial<'static> = Trial {
        with: "",
        kinds: &[],
        sections: (400, 400),
        woken: Woken::Both,
        killed: true,
        means: &[],
    };
}

/// How those who wait learn of a release.
enum Woken {
    /// Each side is told by the other.
    Both,
    /// Not by being told, for this reason.
    Not(&'static str),
}

enum Meaning {
    Reentrance,
    ReadWrite,
    Order,
    Revocation,
}

impl<'a> Meeting<'a> {
    fn new(
        run: &'a mut Run,
        engine: &'static str,
        store: &'a Store,
        url: &str,
        theirs: &Program,
    ) -> Outcome<Self> {
        let ours = run.ours(url);
        Ok(Self {
            ours: ours.start_many(LONG, PROCESSES)?,
            theirs: theirs.start_many(LONG, PROCESSES)?,
            victims: [ours, theirs.clone()],
            arbiter: run.arbiter.clone(),
            rows: &mut run.rows,
            engine,
            store,
        })
    }

    /// Tries everything with one kind of lock. The first failure ends it, because drivers may be stuck.
    fn hold(&mut self, trial: &Trial) -> Outcome {
        let mut row = Row::new(self.engine, trial.with);
        let name = format!("lock{}", self.rows.len());
        let mut tried = self.exclusion(trial, &name, &mut row);
        if tried.is_ok() {
            tried = self.woken(trial, &name, &mut row);
        }
        if tried.is_ok() && trial.killed {
            tried = self.killed(trial, &name, &mut row);
        }
        if tried.is_ok() && !trial.means.is_empty() {
            tried = self.meaning(trial, &name, &mut row);
        }
        self.rows.push(row);
        tried
    }

    fn exclusion(&mut self, trial: &Trial, name: &str, row: &mut Row) -> Outcome {
        let sides = (&mut self.ours[..], &mut self.theirs[..]);
        let outcome = scenes::exclusion(&self.arbiter, sides, trial.kinds, name, trial.sections);
        note(row, Property::Exclusion, outcome)
    }

    fn woken(&mut self, trial: &Trial, name: &str, row: &mut Row) -> Outcome {
        if let Woken::Not(why) = trial.woken {
            return note(row, Property::Woken, Ok(why.to_owned()));
        }
        let (first, last) = (trial.kinds[0], trial.kinds[trial.kinds.len() - 1]);
        // A reader waits for a writer, and a writer for a reader.
        let turns = [(last, first), (first, last)];
        let turns = &turns[..trial.kinds.len()];
        let mut times = [Vec::new(), Vec::new()];
        for (n, (held, wanted)) in turns.iter().enumerate() {
            let (ours, theirs) = (&mut self.ours[0], &mut self.theirs[0]);
            let for_ours = format!("{name}-ours{n}");
            let waits = scenes::wake(
                self.store,
                (theirs, held.theirs),
                (ours, wanted.ours),
                &for_ours,
                ROUNDS,
            );
            times[0].push(waits.map_err(|e| format!("ours waits: {e}")));
            let (ours, theirs) = (&mut self.ours[0], &mut self.theirs[0]);
            let for_theirs = format!("{name}-theirs{n}");
            let waits = scenes::wake(
                self.store,
                (ours, held.ours),
                (theirs, wanted.theirs),
                &for_theirs,
                ROUNDS,
            );
            times[1].push(waits.map_err(|e| format!("theirs waits: {e}")));
        }
        note(row, Property::Woken, sides(times))
    }

    fn killed(&mut self, trial: &Trial, name: &str, row: &mut Row) -> Outcome {
        let told = matches!(trial.woken, Woken::Both).then_some(self.store);
        let wanted = trial.kinds[trial.kinds.len() - 1];
        let mut times = [Vec::new(), Vec::new()];
        for (n, held) in trial.kinds.iter().enumerate() {
            let victim = (&self.victims[1], held.theirs);
            let heir = (&mut self.ours[0], wanted.ours);
            times[0].push(scenes::death(told, victim, heir, &format!("{name}-heir{n}")));
            let victim = (&self.victims[0], held.ours);
            let heir = (&mut self.theirs[0], wanted.theirs);
            times[1].push(scenes::death(told, victim, heir, &format!("{name}-heirs{n}")));
        }
        note(row, Property::Killed, sides(times))
    }

    fn meaning(&mut self, trial: &Trial, name: &str, row: &mut Row) -> Outcome {
        let mut said = Vec::new();
        for meaning in trial.means {
            let kind = trial.kinds[0];
            let name = format!("{name}-means{}", said.len());
            let (ours, theirs) = (&mut self.ours, &mut self.theirs);
            let (outcome, text) = match meaning {
                Meaning::Reentrance => {
                    let mut try_both = || {
                        let (one, other) = (&mut ours[0], &mut theirs[0]);
                        scenes::reentrance((one, kind.ours), (other, kind.theirs), &name)?;
                        let (one, other) = (&mut ours[0], &mut theirs[0]);
                        scenes::reentrance((other, kind.theirs), (one, kind.ours), &name)
                    };
                    (try_both(), "re-entrance")
                }
                Meaning::ReadWrite => {
                    // A writer of ours who also reads keeps the write lock until its last guard is gone.
                    let (one, other) = (&mut ours[0], &mut theirs[0]);
                    let there = scenes::readers_and_writers(one, other, &name, false);
                    let back =
                        there.and_then(|()| scenes::readers_and_writers(other, one, &name, true));
                    (back, "readers share, writers do not, a writer may read")
                }
                Meaning::Order => (
                    scenes::order(self.store, (ours, theirs), kind, &name),
                    "first come, first served",
                ),
                Meaning::Revocation => {
                    let there = scenes::revocation((&mut ours[0], "mutex"), &mut theirs[0], &name);
                    let back = there.and_then(|()| {
                        scenes::revocation((&mut theirs[0], "revocable"), &mut ours[0], &name)
                    });
                    (back, "revocation")
                }
            };
            if let Err(problem) = outcome {
                return note(row, Property::Meaning, Err(format!("{text}: {problem}")));
            }
            said.push(text);
        }
        note(row, Property::Meaning, Ok(said.join(", ")))
    }

    /// Shows that ours refuses what cannot be shared: what they hold and what we then ask for; and what
    /// they do not get of a semaphore of ours.
    fn refuse(
        &mut self,
        with: &'static str,
        cases: &[(&str, &[&str])],
        denied: &[&str],
        text: &'static str,
    ) -> Outcome {
        let mut row = Row::new(self.engine, with);
        let name = format!("lock{}", self.rows.len());
        let mut tried = Ok(());
        for (held, wanted) in cases {
            let name = format!("{name}-{held}");
            let (ours, theirs) = (&mut self.ours[0], &mut self.theirs[0]);
            tried = tried.and_then(|()| scenes::refusal((theirs, held), (ours, wanted), &name));
        }
        let (ours, theirs) = (&mut self.ours[0], &mut self.theirs[0]);
        let tried = tried.and_then(|()| scenes::denial((ours, "permit"), (theirs, denied), &name));
        let tried = note(&mut row, Property::Exclusion, tried.map(|()| text.to_owned()));
        self.rows.push(row);
        tried
    }
}

/// Writes a result down; a failure is also the caller's.
fn note(row: &mut Row, property: Property, outcome: Outcome<String>) -> Outcome {
    let failed = outcome.as_ref().err().cloned();
    row.note(property, outcome);
    failed.map_or(Ok(()), Err)
}

/// `ours / theirs`, of each everything that was measured.
fn sides([ours, theirs]: [Vec<Outcome<String>>; 2]) -> Outcome<String> {
    let join = |times: Vec<_>| Ok(times.into_iter().collect::<Outcome<Vec<_>>>()?.join(", "));
    let (ours, theirs): (Outcome<String>, Outcome<String>) = (join(ours), join(theirs));
    Ok(format!("{} / {}", ours?, theirs?))
}
