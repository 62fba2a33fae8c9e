//! Every case of the test kit against `memory:`.

use lockkeeper::engines::memory::Memory;
use lockkeeper_testkit::conformance;
use lockkeeper_testkit::conformance::Store;

conformance!(memory, {
    let name = format!("memory:conformance-{}", fastrand::u64(..));
    Store::of(Memory::new()).url(name)
});
