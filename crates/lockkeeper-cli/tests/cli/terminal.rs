//! The terminal: the command can read from it, Ctrl-C ends it, Ctrl-Z stops it, and the shell gets
//! its terminal back. `script` from util-linux makes a terminal for each test.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use lockkeeper_testkit::server::redis::Server;

use crate::place::{Place, eventually};

/// A user at a shell.
pub(crate) struct Session {
    script: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<String>>,
}

/// Starts a command on a terminal of its own, in the environment of a place. Returns its keyboard, and
/// passes what it prints to `show`.
pub(crate) fn on_a_terminal(
    place: &Place,
    line: &str,
    environment: &[(&str, &str)],
    mut show: impl FnMut(&[u8]) + Send + 'static,
) -> (Child, ChildStdin) {
    let settings = place.lockkeeper("");
    let mut command = Command::new("script");
    command.args(["-qefc", line, "/dev/null"]).current_dir(place.path(""));
    for (name, value) in settings.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut script = command
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("this test needs `script`, from the Debian package bsdutils");
    let keys = script.stdin.take().unwrap();
    let mut output = script.stdout.take().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = output.read(&mut bytes) {
            show(&bytes[..n]);
        }
    });
    (script, keys)
}

impl Session {
    pub(crate) fn at(place: &Place) -> Self {
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = screen.clone();
        let show = move |bytes: &[u8]| {
            shown.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        };
        let environment = [("PS1", "$ "), ("TERM", "dumb")];
        let (script, keys) = on_a_terminal(place, "bash --norc --noprofile -i", &environment, show);
        let mut session = Self { script, keys, screen };
        session.keys(&format!("lk() {{ {} \"$@\"; }}\n", env!("CARGO_BIN_EXE_lockkeeper")));
        session
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until the screen shows something new, and returns what came before it.
    #[track_caller]
    pub(crate) fn shows(&self, what: &str) -> String {
        eventually(what, || {
            let mut screen = self.screen.lock().unwrap();
            let at = screen.find(what)?;
            let before = screen[..at].to_owned();
            *screen = screen[at + what.len()..].to_owned();
            Some(before)
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the screen: {:?}", self.screen.lock().unwrap());
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

#[test]
fn the_command_reads_from_the_terminal() {
    let place = Place::new();
    let mut session = Session::at(&place);
    for n in 0..5 {
        session.keys("lk run k -- sh -c 'echo re''ady; read x; echo got \"<$x>\"'\n");
        session.shows("ready");
        session.keys(&format!("hello {n}\n"));
        session.shows(&format!("got <hello {n}>"));
    }
    // The shell has its terminal back.
    session.keys("echo $((40 + 2))\n");
    session.shows("42");
}

/// A script has no job control: what it starts in the background is in its own group.
#[test]
fn a_run_in_the_background_of_a_script_leaves_the_terminal_to_the_script() {
    let place = Place::new();
    let mut session = Session::at(&place);
    let script = "$BIN run k -- sh -c 'echo > in; exec sleep 600' & until test -s in; do :; done; \
                  echo re''ady; read x; echo \"got <$x>\"; kill %1; wait";
    std::fs::write(place.path("script"), script).unwrap();
    session.keys(&format!("export BIN={}\nbash script\n", env!("CARGO_BIN_EXE_lockkeeper")));
    session.shows("ready");
    session.keys("hello\n");
    session.shows("got <hello>");
}

#[test]
fn ctrl_c_ends_the_command_and_the_line_around_it() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk run k -- sh -c 'echo $$ > pid; exec sleep 600'\n");
    until_asleep(&place);
    session.keys("\x03");
    session.keys("echo code $?\n");
    session.shows("code 130");
    // A script that was interrupted does not go on with the next line.
    std::fs::remove_file(place.path("pid")).unwrap();
    session
        .keys("lk() { bash -c \"$BIN run k -- sh -c 'echo \\$\\$ > pid; exec sleep 600'; echo went on\"; }\n");
    session.keys(&format!("export BIN={}\nlk\n", env!("CARGO_BIN_EXE_lockkeeper")));
    until_asleep(&place);
    session.keys("\x03");
    session.keys("echo then $?\n");
    session.shows("then 130");
    place.run("run -w 10 k true").exits(0);
}

/// A shell may miss a Ctrl-C while it starts something; what it has started does not.
fn until_asleep(place: &Place) {
    let pid = place.content("pid");
    eventually("the command sleeps", || {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.trim())).ok()?;
        (name == "sleep\n").then_some(())
    });
}

#[test]
fn ctrl_z_stops_the_job_and_fg_resumes_it() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk run k -- sh -c 'echo > started; read x; echo got \"<$x>\"'\n");
    place.content("started");
    for _ in 0..3 {
        session.keys("\x1a");
        session.shows("Stopped");
        // Still held, and the shell can be used.
        session.keys("lk run -n k true; echo code $?\n");
        session.shows("code 75");
        session.keys("fg\n");
        session.shows("\"$@\"");
    }
    session.keys("again\n");
    session.shows("got <again>");
    session.keys("echo code $?\n");
    session.shows("code 0");
}

#[test]
fn a_background_job_that_wants_the_terminal_stops_until_it_is_in_the_foreground() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk run k -- sh -c 'echo > started; read x; echo got \"<$x>\"' &\n");
    place.content("started");
    session.keys("\n");
    eventually("the job stops", || {
        session.keys("jobs\n");
        std::thread::sleep(std::time::Duration::from_millis(20));
        session.screen.lock().unwrap().contains("Stopped").then_some(())
    });
    session.keys("fg\n");
    session.shows("fg");
    session.keys("now\n");
    session.shows("got <now>");
}

