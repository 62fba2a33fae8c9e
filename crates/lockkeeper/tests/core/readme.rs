//! The README's examples compile as they stand there. The first is a whole program, which is pasted into a
//! fresh project and run; each line of the others is a line of this file.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockkeeper::{Multi, Owner, Result};

/// The overview, which is to be read and not run: its second line would wait for its first.
#[rustfmt::skip]
#[allow(dead_code, unused_variables)]
async fn overview(client: lockkeeper::Client, other: lockkeeper::Client, owner: Owner) -> Result<()> {
let guard  = client.mutex("orders/42").acquire().await?;                  // waits
let guard  = client.mutex("orders/42").acquire_within(secs(5)).await?;    // Err(Timeout)
let maybe  = client.mutex("orders/42").try_acquire().await?;              // Option<Guard>; busy is not an error
let shared = client.read("report").acquire().await?;                      // client.write("report")
let permit = client.semaphore("gpu", 4).acquire().await?;
let both   = Multi::new([client.mutex("a"), other.mutex("b")]).acquire().await?;
let again  = client.mutex("a").owner(&owner).acquire().await?;            // re-entrant for that owner
let term   = client.election("scheduler").campaign().await?;              // leadership is a lock you keep
guard.release().await?;                                                   // or drop it
client.shutdown(secs(10)).await;                                          // on SIGTERM: leaves nothing behind
    Ok(())
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn readme() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    std::fs::read_to_string(path).unwrap()
}

/// The blocks of code in a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let parts = text.split(fence.as_str()).skip(1);
    parts.map(|part| part.split_once("```").expect("a block ends").0).collect()
}

#[test]
fn the_first_program_of_the_readme_runs_in_a_fresh_project() {
    let (readme, library) = (readme(), Path::new(env!("CARGO_MANIFEST_DIR")));
    let fresh = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(fresh.path().join(name), text).unwrap();
    std::fs::create_dir(fresh.path().join("src")).unwrap();
    write("src/main.rs", blocks(&readme, "rust")[0]);
    let dependencies = blocks(&readme, "toml")[0];
    let package = "[package]\nname = \"fresh\"\nversion = \"0.1.0\"\nedition = \"2024\"";
    let patch = format!("[patch.crates-io]\nlockkeeper.path = {:?}", library.display().to_string());
    write("Cargo.toml", &format!("{package}\n\n{dependencies}\n{patch}\n"));
    // The versions that were tested, and that are here without a network.
    std::fs::copy(library.join("../../Cargo.lock"), fresh.path().join("Cargo.lock")).unwrap();
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--offline", "--quiet"])
        .current_dir(fresh.path())
        .env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/fresh"))
        .env("XDG_STATE_HOME", fresh.path().join("state"))
        .output()
        .unwrap();
    let (said, failed) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{failed}");
    assert!(said.starts_with("charged under fence "), "{said}");
}

#[test]
fn every_other_line_of_rust_in_the_readme_is_compiled_here() {
    let readme = readme();
    let here: Vec<_> = include_str!("readme.rs").lines().map(str::trim).collect();
    let others = &blocks(&readme, "rust")[1..];
    assert!(!others.is_empty());
    for code in others {
        let mut rest = here.iter();
        for line in code.lines().map(str::trim) {
            assert!(
                rest.any(|here| *here == line),
                "the README has another line, or order: {line}"
            );
        }
    }
}
