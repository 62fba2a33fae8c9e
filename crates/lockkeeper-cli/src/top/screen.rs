//! What is on the screen: numbers, the table or the details, and a message line.
//!
//! Columns that do not fit are left out, starting with the least important. Nothing is conveyed by
//! colour alone.

use std::time::SystemTime;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState, Wrap};
use unicode_width::UnicodeWidthStr;

use super::keys::{Mode, Name, View};
use super::list::{Item, Shown, age_in_words};
use crate::inspect::waiters_unknown;
use crate::output::human;
use crate::table::{cut, end, plain, shortened};
use crate::ui::history::{Outcome, Span as Past};
use crate::ui::model::Party;
use crate::ui::rows::Trouble;

/// By how many columns of its name a lock is recognised in a question.
const NAME: usize = 12;

/// What the keys do.
const KEYS: [(&str, &str); 9] = [
    ("j k ↑ ↓", "choose a lock"),
    ("Enter", "its details, Esc goes back"),
    ("Space", "its waiters below it"),
    ("/", "filter as you type, Esc clears"),
    ("s", "sort by trouble, key, age, waiters"),
    ("y", "ask the holder to yield"),
    ("b", "break the lock"),
    ("?", "this list"),
    ("q", "quit"),
];

pub(super) fn draw(frame: &mut Frame, shown: &Shown, view: &mut View, now: SystemTime) {
    // Two lines each: the cause is at the end.
    let silent = 2 * shown.silent.len().min(2) as u16;
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(silent),
        Constraint::Min(1),
        Constraint::Length(1),
    ]);
    let [top, errors, middle, bottom] = rows.areas(frame.area());
    frame.render_widget(strip(shown, top.width), top);
    let words = shown.silent.iter().map(|error| Line::styled(plain(error), alarm()));
    let words = Paragraph::new(words.collect::<Vec<_>>()).wrap(Wrap { trim: true });
    frame.render_widget(words, errors);
    let chosen = view.place(shown).map(|at| &shown.items[at]);
    match chosen.filter(|_| view.mode == Mode::Detail) {
        Some(item) => detail(frame, middle, item, &shown.past, view, now),
        None => table(frame, middle, shown, view, now),
    }
    frame.render_widget(Paragraph::new(last_line(shown, view, bottom.width.into())), bottom);
    if view.mode == Mode::Help {
        help(frame);
    }
}

/// Red if there is colour, otherwise bold.
fn alarm() -> Style {
    let style = Style::new().add_modifier(Modifier::BOLD);
    if coloured() { style.fg(Color::Red) } else { style }
}

fn coloured() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn strip(shown: &Shown, width: u16) -> Paragraph<'static> {
    let strip = &shown.strip;
    let mut parts = vec![
        format!("held {}{}", strip.held, if shown.silent.is_empty() { "" } else { "+?" }),
        format!("waiting {}{}", strip.waiting, if strip.waiting_unknown > 0 { "+?" } else { "" }),
    ];
    if strip.deadlocks > 0 {
        parts.push(format!("DEADLOCKS {}", strip.deadlocks));
    }
    parts.push(format!("lost {}/h", strip.lost_last_hour));
    if let Some(slack) = &strip.smallest_slack {
        parts.push(format!("slack {:.0}%", 100.0 * slack.share));
    }
    let space = if width >= 70 { "   " } else { "  " };
    if width >= 70 {
        parts.insert(0, " lockkeeper top".to_owned());
    }
    // Half a number would be a wrong one.
    while parts.join(space).chars().count() > width.into() {
        parts.pop();
    }
    Paragraph::new(parts.join(space)).style(Style::new().add_modifier(Modifier::REVERSED))
}

/// The columns of a screen of this width.
fn columns(width: u16, several_engines: bool) -> Vec<&'static str> {
    let mut columns = vec!["KEY", "HOLDER", "AGE", "WAIT"];
    if width >= 60 {
        columns.insert(3, "LEASE");
        if several_engines {
            columns.insert(1, "ENGINE");
        }
    }
    if width >= if several_engines { 140 } else { 100 } {
        columns.insert(1, "KIND");
    }
    if width >= 100 {
        columns.push("COMMAND");
    }
    if width >= 140 {
        columns.extend(["NOTE", "FENCE"]);
    }
    columns
}

/// The width of a column that has the same one on every screen of this width, so that nothing moves
/// as time passes.
fn fixed(column: &str, screen: u16) -> Option<u16> {
    match column {
        "AGE" if screen < 60 => Some(5),
        "AGE" => Some(8),
        "LEASE" => Some(7),
        "WAIT" => Some(4),
        _ => None,
    }
}

