//! A client whose requests to `memory:` are counted and can fail.

use std::sync::Arc;

use lockkeeper::Client;
use lockkeeper::testing::Memory;
use lockkeeper_testkit::fault_link::FaultLink;

pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) link: FaultLink,
    pub(crate) client: Client,
}

impl World {
    pub(crate) fn new() -> Self {
        let memory = Memory::new();
        let link = FaultLink::new(Arc::new(memory.clone()));
        Self { memory, client: Client::new(link.clone()), link }
    }
}