#[test]
fn an_interactive_shell_can_be_the_command() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk run k -- bash --norc --noprofile -i\n");
    place.until("k", 1, 0);
    session.keys("echo in''side; sleep 0.1; jobs; exit 3\n");
    session.shows("inside");
    session.keys("echo code $?\n");
    session.shows("code 3");
}

#[test]
fn break_asks_first() {
    let place = Place::new();
    let mut holder = place.start("run --ttl 300ms k -- sleep 600");
    place.until("k", 1, 0);
    let mut session = Session::at(&place);
    session.keys("lk break k --why test\n");
    session.shows("break lock \"k\"?");
    session.keys("n\n");
    session.shows("nothing was broken");
    assert!(holder.is_running());
    session.keys("lk break k --why test\n");
    session.shows("break lock \"k\"?");
    session.keys("y\n");
    session.shows("was held by");
    holder.end().exits(79);
}

#[test]
fn a_password_is_asked_for_and_not_shown() {
    let server = Server::start();
    assert_eq!(server.ask(&["CONFIG", "SET", "requirepass", "canary"]), "OK");
    let place = Place::at(&server.url());
    let mut session = Session::at(&place);
    session.keys("lk run --ask-password k -- sh -c 'echo fen''ce $LOCKKEEPER_FENCE'\n");
    session.shows("password for redis://127.0.0.1");
    session.keys("canary\n");
    let shown = eventually("the command ran", || {
        let shown = session.screen.lock().unwrap().clone();
        shown.contains("fence 1").then_some(shown)
    });
    assert!(!shown.contains("canary"), "{shown}");
    session.keys("lk show --ask-password k\n");
    session.shows("password for redis://127.0.0.1");
    session.keys("can\x03");
    session.keys("echo code $?\n");
    session.shows("code 130");
}

#[test]
fn watch_redraws_until_ctrl_c() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk watch --interval 20ms\n");
    session.shows("no locks in use");
    let _holder = place.start("run k -- sleep 600");
    session.shows("\x1b[2JKEY");
    session.keys("\x03");
    session.keys("echo code $?\n");
    session.shows("code 130");
}