/// The widths of the columns: what they need, and less for the widest of them if that is too much.
fn widths(mut needed: Vec<u16>, is_fixed: impl Fn(usize) -> bool, room: u16) -> Vec<u16> {
    let mut over = needed.iter().sum::<u16>().saturating_sub(room);
    while over > 0 {
        let free = needed.iter_mut().enumerate().filter(|(n, width)| !is_fixed(*n) && **width > 1);
        let Some((_, widest)) = free.max_by_key(|(_, width)| **width) else { break };
        *widest -= 1;
        over -= 1;
    }
    needed
}

fn table(frame: &mut Frame, area: Rect, shown: &Shown, view: &View, now: SystemTime) {
    if shown.items.is_empty() {
        let words = match shown.all {
            0 if !shown.silent.is_empty() => "no locks known; an engine does not answer",
            0 => "no locks in use",
            _ => "no lock matches the filter",
        };
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    let columns = columns(area.width, shown.several_engines);
    let place = view.place(shown);
    let mut rows = Vec::new();
    let mut chosen = None;
    let row = |cell: &dyn Fn(&str) -> String| -> Vec<String> {
        columns.iter().map(|name| cell(name)).collect()
    };
    for (at, item) in shown.items.iter().enumerate() {
        if place == Some(at) {
            chosen = Some(rows.len());
        }
        let trouble = matches!(item.row.trouble, Some(Trouble::Deadlock | Trouble::LeaseLow));
        let style = if trouble { alarm() } else { Style::new() };
        rows.push((row(&|name| cell(name, item, now)), style));
        if place == Some(at) && view.expanded {
            let waiters = item.lock.waiting().iter().enumerate();
            rows.extend(
                waiters.map(|(n, waiter)| {
                    (row(&|name| waiter_cell(name, n, waiter, now)), Style::new())
                }),
            );
        }
    }
    let widths = fitting(&columns, rows.iter().map(|(cells, _)| cells), area.width);
    let rows = rows.into_iter().map(|(cells, style)| {
        let cells = cells.iter().zip(&columns).zip(&widths);
        // What is cut shows that it is.
        Row::new(cells.map(|((cell, name), width)| fitted(name, cell, *width)).collect::<Vec<_>>())
            .style(style)
    });
    let heading = Row::new(columns.iter().map(|name| Cell::from(*name)).collect::<Vec<_>>());
    let table = Table::new(rows, widths.iter().map(|width| Constraint::Length(*width)))
        .header(heading.style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(1);
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

/// The widths for columns with these cells on a screen of this width.
fn fitting<'a>(
    columns: &[&str],
    rows: impl Iterator<Item = &'a Vec<String>>,
    screen: u16,
) -> Vec<u16> {
    let mut needed: Vec<u16> =
        columns.iter().map(|name| fixed(name, screen).unwrap_or(name.width() as u16)).collect();
    let is_fixed = |n: usize| fixed(columns[n], screen).is_some();
    for cells in rows {
        for (n, cell) in cells.iter().enumerate().filter(|(n, _)| !is_fixed(*n)) {
            needed[n] = needed[n].max(cell.width().min(screen.into()) as u16);
        }
    }
    let spaces = columns.len().saturating_sub(1) as u16;
    widths(needed, is_fixed, screen.saturating_sub(spaces))
}

/// Names are told apart by their ends too, such as a port.
fn fitted(column: &str, text: &str, width: u16) -> String {
    match column {
        "KEY" | "ENGINE" => shortened(text, width.into()),
        // The larger of the two units says enough where there is no room for both.
        "AGE" if text.width() > width.into() => {
            cut(text.split(' ').next().unwrap_or(text), width.into())
        }
        _ => cut(text, width.into()),
    }
}

fn cell(column: &str, item: &Item, now: SystemTime) -> String {
    let lock = &item.lock;
    let holder = lock.holders.first();
    let text = |text: Option<&String>| text.map(|text| plain(text)).unwrap_or_default();
    match column {
        "KEY" => format!("{}{}", mark(item.row.trouble), plain(&lock.key)),
        "ENGINE" => plain(&lock.engine),
        "KIND" => item.row.kind.clone().unwrap_or_default(),
        "HOLDER" => match (holder, lock.holders.len()) {
            (None, _) => "nobody".to_owned(),
            (Some(one), 1) => plain(&one.name()),
            (Some(one), all) => format!("{} +{}", plain(&one.name()), all - 1),
        },
        "AGE" => item.first().map(|holder| age_in_words(holder, now)).unwrap_or_default(),
        "LEASE" => holder.map(|holder| lease(holder, now)).unwrap_or_default(),
        "WAIT" => lock.waiters.as_ref().map_or("?".to_owned(), |waiters| waiters.len().to_string()),
        "COMMAND" => text(holder.and_then(|holder| holder.command.as_ref())),
        "NOTE" => text(holder.and_then(|holder| holder.note.as_ref())),
        _ => item.row.fence.map(|fence| fence.to_string()).unwrap_or_default(),
    }
}

fn waiter_cell(column: &str, n: usize, waiter: &Party, now: SystemTime) -> String {
    match column {
        "KEY" => format!("    waits {}", n + 1),
        "KIND" => waiter.kind.clone(),
        "HOLDER" => plain(&waiter.name()),
        "AGE" => age_in_words(waiter, now),
        "COMMAND" => waiter.command.as_deref().map(plain).unwrap_or_default(),
        "NOTE" => waiter.note.as_deref().map(plain).unwrap_or_default(),
        _ => String::new(),
    }
}

/// A mark before the key of a lock that needs attention.
fn mark(trouble: Option<Trouble>) -> &'static str {
    match trouble {
        Some(Trouble::Deadlock) => "X ",
        Some(Trouble::LeaseLow) => "! ",
        Some(Trouble::Waiting) => "* ",
        None => "  ",
    }
}

fn lease(holder: &Party, now: SystemTime) -> String {
    match holder.lease_ends {
        Some(ends) => human(ends.duration_since(now).unwrap_or_default()),
        None => "none".to_owned(),
    }
}

fn detail(
    frame: &mut Frame,
    area: Rect,
    item: &Item,
    past: &[Past],
    view: &mut View,
    now: SystemTime,
) {
    let lock = &item.lock;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![
        Line::styled(plain(&lock.key), bold),
        Line::from(format!("on {}, fence {}", lock.engine, cell("FENCE", item, now))),
    ];
    for deadlock in &item.deadlocks {
        lines.push(Line::styled(format!("deadlock: {}", plain(deadlock)), alarm()));
    }
    for holder in &lock.holders {
        let held = if holder.kept { "kept" } else { "held" };
        lines.push(Line::styled(format!("{held} by {}", plain(&holder.name())), bold));
        lines.extend(about(holder, now, format!("lease {}", lease(holder, now))));
    }
    match &lock.waiters {
        None => lines.push(Line::from(waiters_unknown(lock.unknown))),
        Some(waiters) => {
            lines.push(Line::styled(format!("{} waiting", waiters.len()), bold));
            for (n, waiter) in waiters.iter().enumerate() {
                lines.push(Line::from(format!("{}. {}", n + 1, plain(&waiter.name()))));
                lines.extend(about(waiter, now, String::new()));
            }
        }
    }
    if !past.is_empty() {
        lines.push(Line::styled("last holders", bold));
        lines.extend(past.iter().map(|span| Line::from(ended(span, now))));
    }
    view.scrolled = view.scrolled.min(lines.len().saturating_sub(1).try_into().unwrap_or(u16::MAX));
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((view.scrolled, 0));
    frame.render_widget(text, area);
}

/// A hold that is over: whose it was, when it ended and how.
fn ended(span: &Past, now: SystemTime) -> String {
    let who = span.who.clone().unwrap_or_else(|| format!("{}…", span.id));
    let to = span.to.unwrap_or(now);
    let held = human(to.duration_since(span.from).unwrap_or_default());
    let ago = human(now.duration_since(to).unwrap_or_default());
    let outcome = match (span.outcome, &span.broken_by) {
        (Outcome::Broken, Some(by)) => {
            let why = span.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("broken by {by}{why}")
        }
        (Outcome::Broken, None) => "broken".to_owned(),
        (Outcome::Expired, _) => "lease expired".to_owned(),
        (Outcome::Unknown, _) => "unknown end".to_owned(),
        _ => "ended".to_owned(),
    };
    plain(&format!("   {who} for {held}, {ago} ago: {outcome}"))
}

/// What is known about a holder or a waiter, one line each.
fn about(party: &Party, now: SystemTime, lease: String) -> Vec<Line<'static>> {
    let mut lines =
        vec![Line::from(format!("   {} for {}  {lease}", party.kind, age_in_words(party, now)))];
    for (name, text) in [("command", &party.command), ("note", &party.note)] {
        lines.extend(text.as_ref().map(|text| Line::from(format!("   {name}: {}", plain(text)))));
    }
    lines
}

