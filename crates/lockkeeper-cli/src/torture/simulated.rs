//! Simulated systems instead of real processes: exact to repeat, and fast.

use std::time::Instant;

use lockkeeper_testkit::simulation::Simulation;

use super::figures::Figures;
use super::window;
use crate::args::Torture;

/// Runs systems with consecutive seeds until the time is up or one shows a violation.
pub(super) fn run(args: &Torture, seed: u64) -> Figures {
    let started = Instant::now();
    let mut figures = Figures::new("simulation", "all", "simulated systems", seed);
    let systems = args.cycles.unwrap_or(usize::MAX);
    for seed in (seed..).take(systems) {
        if started.elapsed() >= args.seconds {
            break;
        }
        let outcome = Simulation { bug: args.mutant, ..Simulation::new(seed) }.run();
        figures.rounds += 1;
        figures.cycles += outcome.history.acquisitions.len();
        let refused = |access: &&lockkeeper_testkit::history::Access| !access.accepted;
        figures.refused += outcome.history.accesses.iter().filter(refused).count();
        if !outcome.violations.is_empty() {
            figures.seed = seed;
            figures.violations += outcome.violations.len();
            figures.windows = window::of_simulation(&outcome);
            break;
        }
    }
    let mutant = args.mutant.map_or(String::new(), |bug| format!(" --mutant {}", bug.name()));
    figures.repeat =
        format!("lockkeeper torture --simulate --cycles 1 --seed {}{mutant}", figures.seed);
    if figures.violations == 0 {
        figures.repeat = format!(
            "lockkeeper torture --simulate --cycles {} --seed {seed}{mutant}",
            figures.rounds
        );
    }
    figures.seconds = started.elapsed().as_secs_f64();
    figures
}
