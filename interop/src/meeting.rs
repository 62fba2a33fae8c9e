//! Both sides at one store: all tests with one kind of lock, recorded in one row.

use crate::arbiter::Arbiter;
use crate::driver::{Driver, Outcome, Program};
use crate::pairs::Run;
use crate::scenes::{self, Kind, LONG};
use crate::store::Store;
use crate::table::{Property, Row};

/// How many processes of each side compete.
pub(crate) const PROCESSES: usize = 3;

/// How often a wake-up is measured.
const ROUNDS: usize = 7;

/// Both sides at one store.
pub(crate) struct Meeting<'a> {
    arbiter: Arbiter,
    rows: &'a mut Vec<Row>,
    engine: &'static str,
    store: &'a Store,
    ours: Vec<Driver>,
    theirs: Vec<Driver>,
    /// How to start another one, to be killed: ours, theirs.
    victims: [Program; 2],
}

/// The tests with one kind of lock.
pub(crate) struct Trial<'a> {
    pub(crate) with: &'static str,
    pub(crate) kinds: &'a [Kind],
    /// How many sections each process of ours and of theirs has.
    pub(crate) sections: (usize, usize),
    pub(crate) woken: Woken,
    pub(crate) killed: bool,
    pub(crate) means: &'a [Meaning],
}

impl Trial<'_> {
    /// Both sides are notified of releases, and both can be killed.
    pub(crate) const TOLD: Trial<'static> = Trial {
        with: "",
        kinds: &[],
        sections: (400, 400),
        woken: Woken::Both,
        killed: true,
        means: &[],
    };
}

/// How waiters learn of a release.
pub(crate) enum Woken {
    /// Each side is notified by the other.
    Both,
    /// Not notified, for this reason.
    Not(&'static str),
}

/// What both sides must interpret alike.
pub(crate) enum Meaning {
    Reentrance,
    ReadWrite,
    Order,
    Revocation,
}

impl<'a> Meeting<'a> {
    pub(crate) fn new(
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

    /// Runs all tests with one kind of lock. The first failure ends it, because drivers may be
    /// stuck.
    pub(crate) fn hold(&mut self, trial: &Trial) -> Outcome {
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
        // Clients that sleep between their attempts only meet the others if these pause as well.
        let pause = if matches!(trial.woken, Woken::Both) { 3 } else { 20 };
        let outcome =
            scenes::exclusion(&self.arbiter, sides, trial.kinds, name, trial.sections, pause);
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
                    // A writer of ours that also reads keeps the write lock until its last guard is
                    // gone.
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

    /// Verifies that ours refuses what cannot be shared: what they hold and what we then request;
    /// and what they cannot get of a semaphore of ours.
    pub(crate) fn refuse(
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

/// Records a result; a failure is returned to the caller too.
pub(crate) fn note(row: &mut Row, property: Property, outcome: Outcome<String>) -> Outcome {
    let failed = outcome.as_ref().err().cloned();
    row.note(property, outcome);
    failed.map_or(Ok(()), Err)
}

/// `ours / theirs`, each with all measurements.
fn sides([ours, theirs]: [Vec<Outcome<String>>; 2]) -> Outcome<String> {
    let join = |times: Vec<_>| Ok(times.into_iter().collect::<Outcome<Vec<_>>>()?.join(", "));
    let (ours, theirs): (Outcome<String>, Outcome<String>) = (join(ours), join(theirs));
    Ok(format!("{} / {}", ours?, theirs?))
}
