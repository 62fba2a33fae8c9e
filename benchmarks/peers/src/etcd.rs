//! The lock service of the etcd server, and the least that a lock takes: a put with a lease and a delete.

use std::time::Duration;

use lockkeeper_benchmarks::{Contender, Failure, Order, Section};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::contenders;

/// Longer than any run, so that nothing needs to be kept alive.
const LEASE: i64 = 600;

#[derive(Clone, PartialEq, prost::Message)]
struct GrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockResponse {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

/// Also what a delete of one key needs.
#[derive(Clone, PartialEq, prost::Message)]
struct KeyRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Ignored {}

pub(crate) struct Service {
    channel: Channel,
    key: String,
    lease: i64,
    floor: bool,
}

pub(crate) async fn connect(order: &Order) -> Result<Vec<Service>, Failure> {
    let mut all = Vec::new();
    for _ in 0..order.clients {
        let endpoint = Endpoint::from_shared(format!("http://{}", order.address))?;
        let channel = endpoint.connect_timeout(Duration::from_secs(30)).connect().await?;
        for mut one in contenders(order, &channel, |channel, key| Service {
            channel,
            key,
            lease: 0,
            floor: order.client == "put",
        }) {
            // A lock of the service belongs to a lease: who shares one shares the lock.
            let grant = GrantRequest { ttl: LEASE };
            let GrantResponse { id } = one.call("/etcdserverpb.Lease/LeaseGrant", grant).await?;
            one.lease = id;
            all.push(one);
        }
    }
    Ok(all)
}

impl Service {
    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(tonic::Request::new(request), path, codec).await?.into_inner())
    }
}

impl Contender for Service {
    async fn visit(&mut self, section: &mut Section) -> Result<(), Failure> {
        let (name, lease) = (self.key.clone().into_bytes(), self.lease);
        if self.floor {
            let put = PutRequest { key: name.clone(), value: Vec::new(), lease };
            let Ignored {} = self.call("/etcdserverpb.KV/Put", put).await?;
            section.enter().await?;
            let delete = KeyRequest { key: name };
            let Ignored {} = self.call("/etcdserverpb.KV/DeleteRange", delete).await?;
            return Ok(());
        }
        let lock = LockRequest { name, lease };
        let LockResponse { key } = self.call("/v3lockpb.Lock/Lock", lock).await?;
        section.enter().await?;
        let Ignored {} = self.call("/v3lockpb.Lock/Unlock", KeyRequest { key }).await?;
        Ok(())
    }
}
