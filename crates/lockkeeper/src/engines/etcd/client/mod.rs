//! A client of one member: the calls of etcd's API that locks need, over gRPC.
//!
//! Every failure is a [`Status`]. One that was created here, because no connection could be made or
//! a stream ended, is `Unavailable`: the member did not answer.

mod messages;
mod operations;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

pub(crate) use messages::*;

/// Pings on a connection in use. Servers treat more than one in five seconds as an attack.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// The timeout of connecting.
const CONNECT: Duration = Duration::from_secs(2);

/// The longest answer in bytes: a queue of a hundred thousand entries, or as many permits.
const LONGEST: usize = 64 << 20;

/// How many requests on a stream may wait for the connection.
const ORDERS: usize = 100;

/// How to reach the members of a cluster.
#[derive(Clone, Default)]
pub(super) struct Access {
    pub(super) user: Option<User>,
    pub(super) tls: Option<ClientTlsConfig>,
}

/// A user with its password.
#[derive(Clone)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

/// A connection to one member, made on demand and again when it broke. Clones share it.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
    login: Option<Arc<Login>>,
}

/// A user, and the token that the cluster gave it.
struct Login {
    user: User,
    token: Mutex<Option<Token>>,
    /// Locked by the one call that requests a token.
    asking: AsyncMutex<()>,
}

type Token = MetadataValue<Ascii>;

/// A stream of requests to a member, and of its replies.
pub(super) struct Exchange<Q, A> {
    pub(super) orders: mpsc::Sender<Q>,
    pub(super) replies: Streaming<A>,
}

impl Client {
    /// A client of the member at an address such as `http://host:2379`.
    pub(super) fn new(address: &str, access: &Access) -> Result<Self, Status> {
        let unusable = |error: tonic::transport::Error| Status::invalid_argument(in_words(&error));
        let mut endpoint = Endpoint::from_shared(address.to_owned())
            .map_err(unusable)?
            .http2_keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .keep_alive_while_idle(false)
            .connect_timeout(CONNECT);
        if let Some(tls) = &access.tls {
            endpoint = endpoint.tls_config(tls.clone()).map_err(unusable)?;
        }
        let login = access.user.clone().map(|user| {
            Arc::new(Login { user, token: Mutex::default(), asking: AsyncMutex::default() })
        });
        Ok(Self { channel: endpoint.connect_lazy(), login })
    }

    pub(super) async fn range(self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    pub(super) async fn txn(self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    pub(super) async fn delete(self, key: Vec<u8>) -> Result<DeleteRangeResponse, Status> {
        self.call("/etcdserverpb.KV/DeleteRange", DeleteRangeRequest { key }).await
    }

    pub(super) async fn lease_grant(self, id: i64, ttl: i64) -> Result<LeaseGrantResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl, id }).await
    }

    pub(super) async fn lease_revoke(self, id: i64) -> Result<LeaseRevokeResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest { id }).await
    }

    pub(super) async fn time_to_live(self, id: i64) -> Result<LeaseTimeToLiveResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseTimeToLive", LeaseTimeToLiveRequest { id }).await
    }

    pub(super) async fn status(self) -> Result<StatusResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    pub(super) async fn alarms(self) -> Result<AlarmResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Alarm", AlarmRequest {}).await
    }

    /// Opens a stream that keeps leases alive, with a first request on it: servers answer only
    /// then.
    pub(super) async fn keep_alive(
        self,
        first: LeaseKeepAliveRequest,
    ) -> Result<Exchange<LeaseKeepAliveRequest, LeaseKeepAliveResponse>, Status> {
        self.exchange("/etcdserverpb.Lease/LeaseKeepAlive", first).await
    }

    /// Opens a stream of watches, with a first request on it.
    pub(super) async fn watch(
        self,
        first: WatchRequest,
    ) -> Result<Exchange<WatchRequest, WatchResponse>, Status> {
        self.exchange("/etcdserverpb.Watch/Watch", first).await
    }

    /// One call. A token that has become invalid is replaced, once.
    pub(super) async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token(None).await?;
        match self.call_as(token.clone(), path, message.clone()).await {
            Err(status) if is_logged_out(&status, &token) => {
                let token = self.token(token).await?;
                self.call_as(token, path, message).await
            }
            answer => answer,
        }
    }

    async fn call_as<Q, A>(
        &self,
        token: Option<Token>,
        path: &'static str,
        message: Q,
    ) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let request = signed(Request::new(message), token);
        let path = PathAndQuery::from_static(path);
        Ok(grpc.unary(request, path, ProstCodec::default()).await?.into_inner())
    }

    /// Opens a stream in both directions.
    async fn exchange<Q, A>(&self, path: &'static str, first: Q) -> Result<Exchange<Q, A>, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token(None).await?;
        match self.exchange_as(token.clone(), path, first.clone()).await {
            Err(status) if is_logged_out(&status, &token) => {
                let token = self.token(token).await?;
                self.exchange_as(token, path, first).await
            }
            opened => opened,
        }
    }

    async fn exchange_as<Q, A>(
        &self,
        token: Option<Token>,
        path: &'static str,
        first: Q,
    ) -> Result<Exchange<Q, A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc().await?;
        let (orders, queue) = mpsc::channel(ORDERS);
        orders.try_send(first).expect("there is room for the first one");
        let request = signed(ReceiverStream::new(queue).into_streaming_request(), token);
        let path = PathAndQuery::from_static(path);
        let replies = grpc.streaming(request, path, ProstCodec::default()).await?.into_inner();
        Ok(Exchange { orders, replies })
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LONGEST);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    /// The token of our user, if there is one; a new one if the given one has become invalid.
    async fn token(&self, stale: Option<Token>) -> Result<Option<Token>, Status> {
        let Some(login) = &self.login else { return Ok(None) };
        let usable =
            |login: &Login| login.token().clone().filter(|token| Some(token) != stale.as_ref());
        if let Some(token) = usable(login) {
            return Ok(Some(token));
        }
        let _asking = login.asking.lock().await;
        if let Some(token) = usable(login) {
            return Ok(Some(token));
        }
        let User { name, password } = login.user.clone();
        let path = "/etcdserverpb.Auth/Authenticate";
        let request = AuthenticateRequest { name, password };
        let answer: AuthenticateResponse = self.call_as(None, path, request).await?;
        let token: Token =
            answer.token.parse().map_err(|_| Status::internal("the token is not ASCII"))?;
        *login.token() = Some(token.clone());
        Ok(Some(token))
    }
}

impl Login {
    fn token(&self) -> std::sync::MutexGuard<'_, Option<Token>> {
        self.token.lock().expect("nothing panics under this lock")
    }
}

/// Whether our token has become invalid.
fn is_logged_out(status: &Status, token: &Option<Token>) -> bool {
    status.code() == Code::Unauthenticated && token.is_some()
}

/// A request with our token. A member without a leader should fail it instead of waiting.
fn signed<T>(mut request: Request<T>, token: Option<Token>) -> Request<T> {
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token);
    }
    request
}

/// An error with all its causes.
fn in_words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The login contains the password.
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
