//! The source of all faults.

use std::time::Duration;

use lockkeeper::layers::faults::Plan;
use tokio::time::sleep;

use super::store::Store;
use super::{KEYS, Way};
use crate::fault_link::Call;

#[derive(Debug)]
pub(super) struct Nemesis {
    pub(super) ways: Vec<Way>,
    pub(super) store: Store,
    pub(super) random: fastrand::Rng,
}

impl Nemesis {
    /// Injects faults for a while, then repairs everything.
    pub(super) async fn rage(mut self) {
        for _ in 0..self.random.usize(0..20) {
            sleep(Duration::from_millis(self.random.u64(10..1_500))).await;
            let way = &self.ways[self.random.usize(..self.ways.len())];
            match self.random.u32(0..10) {
                0 | 1 => way.link.cut_all(true),
                2 => way.link.cut(Call::Renew, true),
                3 => way.link.swallow(Call::Attempt, self.random.usize(1..3)),
                4 => way.link.swallow(Call::Release, self.random.usize(1..3)),
                5 => self.store.evict(KEYS[self.random.usize(..KEYS.len())]).await,
                6 | 7 => way.faults.set(plan(&mut self.random)),
                _ => self.heal(),
            }
        }
        sleep(Duration::from_millis(self.random.u64(0..3_000))).await;
        self.heal();
    }

    fn heal(&self) {
        for way in &self.ways {
            way.link.cut_all(false);
            way.faults.set(way.calm);
        }
    }
}

fn plan(random: &mut fastrand::Rng) -> Plan {
    // Usually a little of everything, sometimes a lot of one thing.
    let mut rate = || if random.u32(0..4) == 0 { random.f64() * 0.7 } else { random.f64() * 0.1 };
    let [delay, fail, lose_reply, hang] = [(); 4].map(|()| rate());
    let longest = Duration::from_millis(random.u64(1..300));
    Plan::NONE
        .delay(delay * 2.0)
        .fail(fail)
        .lose_reply(lose_reply)
        .hang(hang / 4.0)
        .longest(longest)
}
