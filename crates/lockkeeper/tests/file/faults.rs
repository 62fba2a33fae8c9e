//! What only lock files can suffer: being removed, replaced, damaged, linked, or left behind.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use lockkeeper::engine::Severity;
use lockkeeper::engines::file::Files;
use lockkeeper::{Client, Error, Loss, Owner};

use crate::{AREA, Mounted, Place, as_root, try_byte};

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
async fn the_holder_of_a_removed_file_detects_the_loss() {
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
    symlink(&elsewhere, place.file()).unwrap();
    assert!(matches!(place.client().mutex("key").acquire().await, Err(Error::Engine { .. })));
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
async fn a_directory_that_cannot_be_created_is_named() {
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

/// Locks a byte of a file, like a process that decides, and keeps it: a process that was stopped
/// meanwhile.
fn stopped_with(path: &Path, byte: i64) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    assert!(try_byte(&file, byte), "nobody decides right now");
    file
}

/// Long enough for a busy machine, and shorter than the ten seconds after which a call is
/// abandoned.
const SOON: Duration = Duration::from_secs(9);

#[tokio::test]
async fn a_process_that_is_stopped_while_it_decides_blocks_no_other() {
    let place = Place::new();
    let (a, b) = (place.client(), place.client());
    let held = a.mutex("key").acquire().await.unwrap();
    let fence = held.fence();
    let waiter = {
        let waiting = b.mutex("key").acquire();
        tokio::spawn(async move { waiting.await.unwrap() })
    };
    while a.inspect("key").await.unwrap().unwrap().waiters.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    // What it read before it was stopped, and will write when it resumes.
    let stopped = stopped_with(&place.file(), 0);
    let before = fs::read(place.file()).unwrap();

    // One arrives, one leaves, one is granted: nothing is forgotten, and nothing is granted twice.
    let c = place.client();
    assert!(c.mutex("key").try_acquire().await.unwrap().is_none(), "it is held");
    assert_eq!(a.inspect("key").await.unwrap().unwrap().waiters.unwrap().len(), 1);
    held.release().await.unwrap();
    let second = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(second.fence() > fence);
    stopped.write_all_at(&before[896..], 896).unwrap();
    second.check().unwrap();
    assert!(c.mutex("key").try_acquire().await.unwrap().is_none(), "it is held");
    assert_eq!(c.inspect("key").await.unwrap().unwrap().holders.len(), 1);
    let last = second.fence();
    second.release().await.unwrap();
    drop(stopped);
    assert!(c.mutex("key").acquire_within(SOON).await.unwrap().fence() > last);
}

#[tokio::test]
async fn processes_that_continue_without_a_stopped_one_may_be_stopped_too() {
    let place = Place::new();
    let client = place.client();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let _one = stopped_with(&place.file(), 0);
    let _two = stopped_with(&place.file(), 1);
    // The second one was stopped after it announced the epoch, and before it wrote the records.
    _two.write_all_at(b"\n", AREA).unwrap();
    let guard = client.mutex("key").acquire_within(SOON).await.unwrap();
    assert!(place.client().mutex("key").try_acquire().await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), lockkeeper::Release::Released);
}

#[tokio::test]
async fn a_process_that_is_stopped_before_it_wrote_anything_blocks_no_other() {
    let place = Place::new();
    File::create(place.file()).unwrap();
    let stopped = stopped_with(&place.file(), 0);
    let (client, other) = (place.client(), place.client());
    let guard = client.mutex("key").acquire_within(SOON).await.unwrap();
    assert!(other.mutex("key").try_acquire().await.unwrap().is_none(), "it is held");
    assert_eq!(other.inspect("key").await.unwrap().unwrap().holders.len(), 1);
    // It resumes, and finds that others went on.
    stopped.write_all_at(b"lockkeeper lock file 1", 0).unwrap();
    drop(stopped);
    let fence = guard.fence();
    guard.release().await.unwrap();
    assert!(other.mutex("key").acquire_within(SOON).await.unwrap().fence() > fence);
}

#[tokio::test]
async fn a_lock_can_be_broken_while_a_process_is_stopped() {
    let place = Place::new();
    let (a, b) = (place.client(), place.client());
    let held = a.mutex("key").ttl(Duration::from_millis(300)).acquire().await.unwrap();
    let _stopped = stopped_with(&place.file(), 0);
    let broken = tokio::time::timeout(SOON, b.break_lock("key")).await.unwrap().unwrap();
    assert_eq!(broken.len(), 1);
    assert!(matches!(held.lost().await, Loss::Broken { .. }));
    assert_eq!(held.release().await.unwrap(), lockkeeper::Release::AlreadyLost);
    drop(b.mutex("key").acquire_within(SOON).await.unwrap());
}

