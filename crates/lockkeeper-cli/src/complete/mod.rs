//! Dynamic completion in a shell: the keys of locks in use.
//!
//! Completions are generated from the parser's definition, which knows no keys. So the scripts call
//! the hidden verb, with the words typed so far. It prints keys only where a key is expected.

use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::{Shell, generate};

use crate::args::{Cli, Completions, Verb, Where};
use crate::config::Config;
use crate::exit;
use crate::output::print;

/// The hidden verb.
pub(crate) const VERB: &str = "__keys";

/// How long completion waits for an engine.
const PATIENCE: Duration = Duration::from_secs(1);

/// Stands for the word that is being typed.
const TYPED: &str = "\u{1}";

pub(crate) fn completions(args: &Completions) -> exit::Outcome {
    let mut text = Vec::new();
    generate(args.shell, &mut Cli::command(), "lockkeeper", &mut text);
    let text = String::from_utf8_lossy(&text);
    let more = match args.shell {
        Shell::Bash => include_str!("bash.sh"),
        Shell::Fish => include_str!("fish.fish"),
        _ => "",
    };
    let text = match args.shell {
        Shell::Zsh => text
            .replace(":key -- The lock:_default", ":key -- The lock:_lockkeeper_keys")
            .replacen("_lockkeeper() {", include_str!("zsh.zsh"), 1),
        _ => format!("{text}\n{more}"),
    };
    print(&text).map(|()| 0)
}

/// Prints the keys that complete the last of these words; nothing if it is not a key.
pub(crate) async fn keys(mut words: Vec<String>) -> exit::Outcome {
    let start = words.pop().unwrap_or_default();
    let Some(place) = place_of_key(&words) else { return Ok(0) };
    if place.secret.ask_password {
        return Ok(0);
    }
    let list = async {
        let config = Config::load()?.quietly(true);
        Ok::<_, exit::Failure>(config.connect(&place).await?.list(&*start).await?)
    };
    // Whatever goes wrong, there is nothing to offer and no place to report it.
    if let Ok(Ok(snapshots)) = tokio::time::timeout(PATIENCE, list).await {
        for snapshot in snapshots {
            print(&format!("{}\n", snapshot.key))?;
        }
    }
    Ok(0)
}

/// The engine, if the next word is a key.
fn place_of_key(words: &[String]) -> Option<Where> {
    let start = ["lockkeeper"].into_iter().chain(words.iter().map(String::as_str)).chain([TYPED]);
    let start: Vec<_> = start.collect();
    [&[][..], &["--", "true"], &["--why", "asked", "--yes"]].iter().find_map(|rest| {
        let cli = Cli::try_parse_from(start.iter().chain(*rest)).ok()?;
        let (place, key) = match cli.verb {
            Verb::Run(args) => (args.place, args.key),
            Verb::Acquire(args) => (args.place, args.key),
            Verb::Ls(args) => (args.place, args.prefix),
            Verb::Show(args) => (args.place, args.key),
            Verb::Watch(args) => (args.place, args.prefix),
            Verb::Break(args) => (args.place, args.key),
            Verb::Yield(args) => (args.place, args.key),
            Verb::Elect(args) => (args.place, args.name),
            _ => return None,
        };
        (key == TYPED).then_some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_expected_where_one_belongs() {
        let expected = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            place_of_key(&words).is_some()
        };
        for line in ["run", "run -n", "run -w 5 --note x", "show", "break", "break --why x", "ls"] {
            assert!(expected(line), "{line}");
        }
        for line in
            ["", "run k", "run --note", "run --ttl", "show k", "explain", "renew", "run k --"]
        {
            assert!(!expected(line), "{line}");
        }
        let place = place_of_key(&["show".into(), "--url".into(), "memory:".into()]);
        assert_eq!(place.unwrap().url.as_deref(), Some("memory:"));
    }
}
