//! A table with aligned columns, safe to print whatever it contains.

use std::fmt;

/// Longer cells are truncated: a table is for people.
const LONGEST: usize = 200;

/// Rows of cells under a heading. The last column is not padded; an empty one is left out.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned)] }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| short(&plain(&cell))));
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |n: usize| self.rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
        let used = |n: &usize| self.rows.iter().skip(1).any(|row| !row[*n].is_empty());
        let columns: Vec<(usize, usize)> = (0..N).filter(used).map(|n| (n, width(n))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (n, width) in &columns {
                line += &format!("{:<width$}  ", row[*n]);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Text without anything that could move a cursor, reverse the line, or hide in it: two keys that look
/// alike are not shown alike.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if is_visible(c) { c.to_string() } else { c.escape_default().to_string() })
        .collect()
}

/// Neither a control character, nor one that has no width or changes the direction of the text.
fn is_visible(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !hidden
}

/// Text that fits into a line.
pub(crate) fn short(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Text for one line of a terminal. The last column stays free: a cursor after it would be on the next line.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    let most = width.saturating_sub(1).max(1);
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_is_cut() {
        let mut table = Table::new(["KEY", "NOTE"]);
        table.row(["k".into(), "ä".repeat(100_000)]);
        let text = table.to_string();
        assert_eq!(text.lines().nth(1).unwrap(), format!("k    {}…", "ä".repeat(LONGEST)));
    }

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let mut table = Table::new(["KEY", "NOTHING", "WHO"]);
        table.row(["a".into(), String::new(), "me".into()]);
        table.row(["longer".into(), String::new(), "you".into()]);
        assert_eq!(table.to_string(), "KEY     WHO\na       me\nlonger  you\n");
    }

    #[test]
    fn hostile_text_cannot_move_the_cursor() {
        assert_eq!(plain("a\x1b[2Jb\u{202e}"), "a\\u{1b}[2Jb\\u{202e}");
    }

    #[test]
    fn text_cannot_hide() {
        for hidden in
            "\u{200b}\u{200d}\u{200e}\u{2060}\u{2066}\u{61c}\u{feff}\u{ad}\u{e0041}".chars()
        {
            let shown = plain(&format!("key{hidden}"));
            assert_eq!(shown, format!("key\\u{{{:x}}}", u32::from(hidden)));
        }
        let harmless = "Ännchen 日本語 עברית العربية é🦀";
        assert_eq!(plain(harmless), harmless);
    }

    #[test]
    fn a_line_is_clipped_to_the_terminal() {
        assert_eq!(clipped("waiting", 8), "waiting");
        assert_eq!(clipped("waiting", 7), "waiti…");
        assert_eq!(clipped("waiting", 0), "…");
    }
}
