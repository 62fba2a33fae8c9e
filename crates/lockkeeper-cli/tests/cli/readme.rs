//! The README's table is what the command prints.

use crate::place::Place;

#[test]
fn the_readme_has_every_row_of_the_table() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let readme = readme.unwrap();
    let output = Place::new().lockkeeper("explain --table").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().count() > 3, "{table}");
    for row in table.lines() {
        assert!(readme.lines().any(|line| line == row), "the README lacks this row: {row}");
    }
}
