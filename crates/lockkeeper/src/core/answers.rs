//! What became of the renewals of one hold: which are unanswered, which failed, and what is known of why.

use tokio::time::Instant;

use crate::guard::Trouble;

/// The answers to the renewals of a hold.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// How many renewals are under way.
    under_way: u32,
    /// Since when none of those has been answered.
    silence: Option<Silence>,
    trouble: Option<Trouble>,
}

/// Renewals without an answer.
#[derive(Debug)]
struct Silence {
    /// When the first of them left.
    since: Instant,
    /// What is known of the reason.
    cause: Option<String>,
}

impl Silence {
    /// What to tell people about it at this moment.
    fn describe(&self, place: &str) -> String {
        let seconds = self.since.elapsed().as_secs_f64();
        let cause = self.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
        format!("no answer from {place} for {seconds:.1} s{cause}")
    }
}

impl Answers {
    /// The renewals that failed since the last one that did not.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// A renewal leaves. True if another one is still under way, which takes too long then, and is
    /// counted as failed if it `counts`.
    pub(super) fn asking(&mut self, place: &str, counts: bool) -> bool {
        self.under_way += 1;
        let late = self.under_way > 1;
        let silence =
            self.silence.get_or_insert_with(|| Silence { since: Instant::now(), cause: None });
        if late && counts {
            let error = silence.describe(place);
            self.failed(error);
        }
        late
    }

    /// A renewal came back, without an answer if there is an error.
    pub(super) fn asked(&mut self, error: Option<String>, counts: bool) {
        self.under_way -= 1;
        if self.under_way == 0 {
            self.silence = None;
        }
        let Some(error) = error else { return };
        if let Some(silence) = &mut self.silence {
            silence.cause = Some(error.clone());
        }
        if counts {
            self.failed(error);
        }
    }

    /// The engine found out why no answer comes.
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

    /// The lease ran out: what led to it, counted to its end.
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
