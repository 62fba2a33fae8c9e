//! The answers to the renewals of one hold: which are missing, which failed, and why, as far as
//! that is known.

use tokio::time::Instant;

use crate::guard::Trouble;

/// The answers to the renewals of a hold.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// How many renewals are in progress.
    under_way: u32,
    /// Set from the first of them until one is answered. One that failed was not.
    silence: Option<Silence>,
    trouble: Option<Trouble>,
}

/// Renewals without an answer.
#[derive(Debug)]
struct Silence {
    /// When the first of them was sent.
    since: Instant,
    /// The cause, if it is known.
    cause: Option<String>,
}

impl Silence {
    /// A description for people, as of now.
    fn describe(&self, place: &str) -> String {
        let seconds = self.since.elapsed().as_secs_f64();
        let cause = self.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
        format!("no answer from {place} for {seconds:.1} s{cause}")
    }
}

impl Answers {
    /// The renewals that failed since the last successful one.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Whether a renewal is in progress.
    pub(super) fn are_missing(&self) -> bool {
        self.under_way > 0
    }

    /// The answers so far, for the next hold of the same grant. No renewal is in progress.
    pub(super) fn hand_over(&self) -> Self {
        Self { trouble: self.trouble.clone(), ..Self::default() }
    }

    /// A renewal is sent. True if the previous one is still in progress, and nothing was answered
    /// meanwhile; that one is late, and counts as failed if `counts` is set.
    pub(super) fn asking(&mut self, place: &str, counts: bool) -> bool {
        self.under_way += 1;
        let late = self.under_way > 1 && self.silence.is_some();
        let silence =
            self.silence.get_or_insert_with(|| Silence { since: Instant::now(), cause: None });
        if late && counts {
            let error = silence.describe(place);
            self.failed(error);
        }
        late
    }

    /// A renewal has ended; an error means that it got no answer.
    pub(super) fn asked(&mut self, error: Option<String>, counts: bool) {
        self.under_way -= 1;
        let Some(error) = error else {
            self.silence = None;
            return;
        };
        if let Some(silence) = &mut self.silence {
            silence.cause = Some(error.clone());
        }
        if counts {
            self.failed(error);
        }
    }

    /// The engine found out why there is no answer.
    pub(super) fn silent_because(&mut self, cause: String, place: &str) {
        let Some(silence) = &mut self.silence else { return };
        silence.cause = Some(cause);
        if let Some(trouble) = &mut self.trouble {
            trouble.error = silence.describe(place);
        }
    }

    /// A renewal was confirmed.
    pub(super) fn came(&mut self) {
        self.trouble = None;
        self.silence = None;
    }

    /// The lease ran out: records what led to it, up to its end.
    pub(super) fn never_came(&mut self, place: &str) {
        if let Some(silence) = &self.silence
            && (self.under_way > 1 || self.trouble.is_none())
        {
            let error = silence.describe(place);
            self.failed(error);
        }
    }

    fn failed(&mut self, error: String) {
        let failures = self.trouble.as_ref().map_or(0, |trouble| trouble.failures);
        self.trouble = Some(Trouble { failures: failures.saturating_add(1), error });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_first_request_and_a_timeout_does_not_end_it() {
        let mut answers = Answers::default();
        assert!(!answers.asking("there:", true));
        advance(Duration::from_secs(2)).await;
        answers.asked(Some("timed out".to_owned()), true);
        assert!(!answers.asking("there:", true));
        assert!(answers.asking("there:", true), "the one before is late");
        assert_eq!(answers.trouble().unwrap().error, "no answer from there: for 2.0 s: timed out");
        advance(Duration::from_secs(3)).await;
        answers.never_came("there:");
        assert_eq!(answers.trouble().unwrap().error, "no answer from there: for 5.0 s: timed out");
        answers.asked(None, true);
        answers.came();
        assert!(!answers.asking("there:", true), "the store has just answered");
        assert!(answers.trouble().is_none());
    }
}
