//! The selection, the input, and the effect of each key.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::list::{Shown, Sort};

/// What the operator is viewing.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) filter: String,
    pub(super) sort: Sort,
    pub(super) chosen: Option<Name>,
    /// Its position when it was last on the screen.
    at: usize,
    /// Whether the waiters of the selected lock are shown below it.
    pub(super) expanded: bool,
    pub(super) mode: Mode,
    /// How far the details are scrolled.
    pub(super) scrolled: u16,
    /// The outcome of the last change.
    pub(super) news: Option<String>,
    /// Whether a key was pressed. Until then the first row is selected, whichever it is.
    pub(super) is_used: bool,
}

/// The engine and the key of a lock.
pub(super) type Name = (String, String);

/// What keys do at the moment. A question is about the lock for which it was asked, whatever is
/// selected when it is answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Table,
    Filter,
    Detail,
    Help,
    /// Confirming a yield request.
    Yield(Name),
    /// Typing the reason of a break.
    Why(Name, String),
    /// Confirming a break.
    Break(Name, String),
}

/// The effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Stay,
    Quit,
    Do(Order),
}

/// A confirmed change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    Yield { engine: String, key: String },
    Break { engine: String, key: String, why: String },
}

impl View {
    /// Keeps the selection on an existing lock: the one that takes the place of one that is gone.
    pub(super) fn settle(&mut self, shown: &Shown) {
        match self.place(shown).filter(|_| self.is_used) {
            Some(at) => self.at = at,
            None => {
                if self.mode == Mode::Detail {
                    let key = self.chosen.as_ref().map_or("", |(_, key)| key);
                    self.news = Some(format!("{key:?} is no longer in the list"));
                    self.mode = Mode::Table;
                }
                let at = if self.is_used { self.at } else { 0 };
                let item = shown.items.get(at).or(shown.items.last());
                self.chosen = item.map(|item| item.name());
            }
        }
    }

    /// The position of the selected lock in the list.
    pub(super) fn place(&self, shown: &Shown) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        shown.items.iter().position(|item| item.name() == *chosen)
    }

    pub(super) fn press(&mut self, key: KeyEvent, shown: &Shown) -> Step {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Step::Quit;
        }
        (self.news, self.is_used) = (None, true);
        match std::mem::take(&mut self.mode) {
            Mode::Table => self.press_in_table(key.code, shown),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Help => Step::Stay,
            Mode::Detail => self.press_in_detail(key.code),
            Mode::Yield((engine, lock)) => match key.code {
                KeyCode::Char('y') => Step::Do(Order::Yield { engine, key: lock }),
                _ => Step::Stay,
            },
            Mode::Why(lock, mut why) => {
                match key.code {
                    KeyCode::Esc => return Step::Stay,
                    KeyCode::Enter if !why.trim().is_empty() => {
                        self.mode = Mode::Break(lock, why);
                        return Step::Stay;
                    }
                    KeyCode::Char(c) => why.push(c),
                    KeyCode::Backspace => drop(why.pop()),
                    _ => {}
                }
                self.mode = Mode::Why(lock, why);
                Step::Stay
            }
            Mode::Break((engine, lock), why) => match key.code {
                KeyCode::Char('y') => Step::Do(Order::Break { engine, key: lock, why }),
                _ => Step::Stay,
            },
        }
    }

    fn press_in_table(&mut self, code: KeyCode, shown: &Shown) -> Step {
        match code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('j') | KeyCode::Down => self.move_by(1, shown),
            KeyCode::Char('k') | KeyCode::Up => self.move_by(-1, shown),
            KeyCode::PageDown => self.move_by(10, shown),
            KeyCode::PageUp => self.move_by(-10, shown),
            KeyCode::Home => self.move_by(isize::MIN, shown),
            KeyCode::End => self.move_by(isize::MAX, shown),
            KeyCode::Char(' ') => self.expanded = !self.expanded,
            KeyCode::Enter if self.chosen.is_some() => {
                (self.mode, self.scrolled) = (Mode::Detail, 0);
            }
            KeyCode::Char(key @ ('y' | 'b')) => self.ask(key),
            _ => {}
        }
        Step::Stay
    }

    /// Asks whether the selected lock is to be yielded or broken.
    fn ask(&mut self, key: char) {
        let Some(lock) = self.chosen.clone() else { return };
        self.mode = if key == 'y' { Mode::Yield(lock) } else { Mode::Why(lock, String::new()) };
    }

    fn press_in_filter(&mut self, code: KeyCode) -> Step {
        self.mode = Mode::Filter;
        match code {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        Step::Stay
    }

    fn press_in_detail(&mut self, code: KeyCode) -> Step {
        self.mode = Mode::Detail;
        match code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Esc | KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Char('j') | KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Char('k') | KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::PageDown => self.scrolled = self.scrolled.saturating_add(10),
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(10),
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scrolled = u16::MAX,
            KeyCode::Char(key @ ('y' | 'b')) => self.ask(key),
            _ => {}
        }
        Step::Stay
    }

    fn move_by(&mut self, rows: isize, shown: &Shown) {
        let at = self.place(shown).unwrap_or(0).saturating_add_signed(rows);
        let last = shown.items.len().saturating_sub(1);
        self.chosen = shown.items.get(at.min(last)).map(|item| item.name());
    }
}
