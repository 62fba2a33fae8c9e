//! The table in docs/engines/README.md is what the command prints.

use crate::place::Place;

#[test]
fn the_page_of_engines_has_every_row_of_the_table() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let output = Place::new().lockkeeper("explain --table").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().count() > 3, "{table}");
    for row in table.lines() {
        assert!(
            page.lines().any(|line| line == row),
            "docs/engines/README.md lacks this row: {row}"
        );
    }
}
