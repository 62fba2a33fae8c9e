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

use super::keys::{Mode, View};
use super::list::{Item, Shown, age};
use crate::inspect::waiters_unknown;
use crate::output::human;
use crate::table::{cut, end, plain, shortened};
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
    match (&view.mode, chosen) {
        (Mode::Detail, Some(item)) => detail(frame, middle, item, view, now),
        _ => table(frame, middle, shown, view, now),
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

/// The columns that fit into a width.
fn columns(width: u16, several_engines: bool) -> Vec<(&'static str, Constraint)> {
    let mut columns = vec![("KEY", Constraint::Fill(3)), ("HOLDER", Constraint::Fill(3))];
    if several_engines && width >= 60 {
        columns.insert(1, ("ENGINE", Constraint::Fill(3)));
    }
    if width >= 60 {
        columns.push(("AGE", Constraint::Length(8)));
        columns.push(("LEASE", Constraint::Length(7)));
    }
    columns.push(("WAIT", Constraint::Length(4)));
    if width >= if several_engines { 140 } else { 100 } {
        columns.insert(1, ("KIND", Constraint::Length(20)));
    }
    if width >= 100 {
        columns.push(("COMMAND", Constraint::Fill(3)));
    }
    if width >= 140 {
        columns.push(("NOTE", Constraint::Fill(2)));
        columns.push(("FENCE", Constraint::Length(17)));
    }
    columns
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
    let (columns, widths): (Vec<_>, Vec<_>) =
        columns(area.width, shown.several_engines).into_iter().unzip();
    let widths = Layout::horizontal(widths).spacing(1).split(area);
    let row = |cell: &dyn Fn(&str) -> String| {
        let cells = columns.iter().zip(widths.iter());
        // What is cut shows that it is.
        Row::new(
            cells.map(|(name, area)| fitted(name, &cell(name), area.width)).collect::<Vec<_>>(),
        )
    };
    let place = view.place(shown);
    let mut rows = Vec::new();
    let mut chosen = None;
    for (at, item) in shown.items.iter().enumerate() {
        if place == Some(at) {
            chosen = Some(rows.len());
        }
        let trouble = matches!(item.row.trouble, Some(Trouble::Deadlock | Trouble::LeaseLow));
        let style = if trouble { alarm() } else { Style::new() };
        rows.push(row(&|name| cell(name, item, now)).style(style));
        if place == Some(at) && view.expanded {
            let waiters = item.lock.waiting().iter().enumerate();
            rows.extend(waiters.map(|(n, waiter)| row(&|name| waiter_cell(name, n, waiter, now))));
        }
    }
    let heading = Row::new(columns.iter().map(|name| Cell::from(*name)).collect::<Vec<_>>());
    let table = Table::new(rows, widths.iter().map(|area| Constraint::Length(area.width)))
        .header(heading.style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(1);
    let mut state = TableState::new().with_selected(chosen);
    frame.render_stateful_widget(table, area, &mut state);
}

/// Names are told apart by their ends too, such as a port.
fn fitted(column: &str, text: &str, width: u16) -> String {
    match column {
        "KEY" | "ENGINE" => shortened(text, width.into()),
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
        "AGE" => item.age(now).map(human).unwrap_or_default(),
        "LEASE" => holder.map(|holder| lease(holder, now)).unwrap_or_default(),
        "WAIT" => lock.waiters.as_ref().map_or("?".to_owned(), |waiters| waiters.len().to_string()),
        "COMMAND" => text(holder.and_then(|holder| holder.command.as_ref())),
        "NOTE" => text(holder.and_then(|holder| holder.note.as_ref())),
        _ => item.row.fence.map(|fence| fence.to_string()).unwrap_or_default(),
    }
}

fn waiter_cell(column: &str, n: usize, waiter: &Party, now: SystemTime) -> String {
    match column {
        "KEY" => format!("  waits {}", n + 1),
        "KIND" => waiter.kind.clone(),
        "HOLDER" => plain(&waiter.name()),
        "AGE" => human(age(waiter, now)),
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
        None => "",
    }
}

fn lease(holder: &Party, now: SystemTime) -> String {
    match holder.lease_ends {
        Some(ends) => human(ends.duration_since(now).unwrap_or_default()),
        None => "none".to_owned(),
    }
}

fn detail(frame: &mut Frame, area: Rect, item: &Item, view: &View, now: SystemTime) {
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
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((view.scrolled, 0));
    frame.render_widget(text, area);
}

/// What is known about a holder or a waiter, one line each.
fn about(party: &Party, now: SystemTime, lease: String) -> Vec<Line<'static>> {
    let mut lines =
        vec![Line::from(format!("   {} for {}  {lease}", party.kind, human(age(party, now))))];
    for (name, text) in [("command", &party.command), ("note", &party.note)] {
        lines.extend(text.as_ref().map(|text| Line::from(format!("   {name}: {}", plain(text)))));
    }
    lines
}

/// The input or question, the last outcome, or the most important keys, in one line of this width.
fn last_line(shown: &Shown, view: &View, width: usize) -> Line<'static> {
    let key = view.chosen.as_ref().map_or_else(String::new, |(engine, key)| {
        match shown.several_engines {
            true => format!("{} on {}", plain(key), plain(engine)),
            false => plain(key),
        }
    });
    let strong =
        |text: String| Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)));
    match &view.mode {
        Mode::Filter => strong(typed("/", &plain(&view.filter), width)),
        Mode::Yield => strong(question(
            &[("ask the holder of ", " to give way? y/n"), ("yield ", "? y/n")],
            &key,
            width,
        )),
        Mode::Why(why) => {
            // The name makes room for what is typed, down to a part by which it is recognised.
            let why = plain(why);
            let fixed = "break  because: ▏".width() + why.width();
            let key = shortened(&key, width.saturating_sub(fixed).max(NAME));
            strong(typed(&format!("break {key} because: "), &why, width))
        }
        Mode::Break(_) => strong(question(
            &[("break ", "? its holder may be at work. y/n"), ("break ", "? y/n")],
            &key,
            width,
        )),
        _ => match &view.news {
            Some(news) => strong(plain(news)),
            None => {
                let filter = match view.filter.as_str() {
                    "" => String::new(),
                    filter => {
                        format!("  /{} {} of {}", plain(filter), shown.items.len(), shown.all)
                    }
                };
                Line::from(match view.mode {
                    Mode::Detail => "? keys  Esc back  y yield  b break".to_owned(),
                    _ => format!("? keys  q quit  s sort: {}{filter}", view.sort.name()),
                })
            }
        },
    }
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
