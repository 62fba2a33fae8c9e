//! Files that others can reach: nothing is replaced that should stay, and no planted link is followed.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Command, Output};

use crate::place::Place;

/// Another user than the one that runs the tests.
const STRANGER: u32 = 12_345;

/// A shell script in which `$0` is the command.
fn shell(place: &Place, script: &str) -> Output {
    let ours = place.lockkeeper("");
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(ours.get_program()).current_dir(place.path(""));
    for (name, value) in ours.get_envs() {
        value.map(|value| shell.env(name, value));
    }
    shell.output().unwrap()
}

#[test]
fn a_status_file_that_is_one_of_our_own_descriptors_is_written_to() {
    let place = Place::new();
    symlink("/dev/stdout", place.path("link")).unwrap();
    for target in ["/dev/stdout", "/dev/stderr", "/dev/fd/3", "/proc/self/fd/1", "link"] {
        for how in [">>", ">"] {
            let log = place.path("log");
            fs::write(&log, "yesterday\n").unwrap();
            let before = fs::metadata(&log).unwrap().ino();
            let run = format!("\"$0\" run -q --status-file {target} k -- echo worked");
            let done = shell(&place, &format!("{run} 3{how}log >&3 2>&3"));
            assert!(done.status.success(), "{done:?}");
            let told = fs::read_to_string(&log).unwrap();
            let expected = if how == ">>" { "yesterday\nworked\n{" } else { "worked\n{" };
            assert!(told.starts_with(expected), "{target} {how}: {told}");
            assert!(told.contains("\"outcome\":\"done\""), "{target} {how}: {told}");
            assert_eq!(fs::metadata(&log).unwrap().ino(), before, "{target} {how}: replaced");
        }
    }
    let status = place.lockkeeper("run --status-file /dev/fd/77 k true").output().unwrap();
    assert_eq!(status.status.code(), Some(125), "a descriptor that is not open is no file to make");
}

#[test]
fn a_status_file_does_not_follow_a_planted_link() {
    let place = Place::new();
    fs::write(place.path("precious"), "precious").unwrap();
    // Named like the process that is going to run, in a directory that others can write into.
    let script = "ln -s precious status.$$; ln -s precious .status.$$; \
                  exec \"$0\" run --status-file status k -- true";
    let done = shell(&place, script);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(fs::read_to_string(place.path("precious")).unwrap(), "precious");
    assert!(!fs::symlink_metadata(place.path("status")).unwrap().is_symlink());
    assert_eq!(place.status("status")["outcome"], "done");
    let left = fs::read_dir(place.path("")).unwrap().flatten().filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.contains("status") && !entry.file_type().unwrap().is_symlink()
    });
    assert_eq!(left.count(), 1, "nothing else is left");
}

#[test]
fn a_link_of_another_user_is_no_status_file() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    fs::write(place.path("precious"), "precious").unwrap();
    let link = place.path("status");
    symlink(place.path("precious"), &link).unwrap();
    // Our own link is followed, and stays.
    place.run("run --status-file status k true").exits(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(place.path("precious")).unwrap().contains("done"));
    fs::write(place.path("precious"), "precious").unwrap();
    std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
    place.run("run --status-file status k true").exits(125).says("a link of another user");
    assert_eq!(fs::read_to_string(place.path("precious")).unwrap(), "precious");
}

#[test]
fn a_lock_directory_of_another_user_is_refused_with_a_way_that_works() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    place.run("run k true").exits(0);
    chown(place.path("locks"), Some(STRANGER), None).unwrap();
    place.run("run k true").exits(64).says("belongs to another user").says("-m 2770");
}

/// The members of a group have other groups too, and their own files belong to those.
#[test]
fn a_directory_for_a_group_is_shared_by_its_members() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    for mode in [0o770, 0o2770] {
        let place = Place::new();
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let shared = place.path("shared");
        fs::create_dir(&shared).unwrap();
        chown(&shared, Some(0), Some(STRANGER)).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
        for user in ["20001", "20002"] {
            let groups = STRANGER.to_string();
            let mut member = Command::new("setpriv");
            member.args(["--reuid", user, "--regid", user, "--groups", &groups, "--"]);
            member.arg(place.lockkeeper("").get_program()).args(["run", "--url"]);
            member.arg(format!("file://{}", shared.display())).args(["k", "true"]);
            let done = member.env("HOME", "/nonexistent").output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(0), "{mode:o}, {user}: {said}");
        }
    }
}

