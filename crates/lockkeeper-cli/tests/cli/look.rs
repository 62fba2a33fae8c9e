//! `ls`, `show`, `watch`, `break`, `explain`, `doctor`, `bench`, `elect`.

use std::io::{BufRead, BufReader};

use lockkeeper_testkit::server::redis::Server;
use nix::sys::signal::Signal;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::place::{Place, eventually};
use crate::terminal::Session;

#[test]
fn show_and_ls_tell_holders_and_waiters_in_order() {
    let place = Place::new();
    place.run("show k").exits(1).prints("nobody holds it");
    place.run("show --json k").exits(1);
    place.run("ls").exits(0).says("no locks in use").prints("");
    let _holder = place.start("run --note nightly k -- sleep 60");
    place.until("k", 1, 0);
    let _waiter = place.start("run k true");
    place.until("k", 1, 1);
    let _other = place.start("run other -- sleep 60");
    place.until("other", 1, 0);
    let shown = place.run("show k").exits(0).stdout;
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[0].starts_with("KEY  STATE    MODE") && lines[0].ends_with("NOTE"), "{shown}");
    assert!(lines[1].contains("held") && lines[1].ends_with("nightly"), "{shown}");
    assert!(lines[2].contains("waits 1"), "{shown}");
    assert_eq!(place.run("ls").exits(0).stdout.lines().count(), 4);
    assert_eq!(place.run("ls oth").exits(0).stdout.lines().count(), 2);
    let listed: Value = serde_json::from_str(&place.run("ls --json").exits(0).stdout).unwrap();
    assert_eq!(listed[0]["key"], "k");
    assert_eq!(listed[0]["holders"][0]["note"], "nightly");
    // The whole identity would be enough to re-enter.
    assert_eq!(listed[0]["holders"][0]["identity"].as_str().unwrap().len(), 8);
}

#[test]
fn a_hostile_note_cannot_move_the_cursor() {
    let place = Place::new();
    let mut command = place.lockkeeper("run k --note");
    let mut holder = command.args(["\x1b[2Jgone", "--", "sleep", "60"]).spawn().unwrap();
    place.until("k", 1, 0);
    let shown = place.run("show k").exits(0).stdout;
    assert!(shown.contains("[2Jgone") && !shown.contains('\x1b'), "{shown}");
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn an_applications_data_is_no_lock() {
    let (place, server) = (Place::new(), Server::start());
    let url = server.url();
    server.ask(&["HSET", "user:1", "name", "bob", "mode", "dark"]);
    let found = "a hash is there that is no lock";
    place.run(&format!("run --url {url} -n user:1 true")).exits(64).says(found);
    place.run(&format!("show --url {url} user:1")).exits(64).says(found);
    place.run(&format!("break --url {url} user:1 --why x --yes")).exits(64).says(found);
    place.run(&format!("ls --url {url}")).exits(0).says("no locks in use");
    assert_eq!(server.ask(&["HGET", "user:1", "name"]), "bob");
}

#[test]
fn watch_prints_a_line_per_change() {
    let place = Place::new();
    let mut command = place.lockkeeper("watch --json --interval 20ms");
    let mut watch = command.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let holder = place.start("run k -- sleep 60");
    // A holder that did not start fails here, instead of being waited for in vain below.
    place.until("k", 1, 0);
    let held = next();
    assert_eq!((&held["key"], held["holders"].as_array().unwrap().len()), (&"k".into(), 1));
    assert!(held["time"].as_str().unwrap().ends_with('Z'), "{held}");
    holder.signal(Signal::SIGTERM);
    holder.end().exits(143);
    assert_eq!(next()["holders"].as_array().unwrap().len(), 0);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn break_prints_the_former_holders_and_the_fence_still_rises() {
    let place = Place::new();
    place.run("break k --yes --why test").exits(0).says("nobody held");
    let holder = place.start("run --ttl 300ms k -- echo $LOCKKEEPER_FENCE > fence; sleep 60");
    let before: u64 = place.content("fence").trim().parse().unwrap();
    place.run("break k --why test").exits(64).says("say --yes");
    let broken = place.run("break k --yes --why test").exits(0).stdout;
    assert!(
        broken.contains("was held by") && broken.contains(&holder.pid().to_string()),
        "{broken}"
    );
    let after = place.run("run k -- echo $LOCKKEEPER_FENCE").exits(0).stdout;
    assert!(after.trim().parse::<u64>().unwrap() > before);
    holder.end().exits(79);
}

#[test]
fn broken_locks_are_listed_with_who_broke_them_and_why() {
    let place = Place::new();
    place.run("ls --broken").exits(0).says("no lock was broken");
    assert_eq!(place.run("ls --broken --json").exits(0).stdout, "[]\n");
    for (key, why) in [("team/a", "stuck"), ("b", "host \u{1b}[2J gone")] {
        let holder = place.start(&format!("run --ttl 300ms {key} -- sleep 60"));
        place.until(key, 1, 0);
        let mut breaking = place.lockkeeper(&format!("break {key} --yes --why"));
        assert!(breaking.arg(why).status().unwrap().success());
        let pid = holder.pid().to_string();
        holder.end().exits(79);
        let listed = place.run("ls --broken --json").exits(0).stdout;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed[0]["key"], key);
        let holder = &listed[0]["holders"][0];
        assert!(holder["who"].as_str().unwrap().ends_with(&format!(" {pid}")), "{holder}");
        assert!(holder["fence"].is_u64() && holder["command"].is_string(), "{holder}");
        assert!(listed[0]["command"].as_str().unwrap().contains("break"), "{listed}");
    }
    let table = place.run("ls --broken").exits(0).stdout;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[1].starts_with("b ") && lines[1].contains("host [2J gone"), "{table}");
    assert!(lines[2].starts_with("team/a") && lines[2].contains("stuck"), "{table}");
    assert_eq!(place.run("ls --broken team/").exits(0).stdout.lines().count(), 2);
    place.run("ls").exits(0).says("no locks in use");
}

