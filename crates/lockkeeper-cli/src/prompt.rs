//! Asks for a password at the terminal, without echo.
//!
//! Easy to get wrong: Ctrl-C. `run` has blocked its signals by then, and a process that is killed
//! by a signal would leave the terminal without echo. So keys are read in raw mode.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::exit::{self, Failure};

/// The line that was typed.
pub(crate) fn password(place: &str) -> Result<String, Failure> {
    let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        Failure::usage(
            "--ask-password needs a terminal to ask at; use --password-file or LOCKKEEPER_PASSWORD",
        )
    })?;
    let trouble = |error: io::Error| Failure::own("ask for the password", error);
    let silence = Silence::on(&tty).map_err(trouble)?;
    write!(&tty, "lockkeeper: password for {place}: ").map_err(trouble)?;
    let typed = line(&tty);
    drop(silence);
    writeln!(&tty).map_err(trouble)?;
    let typed = typed.map_err(trouble)?;
    typed.ok_or_else(|| Failure::silent(exit::signalled(nix::libc::SIGINT)))
}

/// Reads keys; `None` if it was Ctrl-C.
fn line(mut keys: impl Read) -> io::Result<Option<String>> {
    let (mut typed, mut key) = (Vec::new(), [0]);
    loop {
        match keys.read(&mut key) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        match key[0] {
            b'\n' | b'\r' | 0x04 => break,
            0x03 => return Ok(None),
            // A character may be several bytes.
            0x08 | 0x7f => while typed.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            0x15 => typed.clear(),
            key => typed.push(key),
        }
    }
    String::from_utf8(typed).map(Some).map_err(io::Error::other)
}

/// Raw mode without echo, until this is dropped.
struct Silence<'a> {
    tty: &'a File,
    before: Termios,
}

impl<'a> Silence<'a> {
    fn on(tty: &'a File) -> io::Result<Self> {
        let before = tcgetattr(tty)?;
        let mut silent = before.clone();
        silent.local_flags &= !(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG);
        tcsetattr(tty, SetArg::TCSADRAIN, &silent)?;
        Ok(Self { tty, before })
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        // Fails if the terminal was hung up, which does no harm.
        let _ = tcsetattr(self.tty, SetArg::TCSADRAIN, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_a_line_or_an_interruption() {
        let typed = |keys: &str| line(keys.as_bytes()).unwrap();
        assert_eq!(typed("secret\nrest").as_deref(), Some("secret"));
        assert_eq!(typed("wrong\x15secré\x7fet\r").as_deref(), Some("secret"));
        assert_eq!(typed("no\x03\n"), None);
    }
}
