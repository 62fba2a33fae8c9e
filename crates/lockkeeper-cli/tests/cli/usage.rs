//! Help for every verb, and bad usage of every verb: 64, with what would have been accepted.

use std::fs::File;

use crate::place::Place;

const VERBS: [&str; 17] = [
    "run",
    "acquire",
    "renew",
    "release",
    "ls",
    "show",
    "watch",
    "ui",
    "break",
    "yield",
    "elect",
    "explain",
    "doctor",
    "bench",
    "torture",
    "completions",
    "man",
];

#[test]
fn alone_it_shows_three_examples_that_work() {
    let place = Place::new();
    let shown = place.run("").exits(0).stdout;
    let examples: Vec<_> =
        shown.lines().filter_map(|line| line.strip_prefix("  lockkeeper ")).collect();
    assert_eq!(examples.len(), 3, "{shown}");
    for example in examples {
        let words = example.split("   ").next().unwrap().replace("sleep 60", "sleep 0");
        // Nobody holds it then.
        place.run(&words).exits(i32::from(words.starts_with("show")));
    }
}

#[test]
fn every_verb_has_a_short_help_a_long_one_and_an_example() {
    let place = Place::new();
    for verb in VERBS {
        let short = place.run(&format!("{verb} -h")).exits(0).stdout;
        let long = place.run(&format!("{verb} --help")).exits(0).stdout;
        place.run(&format!("help {verb}")).exits(0).prints(long.trim_end());
        for help in [&short, &long] {
            assert!(
                help.contains("Example:") && help.contains(&format!("lockkeeper {verb}")),
                "{help}"
            );
        }
        assert!(long.len() >= short.len(), "{verb}");
        assert!(!long.contains(r#"\""#), "{long}");
    }
    let all = place.run("--help").exits(0).stdout;
    for verb in VERBS {
        assert!(all.contains(&format!("  {verb} ")), "{verb}: {all}");
    }
    for help in [&all, &place.run("run --help").exits(0).stdout] {
        assert!(help.contains("75 busy or timed out"), "{help}");
    }
    assert!(place.run("--version").exits(0).stdout.starts_with("lockkeeper 0."));
}

#[test]
fn bad_usage_is_64_and_says_what_would_be_right() {
    let place = Place::new();
    for (words, right) in [
        ("runn k true", "'run'"),
        ("run", "<KEY>"),
        ("run k", "<CMD>"),
        // The key was forgotten: `sh` is not taken for it.
        ("run -- true", "<KEY> is missing: all that follows `--` is the command"),
        ("run -n -- true", "lockkeeper run <KEY> -- CMD [ARG]..."),
        ("run k", "lockkeeper run [OPTIONS] <KEY> -- <CMD> [ARG]..."),
        ("run -w soon k true", "500ms, 5s, 2m, 1h"),
        ("run -w -5 k true", "500ms, 5s, 2m, 1h"),
        ("run -n -w 5 k true", "cannot be used with"),
        ("run -s -x k true", "cannot be used with"),
        ("run --limit 0 k true", "a whole number from 1 to 4294967295"),
        ("run --limit many k true", "a whole number from 1 to 4294967295"),
        ("run --min-hold 10s --max-hold 5s k true", "--min-hold 10s is longer than --max-hold 5s"),
        ("run --max-hold 0 k true", "longer than 0"),
        ("run --lease 0 k true", "longer than 0"),
        ("run --url memory: --ttl 500ms k true", "--ttl must be at least 1s"),
        ("run --on-lost cry k true", "term, kill, ignore"),
        ("run --on-yield cry k true", "term, usr1, ignore"),
        ("run -E 256 k true", "a number from 0 to 255"),
        ("run -E x k true", "a number from 0 to 255"),
        ("run --lease 5s --ttl 5s k true", "cannot be used with"),
        ("run -c true k true", "cannot be used with"),
        ("run --once-per 10ms k true", "at least 1s"),
        ("run --ttl 1ms k true", "between 10ms and 366 days"),
        ("run --owner é k true", "visible ASCII"),
        ("run --url nonsense k true", "starts with a scheme"),
        ("run --url gopher: k true", "the schemes are: file, memory"),
        ("run --url file:?colour=red k true", "it takes: network"),
        ("run --url redis://h:99999 k true", "invalid port number; write scheme://host:port"),
        ("run --ask-password k true", "file: takes no password; leave --ask-password out"),
        ("show --ask-password --password-file x k", "cannot be used with"),
        ("acquire", "<KEY>"),
        ("acquire k --lease never", "500ms, 5s, 2m, 1h"),
        ("acquire k --pid 0", "the number of a process, from 1 on, for instance $$"),
        ("acquire k --pid abc", "the number of a process, from 1 on, for instance $$"),
        ("acquire k --lease 0", "longer than 0"),
        ("acquire k --pid 4194305", "there is no process 4194305"),
        ("renew", "<HANDLE>"),
        ("renew nonsense", "lockkeeper acquire KEY"),
        ("renew 0123456789abcdef-0-7 --lease 0", "longer than 0"),
        ("release", "<HANDLE>"),
        ("release ../../etc/passwd-1", "lockkeeper acquire KEY"),
        ("ls --url gopher:", "the schemes are: file, memory"),
        ("ls a b", "unexpected argument 'b'"),
        ("show", "<KEY>"),
        ("watch --interval 0", "longer than 0"),
        ("ui --listen nowhere", "it is an address and a port"),
        ("ui --listen 0.0.0.0:7717", "a token is required"),
        ("ui --interval 0", "longer than 0"),
        ("ui --audit x", "--allow-changes"),
        ("ui --host a:1", "a name such as locks.example, without a port"),
        ("ui gopher:", "the schemes are: file, memory"),
        ("break k", "--why <WHY>"),
        ("break k --why x", "say --yes"),
        ("break k --yes --why=", "give a reason"),
        ("elect", "<NAME>"),
        ("elect -- true", "lockkeeper elect <NAME> -- CMD [ARG]..."),
        ("help gopher", "unrecognized subcommand 'gopher'"),
        ("elect boss", "<CMD>"),
        ("elect --observe boss true", "cannot be used with"),
        ("explain --table file:", "cannot be used with"),
        ("explain gopher:", "the schemes are: file, memory"),
        ("explain --schema gopher:", "the schemes are: file, memory"),
        ("explain --schema memory:", "those that do are: mysql:, postgres:"),
        ("explain --schema --table", "cannot be used with"),
        ("doctor gopher:", "the schemes are: file, memory"),
        ("bench gopher:", "the schemes are: file, memory"),
        ("bench --seconds 0", "longer than 0"),
        ("bench --processes 1", "a whole number from 2 to 64"),
        ("bench --processes x", "a whole number from 2 to 64"),
        ("torture memory:", "--simulate"),
        ("torture --local gopher", "redis-sentinel"),
        ("torture --kinds gopher", "read-write"),
        ("torture --faults gopher", "stop, kill"),
        ("torture --mutant gopher", "release-without-owner-check"),
        ("torture --ttl 1ms", "at least 500ms"),
        ("torture --simulate --local file", "cannot be used with"),
        ("completions", "<SHELL>"),
        ("completions cmd.exe", "bash"),
        ("man --colour", "unexpected argument '--colour'"),
        ("__guardian", "not meant to be called"),
        ("__holder", "not meant to be called"),
        ("__bench-worker", "not meant to be called"),
        ("__torture-client", "not meant to be called"),
    ] {
        let done = place.run(words).exits(64).says(right);
        assert_eq!(done.stdout, "", "{words}");
        assert_eq!(done.stderr.matches("lockkeeper: ").count(), 1, "{words}: {}", done.stderr);
    }
    let empty = place.lockkeeper("run").args(["", "true"]).output().unwrap();
    assert_eq!(empty.status.code(), Some(64));
}

#[test]
fn manual_pages_and_help_name_variables_files_and_exit_codes() {
    let place = Place::new();
    std::fs::create_dir(place.path("man")).unwrap();
    place.run("man --dir man").exits(0);
    let mut pages = 0;
    for page in std::fs::read_dir(place.path("man")).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        for section in [".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH FILES"] {
            assert_eq!(text.matches(section).count(), 1, "{section} in {page:?}");
        }
        pages += 1;
    }
    assert!(pages > 10, "{pages}");
    assert!(place.run("man").exits(0).stdout.contains(".SH FILES"));
    for verb in ["run", "elect"] {
        let help = place.run(&format!("help {verb}")).exits(0).stdout;
        assert!(help.contains("LOCKKEEPER_FENCE"), "{help}");
    }
}

#[test]
fn an_engine_that_cannot_be_reached_is_69() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").unwrap();
    let url = format!("file://{}", place.path("file/locks").display());
    for words in
        ["run k true", "acquire k", "ls", "show k", "elect k true", "break k --yes --why x"]
    {
        let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
        place
            .run(&format!("{verb} --url {url} {rest}"))
            .exits(69)
            .says("cannot make the lock directory");
    }
}