#[test]
fn explain_prints_what_is_not_promised() {
    let place = Place::new();
    let file = place.run("explain file:").exits(0).stdout;
    assert!(file.contains("It does not exclude other machines."), "{file}");
    assert!(file.contains("There is no lease"), "{file}");
    assert_eq!(
        place.run("explain").exits(0).stdout.lines().skip(1).collect::<Vec<_>>(),
        file.lines().skip(1).collect::<Vec<_>>()
    );
    let table = place.run("explain --table").exits(0).stdout;
    assert!(table.contains("| file | `file:` | one machine |"), "{table}");
    place.run("explain gopher:").exits(64).says("the schemes are: file, memory");
}

#[test]
fn explain_names_the_servers_and_the_pooler() {
    let place = Place::new();
    for (url, what) in [
        ("valkey://h", "is the engine redis, for Redis and Valkey."),
        ("valkeys://h", "is the engine redis, for Redis and Valkey."),
        ("mysql://h/db", "is the engine mysql, for MariaDB and MySQL."),
        ("postgres://h/db", "is the engine postgres.\n"),
        ("postgres://h/db?pooler=transaction", "postgres, behind a transaction-mode pooler.\n"),
        ("postgres://h/db?pooler=transaction", "- Waiters poll"),
        ("postgres://h/db", "- It works behind a transaction-mode pooler, which is detected"),
        ("postgres://h/db?strategy=row", "- It is refused behind a transaction-mode pooler"),
        ("postgres://h/db?strategy=advisory", "- It is refused behind a transaction-mode pooler"),
        ("mysql://h/db", "- It works through all members of a Galera cluster"),
        ("mysql://h/db?strategy=named", "- It is refused at members of a Galera cluster"),
        ("mysql://h/db?strategy=row", "- It is refused at members of a Galera cluster"),
    ] {
        let told = place.run(&format!("explain {url}")).exits(0).stdout;
        assert!(told.contains(what), "{told}");
    }
    let refused = place.run("explain postgres://h/db?pooler=transaction&strategy=row");
    refused.exits(64).says("needs strategy=lease");
}

#[test]
fn explain_prints_what_an_administrator_has_to_run() {
    let place = Place::new();
    let postgres = place.run("explain --schema postgres:").exits(0).stdout;
    assert_eq!(postgres, lockkeeper::engines::postgres::SCHEMA);
    let mysql = place.run("explain --schema mysql://me:canary@host/db").exits(0).stdout;
    assert_eq!(mysql, lockkeeper::engines::mysql::SCHEMA);
    place.run("explain --schema").exits(64).says("file: needs no tables").says("mysql:, postgres:");
}

