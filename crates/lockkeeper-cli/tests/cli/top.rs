//! `top`, by what is on the screen. `script` from util-linux makes the terminal, and `vt100` reads it.

use std::io::Write;
use std::process::{Child, ChildStdin};
use std::sync::{Arc, Mutex};

use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::Signal;

use crate::place::{Place, eventually};
use crate::terminal::on_a_terminal;

/// `top` on a terminal of its own.
struct Screen {
    script: Child,
    keys: ChildStdin,
    terminal: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    fn open(place: &Place, words: &str, rows: u16, cols: u16) -> Self {
        Self::open_with(place, words, rows, cols, &[])
    }

    fn open_with(
        place: &Place,
        words: &str,
        rows: u16,
        cols: u16,
        variables: &[(&str, &str)],
    ) -> Self {
        let program = env!("CARGO_BIN_EXE_lockkeeper");
        let line = format!(
            "stty rows {rows} cols {cols}; {program} top --interval 100ms {words}; echo end $?"
        );
        let terminal = Arc::new(Mutex::new(vt100::Parser::new(rows, cols, 0)));
        let shown = terminal.clone();
        let show = move |bytes: &[u8]| shown.lock().unwrap().process(bytes);
        let variables = [&[("TERM", "xterm-256color")], variables].concat();
        let (script, keys) = on_a_terminal(place, &line, &variables, show);
        Self { script, keys, terminal }
    }

    fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn text(&self) -> String {
        self.terminal.lock().unwrap().screen().contents()
    }