#[test]
fn the_doctor_sees_that_nothing_can_be_written() {
    let place = Place::new();
    // As on a full disk, but without one.
    let done = shell(&place, "trap '' XFSZ; ulimit -f 0; exec \"$0\" doctor");
    let told = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{told}");
    assert!(told.contains("problem: cannot use lock files in"), "{told}");
}

#[test]
fn a_user_without_a_home_and_a_world_writable_directory_get_advice_that_works() {
    let place = Place::new();
    let mut command = place.lockkeeper("run k true");
    command.env_remove("HOME").env("LOCKKEEPER_URL", "file:");
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(64), "{said}");
    works(&place, &said);

    let mut command = place.lockkeeper("run k true");
    command.env("HOME", "/proc/nonexistent").env("LOCKKEEPER_URL", "file:");
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(69), "{said}");
    works(&place, &said);

    fs::create_dir(place.path("everyone")).unwrap();
    fs::set_permissions(place.path("everyone"), fs::Permissions::from_mode(0o1777)).unwrap();
    let url = format!("file://{}", place.path("everyone").display());
    let said = place.run(&format!("run --url {url} k true")).exits(64).stderr;
    assert!(said.contains("install -d -g GROUP -m 2770"), "{said}");
    works(&place, &said);
}

/// Checks that the URL that a message names can be used.
fn works(place: &Place, said: &str) {
    let url = said.split([' ', ',']).find(|word| word.starts_with("file:///")).unwrap();
    place.run(&format!("run --url {url} k -- echo in")).exits(0).prints("in");
    let directory = url.strip_prefix("file://").unwrap();
    assert_eq!(fs::metadata(directory).unwrap().mode() & 0o777, 0o700, "{directory}");
}

#[test]
fn a_password_that_others_can_see_is_warned_about() {
    let place = Place::new();
    let url = "redis://me:canary@127.0.0.1:1";
    for words in [
        format!("show --url {url} k"),
        format!("run --url {url} k true"),
        format!("doctor {url}"),
        format!("bench {url}"),
    ] {
        let done = place
            .run(&words)
            .exits(69)
            .says("password in the URL is visible")
            .says("--password-file");
        assert!(!done.stderr.contains("canary"), "{}", done.stderr);
    }
    let quiet = place.run(&format!("run -q --url {url} k true")).exits(69).stderr;
    assert!(!quiet.contains("visible"), "{quiet}");
    // Not on a command line, so not visible.
    let mut command = place.lockkeeper("show k");
    let said = command.env("LOCKKEEPER_URL", url).output().unwrap().stderr;
    assert!(!String::from_utf8_lossy(&said).contains("visible"));

    let secret = place.path("secret");
    fs::write(&secret, "canary\n").unwrap();
    let words = format!("show --url redis://127.0.0.1:1 --password-file {} k", secret.display());
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    place.run(&words).exits(69).says("everyone can read").says("chmod 600");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(!place.run(&words).exits(69).stderr.contains("can read"));
}

#[test]
fn the_directory_of_handles_is_private() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    // As with `sudo -E`: the variable names a directory of the user who called.
    chown(place.path("run"), Some(STRANGER), None).unwrap();
    let handle = place.run("acquire k").exits(0).stdout;
    assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 0);
    place.run(&format!("release {handle}")).exits(0);
}

#[test]
fn without_proc_the_message_names_the_file_that_is_missing() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let bare = "mount --make-rprivate /; umount -l /proc; \"$0\" ";
    for verb in ["acquire k", "run k -- true", "acquire --pid 1 k"] {
        let script = format!("exec unshare -m sh -c '{bare} {verb}' \"$0\"");
        let done = shell(&place, &script);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(125), "{verb}: {said}");
        assert!(said.contains("/proc"), "{verb}: {said}");
    }
    assert!(File::open("/proc/self/stat").is_ok(), "only the others were without");
}

#[test]
fn a_descriptor_that_is_not_open_is_said_to_be_that() {
    let place = Place::new();
    place
        .run("run --status-file /dev/fd/9 k true")
        .exits(125)
        .says("descriptor 9 is not open; open it, for instance with 9>status.json");
}
