//! Our own words: on stderr, behind `lockkeeper: `, and no more of them than asked for.

use std::fmt::Display;

/// How much to say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Say {
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

impl Say {
    /// What the user should know.
    pub(crate) fn warn(self, message: impl Display) {
        if !self.quiet {
            eprintln!("lockkeeper: {message}");
        }
    }

    /// What the user asked to know with `-v`.
    pub(crate) fn note(self, message: impl Display) {
        if self.verbose {
            eprintln!("lockkeeper: {message}");
        }
    }
}

/// A duration with as many digits as people read: `850ms`, `1.5s`, `4m 10s`, `3d 2h`.
pub(crate) fn human(time: std::time::Duration) -> String {
    let seconds = time.as_secs();
    let pair = |big: u64, a: &str, small: u64, b: &str| match small {
        0 => format!("{big}{a}"),
        _ => format!("{big}{a} {small}{b}"),
    };
    match seconds {
        0 => format!("{}ms", time.as_millis()),
        1..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3_600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => pair(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_are_short() {
        for (ms, shown) in [
            (850, "850ms"),
            (1_500, "1.5s"),
            (59_900, "59s"),
            (250_000, "4m 10s"),
            (7_200_000, "2h"),
            (266_400_000, "3d 2h"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), shown);
        }
    }
}