/// The input or question, the last outcome, or the most important keys, in one line of this width.
fn last_line(shown: &Shown, view: &View, width: usize) -> Line<'static> {
    let named = |(engine, key): &Name| match shown.several_engines {
        true => format!("{} on {}", plain(key), plain(engine)),
        false => plain(key),
    };
    let strong =
        |text: String| Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)));
    match &view.mode {
        Mode::Filter => strong(typed("/", &plain(&view.filter), width)),
        Mode::Yield(lock) => strong(question(
            &[("ask the holder of ", " to give way? y/n"), ("yield ", "? y/n")],
            &named(lock),
            width,
        )),
        Mode::Why(lock, why) => {
            // The name makes room for what is typed, down to a part by which it is recognised.
            let why = plain(why);
            let fixed = "break  because: ▏".width() + why.width();
            let key = shortened(&named(lock), width.saturating_sub(fixed).max(NAME));
            strong(typed(&format!("break {key} because: "), &why, width))
        }
        Mode::Break(lock, _) => strong(question(
            &[("break ", "? its holder may be at work. y/n"), ("break ", "? y/n")],
            &named(lock),
            width,
        )),
        _ => match &view.news {
            Some(news) => strong(plain(news)),
            None => {
                let sort = format!("s sort: {}", view.sort.name());
                let filter = match view.filter.as_str() {
                    "" => "/ filter".to_owned(),
                    filter => format!("/{} {} of {}", plain(filter), shown.items.len(), shown.all),
                };
                let (y, b) = ("y yield", "b break");
                Line::from(match view.mode {
                    Mode::Detail => as_many_as_fit(&["? keys", "Esc back", y, b, "q quit"], width),
                    _ => as_many_as_fit(
                        &[
                            "? keys",
                            "q quit",
                            &sort,
                            &filter,
                            "Enter details",
                            y,
                            b,
                            "Space waiters",
                        ],
                        width,
                    ),
                })
            }
        },
    }
}

