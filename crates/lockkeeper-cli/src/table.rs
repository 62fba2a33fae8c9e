//! A table with aligned columns, safe to print whatever it contains.

use std::fmt;
use std::io::{self, IsTerminal};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Longer cells are truncated: a table is for people.
const LONGEST: usize = 200;

/// Rows of cells under a heading. The last column is not padded; an empty one is left out.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
    /// The widest cell.
    widest: usize,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(str::to_owned)], widest: LONGEST }
    }

    /// A table of what others wrote. On a terminal, no cell is wider than a third of it: one long key
    /// must not push everything else off the screen.
    pub(crate) fn of_names(heading: [&str; N]) -> Self {
        let terminal = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
        let third = terminal.map(|(width, _)| usize::from(width.0 / 3).max(20));
        Self { widest: third.unwrap_or(LONGEST), ..Self::new(heading) }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| shortened(&plain(&cell), self.widest)));
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |n: usize| self.rows.iter().map(|row| row[n].width()).max().unwrap_or(0);
        let used = |n: &usize| self.rows.iter().skip(1).any(|row| !row[*n].is_empty());
        let columns: Vec<(usize, usize)> = (0..N).filter(used).map(|n| (n, width(n))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (n, width) in &columns {
                // `format!` would count characters.
                line += &row[*n];
                line.extend(std::iter::repeat_n(' ', width + 2 - row[*n].width()));
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
    cut(text, LONGEST)
}

/// Text for one line of a terminal. The last columns stay free: a cursor after them would be on the
/// next line, and so would the `^C` that a terminal shows.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    cut(text, width.saturating_sub(3).max(1))
}

/// Text in at most so many cells of a terminal, without its end if it is too long.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.width() > most {
        true => start(text, most.saturating_sub(1)).to_owned() + "…",
        false => text.to_owned(),
    }
}

/// The same, without its middle: the start and the end of a name tell more.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(1);
    let start = start(text, room - room / 2);
    format!("{start}…{}", end(text, room / 2))
}

/// As much of the start of a text as fits.
fn start(text: &str, most: usize) -> &str {
    &text[..fitting(text.char_indices().map(|(at, c)| (at + c.len_utf8(), c)), most).unwrap_or(0)]
}

/// As much of its end as fits.
pub(crate) fn end(text: &str, most: usize) -> &str {
    &text[fitting(text.char_indices().rev(), most).unwrap_or(text.len())..]
}

/// The last of these places that is reached with so many cells.
fn fitting(places: impl Iterator<Item = (usize, char)>, most: usize) -> Option<usize> {
    let mut used = 0;
    let fits = places.take_while(|(_, c)| {
        used += c.width().unwrap_or(0);
        used <= most
    });
    fits.last().map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_is_cut() {
        let mut table = Table::new(["KEY", "NOTE"]);
        table.row(["k".into(), "ä".repeat(100_000)]);
        let text = table.to_string();
        let cell = text.lines().nth(1).unwrap().trim_start_matches("k    ");
        assert_eq!(cell.chars().count(), table.widest, "{cell}");
        assert!(cell.starts_with('ä') && cell.ends_with('ä') && cell.contains('…'), "{cell}");
    }

    #[test]
    fn columns_line_up_under_wide_characters() {
        let mut table = Table::new(["KEY", "WHO"]);
        table.row(["日本".into(), "me".into()]);
        table.row(["long".into(), "you".into()]);
        assert_eq!(table.to_string(), "KEY   WHO\n日本  me\nlong  you\n");
    }

    #[test]
    fn a_name_is_shortened_in_its_middle() {
        assert_eq!(shortened("backup", 6), "backup");
        assert_eq!(shortened("backups", 6), "bac…ps");
        assert_eq!(shortened("日本語キー", 6), "日…ー");
        assert_eq!(shortened("backups", 1), "…");
        assert_eq!(end("typed so far", 6), "so far");
        assert_eq!(end("日本", 3), "本");
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
        assert_eq!(clipped("waiting", 10), "waiting");
        assert_eq!(clipped("waiting", 9), "waiti…");
        assert_eq!(clipped("日本語", 8), "日本…");
        assert_eq!(clipped("waiting", 0), "…");
    }
}
