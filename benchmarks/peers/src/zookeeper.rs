//! The lock recipe of the crate zookeeper-client, and the least that a lock takes: a node created and deleted.

use std::time::Duration;

use lockkeeper_benchmarks::{Contender, Failure, Order, Section};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use crate::contenders;

pub(crate) struct Recipe {
    client: Client,
    path: String,
    floor: bool,
}

pub(crate) async fn connect(order: &Order) -> Result<Vec<Recipe>, Failure> {
    let mut all = Vec::new();
    for _ in 0..order.clients {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(30));
        let client = connector.connect(&order.address).await?;
        let floor = order.client == "create";
        all.extend(contenders(order, &client, |client, key| Recipe {
            client,
            path: format!("/{key}"),
            floor,
        }));
    }
    Ok(all)
}

impl Contender for Recipe {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        if self.floor {
            let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
            self.client.create(&self.path, &[], &options).await?;
            section.enter().await?;
            return Ok(self.client.delete(&self.path, None).await?);
        }
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
        let prefix = LockPrefix::new_curator(&self.path, "lock-")?;
        let lock = self.client.lock(prefix, &[], options).await?;
        section.enter().await?;
        // The only way to release it; the deletion is sent before anything that this client sends later.
        drop(lock);
        Ok(())
    }
}