#[test]
fn messages_that_cannot_be_written_do_not_change_the_exit_code() {
    let place = Place::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for (words, code) in
        [("run -v --json k -- exit 3", 3), ("run", 64), ("show --url gopher: k", 64)]
    {
        let status = place.lockkeeper(words).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words}");
    }
    for words in [
        "",
        "--help",
        "--version",
        "help ls",
        "top -h",
        "explain",
        "explain --table",
        "doctor",
        "ls --json",
        "ls --broken --json",
        "show k",
        "elect --observe k",
        "completions bash",
        "man",
    ] {
        // A pipe whose reader has seen enough is no failure, a full disk is.
        let (reader, unread) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(
            place.lockkeeper(words).stdout(unread).status().unwrap().code(),
            Some(0),
            "{words}"
        );
        let done = place.lockkeeper(words).stdout(full()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(125), "{words}: {said}");
        assert!(said.contains("lockkeeper: cannot print: No space left on device"), "{said}");
    }
}

#[test]
fn a_lock_that_excludes_nothing_is_warned_about() {
    let place = Place::new();
    place.run("run --url memory: k true").exits(0).says("this excludes nothing");
}

#[test]
fn a_key_that_starts_with_a_dash_works_the_way_the_tip_says() {
    let place = Place::new();
    for words in ["run -k true", "show -k", "acquire -k"] {
        place.run(words).exits(64).says("use '-- -k'");
    }
    let mut echo = place.lockkeeper("run");
    let done = echo.args(["--", "-k", "sh", "-c", "echo $LOCKKEEPER_KEY"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "-k\n", "{done:?}");
    let mut echo = place.lockkeeper("run -n");
    let done = echo.args(["--", "-k", "--", "sh", "-c", "echo $LOCKKEEPER_KEY"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "-k\n", "{done:?}");
    let mut leads = place.lockkeeper("elect");
    assert!(leads.args(["--", "-k", "true"]).status().unwrap().success());
    let mut acquire = place.lockkeeper("acquire");
    let handle = acquire.args(["--", "-k"]).output().unwrap();
    assert!(place.lockkeeper("show").args(["--", "-k"]).status().unwrap().success());
    place.run(&format!("release {}", String::from_utf8(handle.stdout).unwrap())).exits(0);
}

#[test]
fn a_path_as_a_key_is_warned_of() {
    let place = Place::new();
    for key in ["/tmp/my.lock", "./my.lock", "../my.lock", "~/my.lock"] {
        place.run(&format!("run {key} true")).exits(0).says("is only a name");
    }
    assert!(!place.path("my.lock").exists());
    for key in ["my.lock", "team/job", "a/../b"] {
        assert_eq!(place.run(&format!("run {key} true")).exits(0).stderr, "");
    }
    assert_eq!(place.run("run -q /tmp/my.lock true").exits(0).stderr, "");
}

#[test]
fn bash_completes_keys_and_commands() {
    let place = Place::new();
    std::fs::write(place.path("completions"), place.run("completions bash").exits(0).stdout)
        .unwrap();
    let _holder = place.start("run deploy/web sleep 600");
    place.until("deploy/web", 1, 0);
    let _other = place.start("run other sleep 600");
    place.until("other", 1, 0);
    let ours = place.lockkeeper("");
    let bin = std::path::Path::new(ours.get_program()).parent().unwrap().display().to_string();
    let complete = |line: &str| {
        let script = format!(
            "PATH={bin}:$PATH; . ./completions; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; \
             read -ra COMP_WORDS <<< \"$COMP_LINE\"; \
             [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=(''); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             how=$(complete -p lockkeeper); how=${{how#*-F }}; how=${{how%% *}}; \
             $how lockkeeper \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             printf '%s\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "-c", &script]).current_dir(place.path(""));
        for (name, value) in ours.get_envs() {
            value.map(|value| bash.env(name, value));
        }
        let done = bash.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(said, "", "{line}");
        String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for line in ["lockkeeper show dep", "lockkeeper run -n dep", "lockkeeper break --why x de"] {
        assert_eq!(complete(line), ["deploy/web"], "{line}");
    }
    for line in ["lockkeeper show ", "lockkeeper run -w 5 "] {
        let keys = complete(line);
        assert!(keys.iter().any(|key| key == "deploy/web"), "{line}: {keys:?}");
        assert!(keys.iter().any(|key| key == "other"), "{line}: {keys:?}");
    }
    // Not where something else is expected.
    assert!(!complete("lockkeeper run --note dep").contains(&"deploy/web".to_owned()));
    assert!(!complete("lockkeeper run k dep").contains(&"deploy/web".to_owned()));
    assert!(complete("lockkeeper run k -- slee").contains(&"sleep".to_owned()));
    assert!(complete("lockkeeper sho").contains(&"show".to_owned()));
    assert!(complete("lockkeeper run --shar").contains(&"--shared".to_owned()));
    std::fs::write(place.path("an-argument"), "").unwrap();
    assert_eq!(complete("lockkeeper run k -- cat an-a"), ["an-argument"]);
}

#[test]
fn completions_and_manuals_know_every_verb() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = place.run(&format!("completions {shell}")).exits(0).stdout;
        for verb in VERBS {
            assert!(text.contains(verb), "{shell} {verb}");
        }
    }
    assert!(place.run("man").exits(0).stdout.contains(".TH lockkeeper 1"));
    let dir = place.path("man");
    std::fs::create_dir(&dir).unwrap();
    place.run(&format!("man --dir {}", dir.display())).exits(0);
    for verb in VERBS {
        assert!(dir.join(format!("lockkeeper-{verb}.1")).exists(), "{verb}");
    }
}
