//! What happens when a part of a run is killed: nothing outlives its lock.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::place::{Place, eventually, is_there, state_of};

/// A command with a child and a grandchild, all in its group, that prints their pids.
const FAMILY: &str = "sh -c 'sleep 600 & echo $! >> pids; echo $$ >> pids; wait' & \
                      echo $$ >> pids; while test $(wc -l < pids) -lt 3; do sleep 0.01; done; \
                      echo >> ready; wait";

fn family(place: &Place) -> Vec<i32> {
    place.content("ready");
    place.content("pids").lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_killed_wrapper_takes_its_whole_group_along_before_the_lock_passes_on() {
    let place = Place::new();
    // The next holder checks every process of the previous one; zombies count as existing.
    let next = "for p in $(cat pids); do kill -0 $p 2>/dev/null && echo overlap $p; done; echo in";
    for _ in 0..30 {
        let wrapper = place.start(&format!("run k -- {FAMILY}"));
        let members = family(&place);
        let waiter = place.start(&format!("run k -- {next}"));
        place.until("k", 1, 1);
        wrapper.signal(Signal::SIGKILL);
        waiter.end().exits(0).prints("in");
        assert!(!members.into_iter().any(is_there));
        for name in ["pids", "ready"] {
            std::fs::remove_file(place.path(name)).unwrap();
        }
    }
}

#[test]
fn the_lock_stays_with_the_guardian_however_late_it_is() {
    // The guardian is reparented to us when its wrapper dies. With init as its parent, its group
    // would be orphaned, and orphaned groups are not left stopped.
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let place = Place::new();
    let wrapper = place.start(&format!("run k -- {FAMILY}"));
    let members = family(&place);
    let guardian = guardian_of(&wrapper.pid().to_string());
    let tell = |signal| kill(Pid::from_raw(guardian), signal).unwrap();
    // The wrapper would continue it.
    wrapper.signal(Signal::SIGSTOP);
    eventually("it stops", || (state_of(wrapper.pid().as_raw()) == Some('T')).then_some(()));
    tell(Signal::SIGSTOP);
    eventually("the guardian stops", || (state_of(guardian) == Some('T')).then_some(()));
    wrapper.signal(Signal::SIGKILL);
    // Nothing can end the family now, so nothing may be granted.
    place.run("run -w 0.3 k true").exits(75);
    assert!(members.iter().copied().all(is_there));
    tell(Signal::SIGCONT);
    place.run("run -w 20 k true").exits(0);
    assert!(!members.into_iter().any(is_there));
}

#[test]
fn a_killed_guardian_takes_the_group_along_too() {
    let place = Place::new();
    let run = place.start(&format!("run k -- {FAMILY}"));
    let members = family(&place);
    let guardian = guardian_of(&run.pid().to_string());
    kill(Pid::from_raw(guardian), Signal::SIGKILL).unwrap();
    run.end().exits(125).says("the guardian was killed");
    assert!(!members.into_iter().any(is_there));
    place.run("run -n k true").exits(0);
}

#[test]
fn a_signal_to_the_guardian_is_the_commands() {
    let place = Place::new();
    let run = place.start(&format!("run k -- {FAMILY}"));
    family(&place);
    let guardian = guardian_of(&run.pid().to_string());
    kill(Pid::from_raw(guardian), Signal::SIGTERM).unwrap();
    run.end().exits(143);
}

#[test]
fn a_run_inside_a_run_is_ended_with_it() {
    let place = Place::new();
    let inner = format!("{} run inner -- sh -c", env!("CARGO_BIN_EXE_lockkeeper"));
    let script = "echo $$ > pids; echo >> ready; sleep 600";
    let outer = place.start(&format!("run outer -- {inner} '{script}'"));
    let members = family(&place);
    let waiter =
        place.start("run outer -- kill -0 $(cat pids) 2>/dev/null && echo overlap; echo in");
    place.until("outer", 1, 1);
    outer.signal(Signal::SIGKILL);
    waiter.end().exits(0).prints("in");
    assert!(!members.into_iter().any(is_there));
    place.run("run -w 10 inner true").exits(0);
}

#[test]
fn a_daemon_that_left_the_group_does_not_keep_the_lock() {
    let place = Place::new();
    let run = place.run("run k -- setsid sleep 600 > /dev/null 2>&1 & echo $!").exits(0);
    let daemon: i32 = run.stdout.trim().parse().unwrap();
    assert!(is_there(daemon));
    place.run("run -n k true").exits(0);
    killpg(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
}

/// The guardian is the wrapper's only child.
fn guardian_of(wrapper: &str) -> i32 {
    eventually("a guardian", || {
        let children = std::fs::read_to_string(format!("/proc/{wrapper}/task/{wrapper}/children"));
        children.ok()?.trim().parse().ok()
    })
}
