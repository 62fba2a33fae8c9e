//! `man`: generated from the definition of the parser, with the sections that all verbs share at
//! the end.

use std::fs::OpenOptions;
use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man as Page;

use crate::args::{Cli, Man};
use crate::exit::{self, Failure};
use crate::output::print;

/// Exit status, environment and files: the same on every page.
const SHARED: &str = include_str!("manual.roff");

pub(crate) fn man(args: Man) -> exit::Outcome {
    let refuse = |error: io::Error| Failure::own("write a manual page", error);
    // `help VERB` would add every page a second time.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = args.dir else {
        let mut page = Vec::new();
        Page::new(command).render(&mut page).map_err(refuse)?;
        page.extend_from_slice(SHARED.as_bytes());
        return print(&String::from_utf8_lossy(&page)).map(|()| 0);
    };
    let write = || -> io::Result<()> {
        clap_mangen::generate_to(command.clone(), &dir)?;
        for name in pages(&command, command.get_name()) {
            let page = dir.join(format!("{name}.1"));
            OpenOptions::new().append(true).open(page)?.write_all(SHARED.as_bytes())?;
        }
        Ok(())
    };
    write()
        .map_err(|error| Failure::own(format!("write manual pages to {}", dir.display()), error))?;
    Ok(0)
}

/// The names of the pages of a command and its subcommands.
fn pages(command: &clap::Command, name: &str) -> Vec<String> {
    let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let below = shown.flat_map(|verb| pages(verb, &format!("{name}-{}", verb.get_name())));
    std::iter::once(name.to_owned()).chain(below).collect()
}
