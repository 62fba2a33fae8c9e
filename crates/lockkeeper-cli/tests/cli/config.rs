//! Flag before environment before file before default; and no secret is ever printed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::place::Place;

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let place = Place::new();
    let dir = |name: &str| format!("file://{}", place.path(name).display());
    let show = "run --owner me";
    let asked = |flags: &str, variable: Option<&str>| {
        let mut command = place.lockkeeper(&format!("{show} {flags} k -- echo $LOCKKEEPER_URL"));
        match variable {
            Some(url) => command.env("LOCKKEEPER_URL", url),
            None => command.env_remove("LOCKKEEPER_URL"),
        };
        String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
    };
    assert_eq!(asked("", None), "file:");
    assert!(place.path(".local/state/lockkeeper/locks").is_dir());
    fs::create_dir_all(place.path(".config/lockkeeper")).unwrap();
    fs::write(place.path(".config/lockkeeper/config.toml"), format!("url = {:?}\n", dir("file")))
        .unwrap();
    assert_eq!(asked("", None), dir("file"));
    assert_eq!(asked("", Some(&dir("env"))), dir("env"));
    assert_eq!(asked(&format!("--url {}", dir("flag")), Some(&dir("env"))), dir("flag"));
}

#[test]
fn ttl_and_grace_come_from_the_file_too() {
    let place = Place::new();
    let refused = |text: &str, ttl: Option<&str>| {
        fs::write(place.path("config"), text).unwrap();
        let mut command = place.lockkeeper("run --url memory: k true");
        command.env("LOCKKEEPER_CONFIG", place.path("config"));
        if let Some(ttl) = ttl {
            command.env("LOCKKEEPER_TTL", ttl);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = refused("ttl = \"6s\"\ngrace = 5\n", None);
    assert!(code == Some(64) && said.contains("a lease of 6s"), "{said}");
    let (code, said) = refused("ttl = \"6s\"\ngrace = 5\n", Some("1m"));
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = refused("ttl = \"soon\"\n", None);
    assert!(code == Some(64) && said.contains("ttl: \"soon\" is not a duration"), "{said}");
    let (code, said) = refused("tttl = 5\n", None);
    assert!(code == Some(64) && said.contains("unknown field `tttl`"), "{said}");
    for key in ["url", "ttl", "grace", "on-lost", "password-file"] {
        assert!(said.contains(key), "{key} is not listed in: {said}");
    }
    let (code, said) = refused("on-lost = \"cry\"\n", None);
    assert!(code == Some(64) && said.contains("term, kill, ignore"), "{said}");
}

#[test]
fn a_bad_url_is_blamed_on_its_source() {
    let place = Place::new();
    let bad = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(64));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = bad(place.lockkeeper("ls").env("LOCKKEEPER_URL", "localhost"));
    assert!(said.starts_with("lockkeeper: LOCKKEEPER_URL: this is not the URL"), "{said}");
    // Not treated as unset, which would select another engine.
    let garbled = OsStr::from_bytes(b"redis://\xff");
    let said = bad(place.lockkeeper("ls").env("LOCKKEEPER_URL", garbled));
    assert_eq!(said, "lockkeeper: LOCKKEEPER_URL is not UTF-8\n");
    fs::create_dir_all(place.path(".config/lockkeeper")).unwrap();
    fs::write(place.path(".config/lockkeeper/config.toml"), "url = \"localhost\"\n").unwrap();
    let said = bad(place.lockkeeper("ls").env_remove("LOCKKEEPER_URL"));
    assert!(said.contains("lockkeeper/config.toml url: this is not the URL"), "{said}");
    let said = bad(&mut place.lockkeeper("ls --url localhost"));
    assert!(said.starts_with("lockkeeper: this is not the URL"), "{said}");
}

#[test]
fn a_named_file_that_is_not_there_is_an_error() {
    let place = Place::new();
    let mut command = place.lockkeeper("run k true");
    let output = command.env("LOCKKEEPER_CONFIG", "/no/such/file").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().contains("/no/such/file"));
}

#[test]
fn a_password_is_never_printed() {
    let place = Place::new();
    fs::write(place.path("secret"), "canary\n").unwrap();
    fs::write(
        place.path("config"),
        "url = \"redis://me:canary@127.0.0.1:1\"\nttl = [\"canary\"]\n",
    )
    .unwrap();
    let secret = place.path("secret").display().to_string();
    let words = [
        "run --url redis://me:canary@127.0.0.1:1/?password=canary k true",
        "run --url http://canary@127.0.0.1:1 k true",
        "run --url //me:canary@127.0.0.1:1 k true",
        "run --url file:?password=canary k true",
        "doctor redis://:canary@127.0.0.1:1",
        "explain redis://:canary@127.0.0.1:1/?colour=canary",
        "bench redis://:canary@127.0.0.1:1 --json",
        "acquire --url redis://:canary@127.0.0.1:1 k",
        "elect -w 1 --url redis://:canary@127.0.0.1:1 k true",
        "ls --url redis://:canary@127.0.0.1:1",
        &format!("run --url redis://127.0.0.1:1 --password-file {secret} k true"),
        &format!("run --url memory: --password-file {secret} --json --status-file status -v k env"),
        "run --url memory: --json -v k -- env | grep -v LOCKKEEPER_PASSWORD; exit 1",
    ];
    for words in words {
        let file = [("LOCKKEEPER_PASSWORD_FILE", &*secret)];
        for environment in [&[][..], &file[..], &[("LOCKKEEPER_PASSWORD", "canary")][..]] {
            let mut command = place.lockkeeper(words);
            let output = command.envs(environment.iter().copied()).output().unwrap();
            let all = [output.stdout, output.stderr].concat();
            let all = String::from_utf8_lossy(&all).into_owned();
            assert!(!all.contains("canary"), "{words}: {all}");
            assert_ne!(output.status.code(), Some(0), "{words}: {all}");
        }
    }
    let output = place
        .lockkeeper("run k true")
        .env("LOCKKEEPER_CONFIG", place.path("config"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("line 2") && !said.contains("canary"), "{said}");
}

#[test]
fn a_password_for_an_engine_without_one_is_refused_if_it_was_meant_for_it() {
    let place = Place::new();
    fs::write(place.path("secret"), "canary\n").unwrap();
    place.run("run --password-file secret k true").exits(64).says("file: takes no password");
    place
        .run("run --password-file nowhere k true")
        .exits(64)
        .says("cannot read the password file nowhere");
    // A variable may be meant for other engines.
    let mut command = place.lockkeeper("run k -- echo in");
    let output = command.env("LOCKKEEPER_PASSWORD", "canary").output().unwrap();
    assert_eq!(output.stdout, b"in\n");
}