#[test]
fn doctor_looks_at_the_directory() {
    let place = Place::new();
    place.run("doctor").exits(0);
    let told: Value = serde_json::from_str(&place.run("doctor --json").exits(0).stdout).unwrap();
    assert_eq!(told["findings"][0]["severity"], "fine");
    std::fs::write(place.path("file"), "").unwrap();
    let url = format!("file://{}", place.path("file/locks").display());
    place.run(&format!("doctor {url}")).exits(69).says("file: cannot");
}

#[test]
fn bench_measures_against_the_floor() {
    let place = Place::new();
    for url in [place.url(), "memory:".to_owned()] {
        let told =
            place.run(&format!("bench {url} --seconds 0.5 --processes 3 --json")).exits(0).stdout;
        let told: Value = serde_json::from_str(&told).unwrap();
        for figure in [
            "cycle",
            "cycle_dropped",
            "cycle_floor",
            "hand_off",
            "handed_over",
            "through_the_store",
        ] {
            assert!(told[figure]["p50"].as_f64().unwrap() > 0.0, "{url} {figure}: {told}");
        }
        let fairness = told["fairness"].as_f64().unwrap();
        assert!(fairness > 1.0 / 3.0 && fairness <= 1.0, "{told}");
    }
    assert!(place.run("bench --seconds 0.5").exits(0).stdout.contains("floor: flock on one file"));
}

#[test]
fn bench_of_a_redis_server_counts_its_commands() {
    let (place, server) = (Place::new(), Server::start());
    let told = place.run(&format!("bench {} --seconds 0.5 --json", server.url())).exits(0).stdout;
    let told: Value = serde_json::from_str(&told).unwrap();
    let redis = &told["redis"];
    for figure in ["ping", "naive", "same", "released", "dropped", "hand_off_two_processes"] {
        assert!(redis[figure]["p50"].as_f64().unwrap() > 0.0, "{figure}: {told}");
    }
    for figure in ["tasks_naive", "tasks_same", "tasks"] {
        assert!(redis[figure].as_f64().unwrap() > 0.0, "{figure}: {told}");
    }
    // That they are the same for all is for the benchmark to show: on a slow machine, waiters poll
    // in between.
    for (n, waiters) in [4, 64, 512].into_iter().enumerate() {
        let commands = &redis["commands"][n];
        assert_eq!(commands["waiters"], waiters);
        for way in ["plain", "fair"] {
            assert!(commands[way].as_f64().unwrap() > 1.0, "{way} {waiters}: {told}");
        }
    }
}

#[test]
fn one_leads_and_another_takes_over() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_FENCE >> terms; sleep 600";
    let first = place.start(&format!("elect boss -- {script}"));
    place.content("terms");
    let second = place.start(&format!("elect boss -- {script}"));
    place.until("boss", 1, 1);
    first.signal(Signal::SIGTERM);
    first.end().exits(143);
    eventually("a second term", || (place.content("terms").lines().count() == 2).then_some(()));
    let terms: Vec<u64> = place.content("terms").lines().map(|n| n.parse().unwrap()).collect();
    assert!(terms[0] < terms[1]);
    second.signal(Signal::SIGTERM);
    second.end().exits(143);
}

#[test]
fn a_leader_that_lost_stands_again_unless_once() {
    let place = Place::new();
    let script = "echo $LOCKKEEPER_FENCE >> terms; sleep 600";
    let leader = place.start(&format!("elect --ttl 300ms boss -- {script}"));
    place.content("terms");
    place.run("break boss --yes --why test").exits(0);
    eventually("a second term", || (place.content("terms").lines().count() == 2).then_some(()));
    leader.signal(Signal::SIGTERM);
    leader.end().exits(143);
    let leader = place.start("elect --ttl 300ms --once boss -- echo > leads; sleep 600");
    place.content("leads");
    place.run("break boss --yes --why test").exits(0);
    leader.end().exits(79);
}

#[test]
fn forever_stands_again_after_the_commands_own_end() {
    let place = Place::new();
    place.run("elect boss -- exit 3").exits(3);
    let script = "echo >> terms; test $(wc -l < terms) -lt 2 || sleep 600";
    let leader = place.start(&format!("elect --forever boss -- {script}"));
    eventually("a second term", || (place.content("terms").lines().count() >= 2).then_some(()));
    leader.signal(Signal::SIGTERM);
    leader.end().exits(143);
}