#[tokio::test]
async fn links_that_were_planted_are_not_followed() {
    let place = Place::new();
    let directory = place.directory.path();
    let precious = directory.join("precious");
    fs::write(&precious, "precious").unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(40 * 24 * 3600);
    File::options().write(true).open(&precious).unwrap().set_modified(long_ago).unwrap();
    let before = fs::metadata(&precious).unwrap();
    for plant in [
        |from: &Path, to: &Path| symlink(from, to).unwrap(),
        |from: &Path, to: &Path| fs::hard_link(from, to).unwrap(),
    ] {
        for name in [".swept", "key.lock"] {
            let _ = fs::remove_file(directory.join(name));
            plant(&precious, &directory.join(name));
        }
        let client = place.client();
        assert!(client.mutex("key").try_acquire().await.is_err());
        assert!(client.inspect("key").await.is_err());
        assert!(client.break_lock("key").await.is_err());
        let _ = client.list("").await;
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        let after = fs::metadata(&precious).unwrap();
        assert_eq!((after.mtime(), after.mode()), (before.mtime(), before.mode()));
    }
}

/// Another user, for tests that run as root; other users cannot switch to one.
const STRANGER: u32 = 12_345;

#[tokio::test]
async fn a_directory_of_another_user_is_refused_and_the_message_says_how_to_share() {
    if !as_root("a directory of another user") {
        return;
    }
    let place = Place::new();
    std::os::unix::fs::chown(place.directory.path(), Some(STRANGER), None).unwrap();
    let refused = Files::open(place.directory.path()).unwrap_err();
    assert!(matches!(refused, Error::Config(_)), "{refused}");
    let message = refused.to_string();
    assert!(message.contains("belongs to another user (uid 12345)"), "{message}");
    assert!(message.contains("install -d -g GROUP -m 2770"), "{message}");
    // A link of another user that leads to a directory of ours is no better.
    let link = place.directory.path().join("link");
    let own = tempfile::tempdir().unwrap();
    symlink(own.path(), &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
    assert!(Files::open(&link).is_err());
}

#[tokio::test]
async fn a_directory_for_a_group_is_shared_with_or_without_its_group_bit() {
    if !as_root("two users of a group") {
        return;
    }
    for mode in [0o770, 0o2770] {
        let place = Place::new();
        let directory = place.directory.path();
        std::os::unix::fs::chown(directory, Some(0), Some(STRANGER)).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        // The group is not the first one of either user.
        let user = |uid: u32, test: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
            command.args(["--groups", &STRANGER.to_string(), "--"]);
            command.arg(std::env::current_exe().unwrap()).args(["--exact", test]);
            command.args(["--nocapture"]).env("LOCKKEEPER_TEST_URL", place.url());
            let done = command.output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            assert!(done.status.success(), "{mode:o} {uid}: {said}");
        };
        user(20_001, "faults::takes_a_lock_where_it_is_told_to");
        user(20_002, "faults::takes_a_lock_where_it_is_told_to");
    }
}

/// The test above runs this one again as another user, and passes the place; on its own it does
/// nothing.
#[tokio::test]
async fn takes_a_lock_where_it_is_told_to() {
    let Ok(url) = std::env::var("LOCKKEEPER_TEST_URL") else { return };
    let client = Client::connect(&url).await.unwrap();
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let findings = client.doctor().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Fine), "{findings:?}");
}

#[tokio::test]
async fn a_full_disk_is_found_and_nothing_stays_taken_by_it() {
    if !as_root("a small file system") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(scratch.path(), "size=64k");
    let client = Client::new(Files::open(&mounted.at).unwrap());
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let filler = File::create(mounted.at.join("filler")).unwrap();
    while filler.write_all_at(&[1; 4096], filler.metadata().unwrap().len()).is_ok() {}

    let findings = client.doctor().await.unwrap();
    let worst = findings.iter().find(|finding| finding.severity == Severity::Problem).unwrap();
    assert!(worst.what.contains("No space left"), "{worst:?}");
    assert!(worst.advice.contains("make room"), "{worst:?}");
    // A key that was used before still works, a new one cannot be locked.
    client.mutex("key").acquire().await.unwrap().release().await.unwrap();
    let message = client.mutex("new").try_acquire().await.unwrap_err().to_string();
    assert!(message.contains("No space left"), "{message}");
    // A long queue of waiters does not fit either. A claim that failed must not block others.
    let guard = client.mutex("key").acquire().await.unwrap();
    let others: Vec<_> = (0..12).map(|_| Client::new(Files::open(&mounted.at).unwrap())).collect();
    for other in &others {
        let _ = other.mutex("key").acquire_within(Duration::from_millis(20)).await;
    }
    guard.release().await.unwrap();
    drop(filler);
    fs::remove_file(mounted.at.join("filler")).unwrap();
    for other in &others {
        for key in ["key", "new"] {
            let guard = other.mutex(key).acquire_within(SOON).await.unwrap();
            guard.release().await.unwrap();
        }
    }
}
