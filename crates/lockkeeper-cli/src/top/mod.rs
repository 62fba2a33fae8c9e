//! `top`: holders and waiters, live on a terminal.
//!
//! It polls the engines as [`ui`](crate::ui) does. [`list`] selects and sorts the locks, [`keys`]
//! handles input, [`screen`] draws. Text from an engine or another client is only ever drawn as
//! text.

mod keys;
mod list;
mod screen;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::mpsc;

use self::keys::{Order, Step, View};
use crate::acquire::interruptible;
use crate::args::Top;
use crate::exit::{self, Failure};
use crate::inspect::recorded_reason;
use crate::run::signals::Signals;
use crate::ui;
use crate::ui::collect::Collector;
use crate::ui::history::History;

/// How often ages and leases are redrawn.
const DRAWN: Duration = Duration::from_millis(500);

pub(crate) async fn top(args: Top) -> exit::Outcome {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage("top needs a terminal; `watch` prints to pipes and files"));
    }
    let signals = Signals::collect().map_err(|error| Failure::own("listen for signals", error))?;
    let sources = ui::sources(&args.urls, &args.secret).await?;
    let collector =
        Arc::new(Collector::new(sources, args.interval, History::new(Vec::new(), 0), None));
    for n in 0..collector.engines() {
        let collector = collector.clone();
        tokio::spawn(async move { collector.poll(n).await });
    }
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::own("draw on the terminal", error))?;
    let shown = interruptible(show(&mut terminal, &collector), &signals).await;
    ratatui::restore();
    shown
}

async fn show(
    terminal: &mut ratatui::DefaultTerminal,
    collector: &Arc<Collector>,
) -> exit::Outcome {
    let mut typed = read_keys();
    let (told, mut news) = mpsc::unbounded_channel();
    let mut view = View::default();
    let mut ticks = tokio::time::interval(DRAWN);
    loop {
        let now = SystemTime::now();
        let shown = list::list(&collector.state(), &view, now);
        view.settle(&shown);
        terminal
            .draw(|frame| screen::draw(frame, &shown, &mut view, now))
            .map_err(|error| Failure::own("draw on the terminal", error))?;
        tokio::select! {
            _ = ticks.tick() => {}
            Some(news) = news.recv() => view.news = Some(news),
            event = typed.recv() => match event {
                Some(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    match view.press(key, &shown) {
                        Step::Stay => {}
                        Step::Quit => return Ok(0),
                        Step::Do(order) => {
                            let (collector, told) = (collector.clone(), told.clone());
                            tokio::spawn(async move {
                                // Has no receiver if we are about to end.
                                let _ = told.send(carry_out(&collector, order).await);
                            });
                        }
                    }
                }
                // A new size, for instance.
                Some(_) => {}
                None => return Ok(0),
            },
        }
    }
}

/// The keys typed. The thread ends with the process: a read from a terminal cannot be interrupted.
fn read_keys() -> mpsc::UnboundedReceiver<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Carries out a confirmed change, and returns its outcome.
async fn carry_out(collector: &Collector, order: Order) -> String {
    let (engine, key) = match &order {
        Order::Yield { engine, key } | Order::Break { engine, key, .. } => (engine, key),
    };
    let Some(source) = collector.source(engine) else { return format!("{engine} is gone") };
    let done = async {
        let client = source.client().await?;
        match &order {
            Order::Yield { .. } => client.request_yield(key).await,
            Order::Break { why, .. } => client.break_lock_because(key, why).await,
        }
    };
    match (done.await, &order) {
        (Err(error), _) => error.to_string(),
        (Ok(holders), _) if holders.is_empty() => format!("nobody holds {key:?} any more"),
        (Ok(_), Order::Yield { .. }) => format!("asked the holder of {key:?} to give way"),
        (Ok(_), Order::Break { why, .. }) => format!("broke {key:?}: {}", recorded_reason(why)),
    }
}
