//! What only lock files can suffer: being removed, replaced, damaged, linked, or left behind.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use lockkeeper::backend::Severity;
use lockkeeper::backends::file::Files;
use lockkeeper::{Client, Error, Loss, Owner};
use lockkeeper_testkit::holder::{Holder, Program};
use tempfile::TempDir;

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn url(&self) -> String {
        format!("file://{}", self.directory.path().display())
    }

    fn client(&self) -> Client {
        Client::new(Files::open(self.directory.path()).unwrap())
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("key.lock")
    }

    fn holder(&self, arguments: &[&str]) -> Holder {
        Holder::start(&Program::test(module_path!()), &self.url(), "key", arguments)
    }
}

#[test]
fn helper_process() {
    lockkeeper_testkit::holder::main_of_test();
}

#[tokio::test]
async fn a_file_kept_open_is_not_used_after_it_was_removed() {
    let place = Place::new();
    let (a, b) = (place.client(), place.client());
    let before = a.mutex("key").acquire().await.unwrap();
    let fence = before.fence();
    before.release().await.unwrap();
    fs::remove_file(place.file()).unwrap();
    let guard = b.mutex("key").acquire().await.unwrap();
    assert!(guard.fence() > fence, "the clock carries the order on");
    assert!(a.mutex("key").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn who_holds_a_file_that_was_removed_is_told() {
    let place = Place::new();
    let client = place.client();
    let guard = client.mutex("key").ttl(Duration::from_millis(300)).acquire().await.unwrap();
    fs::rename(place.file(), place.directory.path().join("elsewhere")).unwrap();
    assert_eq!(guard.lost().await, Loss::Gone);
    assert!(matches!(guard.check(), Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_never_a_free_lock() {
    let place = Place::new();
    fs::write(place.file(), "something else entirely").unwrap();
    let client = place.client();
    for result in
        [client.mutex("key").try_acquire().await, client.mutex("key").acquire().await.map(Some)]
    {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("not a lock file"), "{message}");
        assert!(message.contains(&place.file().display().to_string()), "{message}");
    }
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "something else entirely");
}

#[tokio::test]
async fn another_keys_file_under_this_keys_name_is_a_conflict() {
    let place = Place::new();
    let client = place.client();
    client.mutex("other").acquire().await.unwrap().release().await.unwrap();
    fs::rename(place.directory.path().join("other.lock"), place.file()).unwrap();
    let error = client.mutex("key").try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(error.to_string().contains("\"other\""), "{error}");
}

#[tokio::test]
async fn a_link_is_not_followed() {
    let place = Place::new();
    let elsewhere = place.directory.path().join("elsewhere");
    fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, place.file()).unwrap();
    assert!(matches!(place.client().mutex("key").acquire().await, Err(Error::Backend { .. })));
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "");
}

#[tokio::test]
async fn idle_files_are_removed_after_a_month_and_used_ones_are_not() {
    let place = Place::new();
    let client = place.client();
    let idle = client.mutex("idle").acquire().await.unwrap();
    let fence = idle.fence();
    idle.release().await.unwrap();
    let _held = client.mutex("key").acquire().await.unwrap();
    let file = |name: &str| place.directory.path().join(name);
    let long_ago = SystemTime::now() - Duration::from_secs(40 * 24 * 3600);
    for name in ["idle.lock", "key.lock", ".swept"] {
        fs::File::options().write(true).open(file(name)).unwrap().set_modified(long_ago).unwrap();
    }
    let later = place.client();
    assert!(!file("idle.lock").exists());
    assert!(file("key.lock").exists());
    assert!(later.mutex("key").try_acquire().await.unwrap().is_none());
    // The first client still has the removed file open.
    assert!(client.mutex("idle").acquire().await.unwrap().fence() > fence);
}

#[tokio::test]
async fn a_stopped_waiter_is_passed_and_finds_its_place_again() {
    let place = Place::new();
    let client = place.client();
    let guard = client.mutex("key").acquire().await.unwrap();
    let mut stopped = place.holder(&[]);
    stopped.said("asking").await;
    while client.inspect("key").await.unwrap().unwrap().waiters.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    stopped.stop();
    guard.release().await.unwrap();
    let passed = client.mutex("key").acquire_within(Duration::from_secs(20)).await.unwrap();
    stopped.resume();
    passed.release().await.unwrap();
    stopped.granted().await;
    assert_eq!(stopped.ask("release").await, "Released");
}

#[tokio::test]
async fn an_owner_that_enters_through_another_client_keeps_its_fence() {
    let place = Place::new();
    let (client, other, owner) = (place.client(), place.client(), Owner::new());
    let outer = client.mutex("key").owner(&owner).acquire().await.unwrap();
    let inner = other.mutex("key").owner(&owner).acquire().await.unwrap();
    assert_eq!(inner.fence(), outer.fence());
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_says_which() {
    let place = Place::new();
    let file = place.directory.path().join("file");
    fs::write(&file, "").unwrap();
    let message = Files::open(file.join("locks")).unwrap_err().to_string();
    assert!(message.contains("file/locks"), "{message}");
}

#[tokio::test]
async fn a_healthy_directory_gets_a_clean_bill() {
    let place = Place::new();
    let findings = place.client().doctor().await.unwrap();
    assert!(findings.len() >= 2);
    assert!(findings.iter().all(|finding| finding.severity == Severity::Fine), "{findings:?}");
    assert_eq!(
        fs::read_dir(place.directory.path()).unwrap().count(),
        1,
        "only the sweeper's stamp is left"
    );
}