/// The first of these words, as far as they fit into a line.
fn as_many_as_fit(words: &[&str], width: usize) -> String {
    let mut line = String::new();
    for word in words {
        let space = if line.is_empty() { "" } else { "  " };
        if line.width() + space.len() + word.width() > width {
            break;
        }
        line += space;
        line += word;
    }
    line
}

/// The first of these questions about a name for which there is enough room, with all of the name or
/// a part of it.
fn question(forms: &[(&str, &str)], name: &str, width: usize) -> String {
    let room =
        |(before, after): &(&str, &str)| width.saturating_sub(before.width() + after.width());
    let enough = |form: &&(&str, &str)| room(form) >= name.width().min(NAME);
    let Some(form) = forms.iter().find(enough).or(forms.last()) else { return String::new() };
    format!("{}{}{}", form.0, shortened(name, room(form)), form.1)
}

/// A prompt with as much of the end of what was typed as fits.
fn typed(prompt: &str, text: &str, width: usize) -> String {
    format!("{prompt}{}▏", end(text, width.saturating_sub(prompt.width() + 1)))
}

fn help(frame: &mut Frame) {
    let area = frame.area();
    let (width, height) = (area.width.min(50), area.height.min(KEYS.len() as u16 + 2));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let lines: Vec<_> =
        KEYS.iter().map(|(key, what)| Line::from(format!("{key:<8} {what}"))).collect();
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_columns_make_room_for_the_others() {
        let none = |_| false;
        assert_eq!(widths(vec![10, 20, 5], none, 40), [10, 20, 5]);
        assert_eq!(widths(vec![10, 20, 5], none, 30), [10, 15, 5]);
        assert_eq!(widths(vec![30, 30, 5], none, 25), [10, 10, 5]);
        assert_eq!(widths(vec![30, 8, 5], |n| n == 1, 20), [7, 8, 5]);
        assert_eq!(widths(vec![3, 3], none, 0), [1, 1]);
    }

    #[test]
    fn a_column_has_room_for_what_is_in_it() {
        let rows = [vec!["  k".to_owned(), "ann@web1 7".to_owned()]];
        assert_eq!(fitting(&["KEY", "HOLDER"], rows.iter(), 80), [3, 10]);
        let rows = [vec!["x".repeat(300), "ann@web1 7".to_owned()]];
        assert_eq!(fitting(&["KEY", "HOLDER"], rows.iter(), 40), [29, 10]);
        assert_eq!(fitted("AGE", "59m 59s", 5), "59m");
        assert_eq!(fitted("AGE", ">59m 59s", 8), ">59m 59s");
    }
}
