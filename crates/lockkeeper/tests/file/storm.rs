//! Many processes, all kinds of locks, and everything that can happen to lock files at once.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockkeeper::engines::file::Files;
use lockkeeper_testkit::holder::{Program, main_of_test};
use lockkeeper_testkit::storm::{ClientFault, Fault, Kind, Plan, Storm};

use crate::{AREA, Mounted, Place, as_root, try_byte};

#[test]
fn helper_process() {
    main_of_test();
}

/// The lock files of a directory.
fn lock_files(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "lock")).collect()
}

/// All faults but a wrong wall clock: the fences of a lock file that was removed continue from the
/// clock, which all processes of a machine share.
fn faults() -> Vec<ClientFault> {
    ClientFault::ALL.into_iter().filter(|fault| *fault != ClientFault::Clock).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_stops_kills_full_disks_and_sweeps() {
    let scratch = tempfile::tempdir().unwrap();
    let mounted = as_root("a small file system").then(|| Mounted::new(scratch.path(), "size=1m"));
    let (small, directory) = (mounted.is_some(), scratch.path());
    let url = format!("file://{}", directory.display());
    let plan = Plan { faults: faults(), ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), std::slice::from_ref(&url), plan);
    let mut faults = [
        // Like a process that is stopped right now, which would hardly ever be met by chance.
        Fault::new("stopped while it decides", move || async move {
            for path in lock_files(directory) {
                let Ok(file) = File::options().read(true).write(true).open(path) else { continue };
                let epoch = file.metadata().unwrap().len().saturating_sub(1) / AREA;
                if (0..1000).any(|_| try_byte(&file, epoch as i64)) {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(4)).await;
                        drop(file);
                    });
                    break;
                }
            }
        }),
        Fault::new("disk full", move || async move {
            if small {
                let path = directory.join("filler");
                let filler = File::create(&path).unwrap();
                let mut at = 0;
                while filler.write_all_at(&[1; 4096], at).is_ok() {
                    at += 4096;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
                fs::remove_file(path).unwrap();
            }
        }),
        Fault::new("swept", move || async move {
            let long_ago = SystemTime::now() - Duration::from_secs(40 * 24 * 3600);
            for path in lock_files(directory).into_iter().chain([directory.join(".swept")]) {
                if let Ok(file) = File::options().write(true).open(path) {
                    file.set_modified(long_ago).unwrap();
                }
            }
            drop(Files::open(directory));
        }),
    ];
    storm.rage(&[], &mut faults).await;
    let judgement = storm.judge(&url).await;
    println!("{judgement}");
    assert!(judgement.is_clean(), "{judgement}");
}

/// A cleanup removes the files of locks in use. Then there may be two holders until the first one
/// is signalled; but fences rise all the same, and no waiter waits forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_removed_lock_files() {
    let place = Place::new();
    let directory = place.directory.path();
    let kinds = vec![Kind::Mutex, Kind::Reentrant, Kind::ReadWrite];
    let plan = Plan { kinds, faults: faults(), ..Plan::default() };
    let mut storm = Storm::start(&Program::test(module_path!()), &[place.url()], plan);
    let removed = Fault::new("lock file removed", move || async move {
        for path in lock_files(directory) {
            let _ = fs::remove_file(path);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    storm.rage(&[], &mut [removed]).await;
    let judgement = storm.judge(&place.url()).await;
    println!("{judgement}");
    assert!(judgement.grants() > 0 && judgement.violations.is_empty(), "{judgement}");
}
