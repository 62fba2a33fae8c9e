//! `completions` and `man`: made from the same definition as the parser.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man as Page;

use crate::args::{Cli, Completions, Man};
use crate::exit::{self, Failure};

pub(crate) fn completions(args: &Completions) -> exit::Outcome {
    clap_complete::generate(args.shell, &mut Cli::command(), "lockkeeper", &mut io::stdout());
    Ok(0)
}

pub(crate) fn man(args: Man) -> exit::Outcome {
    let refuse = |error: io::Error| Failure::own("write a manual page", error);
    let mut command = Cli::command();
    command.build();
    let Some(dir) = args.dir else {
        let mut page = Vec::new();
        Page::new(command).render(&mut page).map_err(refuse)?;
        io::stdout().write_all(&page).map_err(refuse)?;
        return Ok(0);
    };
    clap_mangen::generate_to(command, &dir)
        .map_err(|error| Failure::own(format!("write manual pages to {}", dir.display()), error))?;
    Ok(0)
}
