//! Every case of the test kit against lock files.

use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;

conformance!(file, {
    let dir = tempfile::tempdir().expect("there is room for a temporary directory");
    let url = format!("file://{}", dir.path().join("locks").display());
    let (here, there) = (dir.path().join("locks"), dir.path().join("locks"));
    Store::at(url).keep(dir).data(
        "a file that is not ours",
        move |key| {
            std::fs::create_dir_all(&here).unwrap();
            std::fs::write(here.join(format!("{key}.lock")), "4711\n").unwrap();
            std::future::ready(())
        },
        move |key| {
            let file = std::fs::read_to_string(there.join(format!("{key}.lock")));
            std::future::ready(file.unwrap())
        },
    )
});