#[test]
fn observers_see_leaders_come_and_go() {
    let place = Place::new();
    let mut command = place.lockkeeper("elect boss --observe --interval 20ms");
    let mut observer = command.spawn().unwrap();
    let mut lines = BufReader::new(observer.stdout.take().unwrap()).lines();
    let time = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let line = lines.next().unwrap().unwrap();
    assert!(line.ends_with("Z nobody leads") && line.starts_with(&time[..13]), "{line}");
    let leader = place.start("elect boss --note second-rack -- sleep 600");
    place.until("boss", 1, 0);
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains(&format!(" {} leads, term ", leader.pid())), "{line}");
    assert!(line.starts_with(&time[..11]) && line.ends_with("(second-rack)"), "{line}");
    leader.signal(Signal::SIGTERM);
    assert!(lines.next().unwrap().unwrap().ends_with("Z nobody leads"));
    observer.kill().unwrap();
    observer.wait().unwrap();
}

#[test]
fn the_lease_of_a_handle_is_shown_on_an_engine_without_leases() {
    let place = Place::new();
    let left = || -> Value {
        let shown = place.run("show k --json").exits(0).stdout;
        serde_json::from_str::<Value>(&shown).unwrap()["holders"][0]["lease_left"].clone()
    };
    let handle = place.run("acquire k --lease 10m").exits(0).stdout;
    let seconds = left().as_f64().expect("the lease is shown");
    assert!(seconds > 500.0 && seconds <= 600.0, "{seconds}");
    assert!(place.run("ls").exits(0).stdout.contains("9m 5"));
    place.run(&format!("renew {handle} --lease 1h")).exits(0);
    assert!(left().as_f64().unwrap() > 3000.0);
    place.run(&format!("release {handle}")).exits(0);
    let own = std::process::id();
    let handle = place.run(&format!("acquire k --pid {own}")).exits(0).stdout;
    assert_eq!(left(), Value::Null, "it ends with a process, not with a time");
    place.run(&format!("release {handle}")).exits(0);
}

/// Inspecting creates nothing.
#[test]
fn looking_does_not_make_the_lock_directory() {
    let place = Place::new();
    place.run("ls").exits(0).says("no locks in use");
    place.run("show k").exits(1).prints("nobody holds it");
    place.run("break k --yes --why test").exits(0).says("nobody held");
    assert!(!place.path("locks").exists());
    place.run("run k true").exits(0);
    assert!(place.path("locks").exists());
}

#[test]
fn break_asks_only_if_somebody_holds_the_lock() {
    let place = Place::new();
    let mut session = Session::at(&place);
    session.keys("lk break k --why test; echo code $?\n");
    let seen = session.shows("code 0");
    assert!(seen.contains("nobody held lock \"k\"") && !seen.contains("[y/N]"), "{seen:?}");
}

/// One long key does not blind whoever looks at the others.
#[test]
fn a_long_key_leaves_room_for_the_others_on_a_terminal() {
    let place = Place::new();
    let long = format!("{}end", "k".repeat(400));
    let _holders = [long.as_str(), "日本語/キー", "deploy"].map(|key| {
        let holder = place.start(&format!("run {key} -- sleep 60"));
        place.until(key, 1, 0);
        holder
    });
    let mut session = Session::at(&place);
    session.keys("stty rows 24 cols 80; export TERM=xterm; lk ls; echo listed $((40 + 2))\n");
    session.shows("KEY  ");
    let listed = session.shows("listed 42");
    assert!(listed.contains("…kkkkkkkkkend  held"), "{listed}");
    // Two columns for each of these characters: the next cell starts below the others.
    let place_of_held = |line: &str| line.find("held").map(|at| line[..at].width());
    let at: Vec<_> = listed.lines().filter_map(place_of_held).collect();
    assert!(at.len() == 3 && at.iter().all(|place| *place == at[0]), "{listed}");
    session.keys("lk watch\n");
    let drawn = session.shows("deploy");
    assert!(!drawn.contains("kkkkkkkkkkkkkkkkkkkkk"), "{drawn}");
    session.shows("@");
}

/// A reason is printed as it is recorded.
#[test]
fn a_secret_in_a_reason_is_masked_wherever_it_is_printed() {
    let place = Place::new();
    let _holder = place.start("run k -- sleep 60");
    place.until("k", 1, 0);
    let broken = place.run("break -y --why password=hunter2 k").exits(0);
    assert!(broken.stderr.contains("broken because: password=***"), "{}", broken.stderr);
    assert!(!(broken.stdout + &broken.stderr).contains("hunter2"));
    let told = place.run("break -y --json --why password=hunter2 k").exits(0).stdout;
    assert!(told.contains("password=***") && !told.contains("hunter2"), "{told}");
}
