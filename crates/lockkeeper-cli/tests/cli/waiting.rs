//! A wait shows itself: one line that is drawn again on a terminal, a line now and then elsewhere.

use nix::sys::signal::Signal;

use crate::place::{Place, Running};
use crate::terminal::Session;

fn holder(place: &Place) -> Running {
    let holder = place.start("run --note nightly k -- sleep 60");
    place.until("k", 1, 0);
    holder
}

fn end(holder: Running) {
    holder.signal(Signal::SIGTERM);
    holder.end().exits(143);
}

#[test]
fn a_wait_is_told_once_where_nothing_can_be_drawn() {
    let place = Place::new();
    let holder = holder(&place);
    for verb in ["run -w 1.5 k -- true", "acquire -w 1.5 k"] {
        let waited = place.run(verb).exits(75);
        let lines: Vec<_> = waited.stderr.lines().collect();
        let [told, busy] = lines[..] else { panic!("two lines: {lines:?}") };
        assert!(told.starts_with("lockkeeper: waiting for lock \"k\" for 5"), "{told}");
        for part in [" left), 1 of 1 in the queue; held by ", " running \"sh -c sleep 60\" for "] {
            assert!(told.contains(part), "no {part:?} in {told}");
        }
        assert!(told.ends_with(" (nightly)"), "{told}");
        assert!(busy.contains("was still busy after 1s 500ms"), "{busy}");
        assert!(!waited.stderr.contains('\x1b'), "{}", waited.stderr);
    }
    assert_eq!(place.run("run -q -w 1 k -- true").exits(75).stderr, "");
    let quiet = place.run("acquire -q -w 1 k").exits(75);
    assert_eq!(quiet.stderr.lines().count(), 1, "only why it failed: {}", quiet.stderr);
    end(holder);
    // One that is short is not worth a word.
    assert_eq!(place.run("run k -- true").exits(0).stderr, "");
}

#[test]
fn a_wait_is_drawn_on_a_terminal_and_leaves_nothing() {
    let place = Place::new();
    for verb in ["run k -- echo in", "acquire k >/dev/null && echo in", "elect k -- echo in"] {
        let holder = holder(&place);
        let mut session = Session::at(&place);
        session.keys(&format!(
            "stty rows 24 cols 70; export TERM=xterm; lk {verb}; echo $((40 + 2))\n"
        ));
        // As much as fits, so that the next one can be drawn over it.
        session.shows("\rlock \"k\" 1s, 1 of 1; held by ");
        session.shows(" \"sh -c sleep 60\" ");
        end(holder);
        session.shows("\r\x1b[Kin");
        session.shows("42");
        if verb.starts_with("acquire") {
            place.run("break -y --why test k").exits(0);
        }
    }
    let holder = holder(&place);
    // The terminal's own ^C is on the same line, and is removed with it.
    for verb in ["run k -- echo in", "acquire k", "elect k -- echo in"] {
        let mut session = Session::at(&place);
        session.keys(&format!(
            "stty rows 24 cols 30; export TERM=xterm; lk {verb}; echo $((40 + 2))\n"
        ));
        session.shows("\r\"k\"; held by ");
        let end = session.shows("\x1b[K");
        assert!("\"k\"; held by ".len() + end.chars().count() < 30, "{end:?}");
        session.keys("\x03");
        session.shows("^C\r\x1b[K");
    }
    let mut session = Session::at(&place);
    session.keys("stty rows 24 cols 30; export TERM=xterm; lk run -w 2 k -- true; echo code $?\n");
    session.shows("\r\"k\"; held by ");
    session.shows("code 75");
    let mut session = Session::at(&place);
    session.keys("export TERM=xterm; lk run -q -w 1 k -- true; echo code $?\n");
    let seen = session.shows("code 75");
    assert!(!seen.contains("waiting"), "{seen:?}");
    end(holder);
}
