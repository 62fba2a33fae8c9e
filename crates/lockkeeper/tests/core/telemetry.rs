//! The metrics have the names that the documentation promises, and never carry a key.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::Client;
use lockkeeper::engines::memory::Memory;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[test]
fn every_promised_metric_is_there_with_its_labels() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(live_through_everything());
    });
    let mut seen = BTreeSet::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels: Vec<_> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        assert!(!labels.iter().any(|label| label.contains("canary")), "{labels:?}");
        let used = match value {
            DebugValue::Counter(count) => count > 0,
            DebugValue::Gauge(_) => true,
            DebugValue::Histogram(values) => !values.is_empty(),
        };
        if used {
            seen.insert(format!("{}{{{}}}", key.name(), labels.join(",")));
        }
    }
    for promised in [
        "lockkeeper_acquire_seconds{engine=memory,kind=mutex,outcome=acquired}",
        "lockkeeper_acquire_seconds{engine=memory,kind=mutex,outcome=busy}",
        "lockkeeper_acquire_seconds{engine=memory,kind=mutex,outcome=timeout}",
        "lockkeeper_acquire_seconds{engine=memory,kind=mutex,outcome=cancelled}",
        "lockkeeper_acquire_seconds{engine=memory,kind=semaphore,outcome=error}",
        "lockkeeper_hold_seconds{engine=memory,kind=mutex,outcome=released}",
        "lockkeeper_hold_seconds{engine=memory,kind=mutex,outcome=lost}",
        "lockkeeper_held{engine=memory,kind=mutex}",
        "lockkeeper_waiting{engine=memory,kind=mutex}",
        "lockkeeper_renewals_total{engine=memory,outcome=renewed}",
        "lockkeeper_renewals_total{engine=memory,outcome=gone}",
        "lockkeeper_renewal_slack_seconds{engine=memory}",
        "lockkeeper_lost_total{engine=memory,kind=mutex,reason=gone}",
        "lockkeeper_engine_call_seconds{engine=memory,call=attempt,outcome=ok}",
        "lockkeeper_engine_call_seconds{engine=memory,call=renew,outcome=ok}",
        "lockkeeper_engine_call_seconds{engine=memory,call=release,outcome=ok}",
    ] {
        assert!(seen.contains(promised), "{promised} is missing from {seen:#?}");
    }
}

async fn live_through_everything() {
    let memory = Memory::new();
    let (client, other) = (Client::new(memory.clone()), Client::new(memory.clone()));
    let second = Duration::from_secs(1);
    let guard = client.mutex("canary").ttl(9 * second).acquire().await.unwrap();
    assert!(other.mutex("canary").try_acquire().await.unwrap().is_none());
    assert!(other.mutex("canary").acquire_within(second).await.is_err());
    assert!(tokio::time::timeout(second, other.mutex("canary").acquire()).await.is_err());
    assert!(other.semaphore("canary", 2).acquire().await.is_err());
    tokio::time::sleep(10 * second).await;
    memory.expire("canary");
    guard.lost().await;
    drop(guard);
    client.mutex("canary").acquire().await.unwrap().release().await.unwrap();
}