    /// Waits until the screen is as expected, and returns its contents.
    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        eventually(what, || Some(self.text()).filter(|text| is_so(text)))
    }

    #[track_caller]
    fn shows(&self, what: &str) -> String {
        self.until(what, |text| text.contains(what))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the screen:\n{}", self.text());
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

impl Screen {
    /// Whether anything on the screen has a colour.
    fn is_coloured(&self) -> bool {
        let terminal = self.terminal.lock().unwrap();
        let (rows, cols) = terminal.screen().size();
        let cells = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
        let mut cells = cells.filter_map(|(row, col)| terminal.screen().cell(row, col));
        cells.any(|cell| {
            cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default
        })
    }
}

#[test]
fn there_is_no_colour_where_none_is_wanted() {
    let place = Place::new();
    let silent = format!("{} redis://127.0.0.1:1", place.url());
    for (value, coloured) in [("", true), ("1", false)] {
        let screen = Screen::open_with(&place, &silent, 24, 80, &[("NO_COLOR", value)]);
        // The first look may still be under way when the first frame is drawn.
        screen.shows("+?");
        assert_eq!(screen.is_coloured(), coloured, "NO_COLOR={value:?}");
    }
}

#[test]
fn characters_without_a_width_do_not_hide_in_a_name() {
    let place = Place::new();
    let mut job = place.lockkeeper("run --note");
    let mut job = job.args(["not\u{200b}e\u{202e}", "key\u{feff}", "sleep", "60"]).spawn().unwrap();
    place.until("key\u{feff}", 1, 0);
    for words in ["ls", "show key\u{feff}"] {
        let shown = place.run(words).exits(0).stdout;
        assert!(shown.contains("not\\u{200b}e\\u{202e}"), "{shown}");
        assert!(shown.contains("key\\u{feff}"), "{shown}");
    }
    let screen = Screen::open(&place, "", 24, 120);
    screen.shows("key\\u{feff}");
    let waiting = place.lockkeeper("run -w 1 key\u{feff} true").output().unwrap();
    let said = String::from_utf8(waiting.stderr).unwrap();
    assert!(said.contains("not\\u{200b}e\\u{202e}") && !said.contains('\u{feff}'), "{said}");
    job.kill().unwrap();
    job.wait().unwrap();
}

/// A lock with a waiter, and one without.
fn two_locks(place: &Place) -> Vec<crate::place::Running> {
    let first = place.start("run --note nightly backup -- sleep 60");
    place.until("backup", 1, 0);
    let waiter = place.start("run -q --note later backup -- sleep 60");
    place.until("backup", 1, 1);
    let other = place.start("run deploy -- sleep 61");
    place.until("deploy", 1, 0);
    vec![first, waiter, other]
}

#[test]
fn locks_are_shown_at_every_size_and_nothing_is_left_behind() {
    let place = Place::new();
    let _jobs = two_locks(&place);
    for (rows, cols) in [(24, 80), (15, 40), (60, 200)] {
        let mut screen = Screen::open(&place, "", rows, cols);
        let seen =
            screen.until("both locks", |text| text.contains("* backup") && text.contains("deploy"));
        assert!(seen.contains("held 2") && seen.contains("waiting 1"), "{seen}");
        assert!(seen.contains("lost 0/h"), "{seen}");
        for line in seen.lines() {
            assert!(line.chars().count() <= cols.into(), "{line}");
        }
        // Wide enough, it also shows what runs.
        assert_eq!(seen.contains("sh -c sleep 60"), cols == 200, "{seen}");
        assert!(seen.contains("AGE"), "{seen}");
        assert_eq!(seen.contains("LEASE"), cols >= 80, "{seen}");
        screen.keys("?");
        screen.shows("this list");
        screen.keys("?q");
        let after = screen.shows("end 0");
        assert!(!after.contains("backup"), "the screen is as it was before: {after}");
    }
}

#[test]
fn locks_are_sorted_filtered_and_looked_at() {
    let place = Place::new();
    let mut jobs = two_locks(&place);
    let mut screen = Screen::open(&place, "", 24, 80);
    let row = |text: &str, key: &str| text.lines().position(|line| line.contains(key));
    screen.until("trouble first", |text| row(text, "backup") < row(text, "deploy"));
    screen.keys("/dep");
    screen.until("only what was typed", |text| text.contains("deploy") && !text.contains("backup"));
    screen.keys("\r");
    screen.shows("1 of 2");
    screen.keys("\x1b");
    screen.shows("backup");
    // The choice stays where it was.
    screen.keys("k ");
    screen.shows("waits 1");
    screen.keys("\r");
    let detail = screen.shows("note: nightly");
    for part in ["command: sh -c sleep 60", "1 waiting", "note: later", "lease none"] {
        assert!(detail.contains(part), "no {part:?} in {detail}");
    }
    screen.keys("\x1b");
    screen.shows("deploy");
    // What ends goes, what comes appears.
    let deploy = jobs.pop().unwrap();
    deploy.signal(Signal::SIGTERM);
    deploy.end().exits(143);
    screen.until("it is gone", |text| !text.contains("deploy"));
    let _reindex = place.start("run reindex -- sleep 60");
    screen.shows("reindex");
    screen.keys("s");
    screen.shows("s sort: key");
}

#[test]
fn a_holder_is_asked_and_a_lock_is_broken_only_after_a_confirmation() {
    let server = Server::start();
    let place = Place::at(&server.url());
    let polite = place.start("run k -- trap 'exit 3' TERM; while :; do sleep 0.1; done");
    place.until("k", 1, 0);
    let mut screen = Screen::open(&place, &place.url(), 24, 80);
    screen.until("the lock", |text| text.lines().any(|line| line.starts_with("  k ")));
    screen.keys("yn");
    screen.shows("? keys");
    screen.keys("y");
    screen.shows("ask the holder of k to give way? y/n");
    screen.keys("y");
    screen.shows("asked the holder of \"k\" to give way");
    polite.end().exits(3).says("asked to give way");
    let stubborn = place.start("run --ttl 2s k -- sleep 60");
    screen.shows(&format!(" {} ", stubborn.pid()));
    screen.keys("b\r");
    screen.shows("break k because: ");
    screen.keys("gone\r");
    screen.shows("break k? its holder may be at work. y/n");
    screen.keys("n");
    screen.shows("? keys");
    place.until("k", 1, 0);
    screen.keys("b");
    screen.shows("because");
    screen.keys("gone\ry");
    screen.shows("broke \"k\": gone");
    stubborn.end().exits(79);
    screen.keys("q");
    screen.shows("end 0");
}

/// What is typed and what is asked is on the screen, however narrow it is and long the names are.
#[test]
fn a_question_is_about_the_lock_for_which_it_was_asked() {
    let place = Place::new();
    let first = place.start("run a -- sleep 60");
    let second = place.start("run b -- sleep 60");
    place.until("a", 1, 0);
    place.until("b", 1, 0);
    let mut screen = Screen::open(&place, "", 24, 80);
    screen.until("both", |text| text.contains("  a ") && text.contains("  b "));
    screen.keys("k");
    for keys in ["y", "bgone\r"] {
        screen.keys(keys);
        screen.shows("y/n");
        if keys == "y" {
            first.signal(Signal::SIGTERM);
            screen.until("it is gone", |text| text.contains("held 1"));
            screen.shows("ask the holder of a to give way? y/n");
            screen.keys("y");
            screen.shows("nobody holds \"a\" any more");
        } else {
            screen.shows("break b?");
            screen.keys("n");
        }
    }
    // The details of a lock that is gone are not those of another one.
    let third = place.start("run c -- sleep 60");
    screen.until("both", |text| text.contains("  b ") && text.contains("  c "));
    screen.keys("j\r");
    screen.shows("on file:");
    third.signal(Signal::SIGTERM);
    let seen = screen.shows("\"c\" is no longer in the list");
    assert!(seen.contains("KEY"), "the table is back: {seen}");
    first.end().exits(143);
    third.end().exits(143);
    place.until("b", 1, 0);
    second.signal(Signal::SIGTERM);
    second.end().exits(143);
}

#[test]
fn the_details_have_the_last_holders() {
    let place = Place::new();
    let first = place.start("run k -- sleep 60");
    place.until("k", 1, 0);
    let second = place.start("run -q k -- sleep 60");
    place.until("k", 1, 1);
    let mut screen = Screen::open(&place, "", 24, 80);
    screen.shows("* k");
    screen.keys("\r");
    screen.shows("1 waiting");
    place.run("break -y --why stuck k").exits(0);
    let seen = screen.shows("last holders");
    assert!(seen.contains("broken by ") && seen.contains(": stuck"), "{seen}");
    first.end().exits(79);
    second.signal(Signal::SIGTERM);
    second.end().exits(143);
}

#[test]
fn questions_fit_on_a_narrow_screen() {
    let place = Place::new();
    let key = format!("team/{}/nightly", "x".repeat(60));
    let holder = place.start(&format!("run {key} -- sleep 60"));
    place.until(&key, 1, 0);
    let other = format!("{} file://{}", place.url(), place.path("elsewhere").display());
    for (rows, cols) in [(15, 40), (24, 80)] {
        let mut screen = Screen::open(&place, &other, rows, cols);
        screen.shows("team/");
        screen.keys("y");
        screen.shows("? y/n");
        screen.keys("nb");
        screen.shows("because: ▏");
        screen.keys("the host of it is gone for good");
        screen.shows("for good▏");
        screen.keys("\r");
        let asked = screen.shows(" y/n");
        assert!(asked.lines().last().unwrap().starts_with("break team/"), "{asked}");
        screen.keys("nq");
        screen.shows("end 0");
    }
    holder.signal(Signal::SIGTERM);
    holder.end().exits(143);
}

/// Two engines on one host differ in their ports, and what was cut says so.
#[test]
fn engines_are_told_apart_by_their_ports() {
    let (one, two) = (Server::start(), Server::start());
    let key = format!("{}/end", "k".repeat(60));
    let places = [Place::at(&one.url()), Place::at(&two.url())];
    let _holders: Vec<_> = places
        .iter()
        .map(|place| {
            let holder = place.start(&format!("run {key} -- sleep 60"));
            place.until(&key, 1, 0);
            holder
        })
        .collect();
    let screen = Screen::open(&places[0], &format!("{} {}", one.url(), two.url()), 24, 80);
    let seen = screen.until("both ports", |text| {
        [&one, &two].iter().all(|server| text.contains(&format!("{} ", server.port())))
    });
    assert_eq!(seen.matches("…kk").count(), 2, "{seen}");
    assert_eq!(seen.matches("/end").count(), 2, "{seen}");
}

/// Trouble that is found later moves to the top, and with it the choice, until a key is pressed.
#[test]
fn the_first_row_is_chosen_at_the_start() {
    let place = Place::new();
    let _quiet = place.start("run a-quiet-one -- sleep 60");
    place.until("a-quiet-one", 1, 0);
    let mut screen = Screen::open(&place, "", 24, 80);
    screen.shows("a-quiet-one");
    let _busy = place.start("run wanted -- sleep 60");
    place.until("wanted", 1, 0);
    let _waiter = place.start("run -q wanted true");
    screen.shows("* wanted");
    screen.keys("b");
    screen.shows("break wanted because: ");
}

#[test]
fn a_deadlock_is_explained_in_the_details() {
    let place = Place::new();
    let bin = env!("CARGO_BIN_EXE_lockkeeper");
    let hold = |own: &str, other: &str| {
        let script = format!(
            "echo > {own}; until test -s {other}; do sleep 0.1; done; {bin} run -q {other} true"
        );
        place.start(&format!("run {own} -- {script}"))
    };
    let _both = [hold("one", "two"), hold("two", "one")];
    let mut screen = Screen::open(&place, "", 30, 120);
    screen.shows("X one");
    screen.keys("\r");
    let detail = screen.shows("deadlock: ");
    assert!(
        detail.contains(" waits for \"one\" of ") && detail.contains(" waits for \"two\" of "),
        "{detail}"
    );
}

#[test]
fn an_engine_that_does_not_answer_is_shown_and_hostile_names_are_text() {
    let place = Place::new();
    let mut command = place.lockkeeper("run --note");
    command.args(["\x1b[2Jnote", "key<script>", "--", "sleep", "60"]);
    let mut job = command.spawn().unwrap();
    let mut screen = Screen::open(&place, &format!("{} redis://127.0.0.1:1", place.url()), 24, 80);
    screen.shows("key<script>");
    screen.shows("redis: cannot connect to redis://127.0.0.1:1");
    // The cause is not cut off, and what is not known is not counted as none.
    screen.shows("refused");
    screen.shows("held 1+?");
    screen.keys("\r");
    // A lock file has no control characters, and the screen would show none.
    screen.shows("[2Jnote");
    screen.shows("key<script>");
    job.kill().unwrap();
    job.wait().unwrap();
    let refused = place.run("top").exits(64).says("top needs a terminal");
    assert!(refused.stderr.contains("watch"), "{}", refused.stderr);
}
