//! The README's first sample is a whole program, which is pasted into a fresh project and run.
//! `samples.rs` has the others.

use std::path::Path;
use std::process::Command;

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
