//! `man`: made from the same definition as the parser.

use std::io;

use clap::CommandFactory;
use clap_mangen::Man as Page;

use crate::args::{Cli, Man};
use crate::exit::{self, Failure};
use crate::output::print;

pub(crate) fn man(args: Man) -> exit::Outcome {
    let refuse = |error: io::Error| Failure::own("write a manual page", error);
    // `help VERB` would have a page per verb once more.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = args.dir else {
        let mut page = Vec::new();
        Page::new(command).render(&mut page).map_err(refuse)?;
        return print(&String::from_utf8_lossy(&page)).map(|()| 0);
    };
    clap_mangen::generate_to(command, &dir)
        .map_err(|error| Failure::own(format!("write manual pages to {}", dir.display()), error))?;
    Ok(0)
}
