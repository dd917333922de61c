//! Calls to etcd. One member is asked at a time, and the next one once that does not answer. A read
//! is tried at each member; a write is tried once, since its outcome may be unknown. Invariant: no
//! read is served from one member's memory alone: every read waits for the quorum.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::connection::{EtcdConnection, EtcdUser, channel, token_value};
use crate::etcd_error::{CALL_TIMEOUT, EtcdError};
use crate::etcdserverpb::auth_client::AuthClient;
use crate::etcdserverpb::kv_client::KvClient;
use crate::etcdserverpb::watch_client::WatchClient;
use crate::etcdserverpb::watch_request::RequestUnion;
use crate::etcdserverpb::{
    AuthenticateRequest, RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
    WatchCreateRequest, WatchRequest, WatchResponse,
};
use crate::store_history::{Seen, StoreHistory};

/// The most bytes of one answer: a page of the largest values that etcd takes by default.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A client of etcd; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct EtcdClient(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: EtcdConnection,
    session: Mutex<Session>,
    history: StoreHistory,
}

/// The member that is asked at present.
#[derive(Debug, Default)]
struct Session {
    /// Its index in the list of members.
    member: usize,
    /// Counts the sessions.
    number: u64,
    channel: Option<Channel>,
    token: Option<AsciiMetadataValue>,
}

impl Session {
    /// Goes to the next of so many members.
    fn leave(&mut self, members: usize) {
        self.member = (self.member + 1) % members;
        self.number += 1;
        self.channel = None;
    }
}

/// Where a call goes, and what it shows there.
#[derive(Debug)]
struct Route {
    channel: Channel,
    token: Option<AsciiMetadataValue>,
    member: String,
    session: u64,
}

impl Route {
    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        show(request.metadata_mut(), self.token.as_ref());
        request
    }
}

/// A member without a leader is to refuse at once, instead of waiting for one; a watch there ends.
fn show(metadata: &mut MetadataMap, token: Option<&AsciiMetadataValue>) {
    metadata.insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token.clone());
    }
}

/// An answer with a header.
trait Answer {
    fn header(&self) -> Option<ResponseHeader>;
}

impl Answer for RangeResponse {
    fn header(&self) -> Option<ResponseHeader> {
        self.header
    }
}

impl Answer for TxnResponse {
    fn header(&self) -> Option<ResponseHeader> {
        self.header
    }
}

/// The changes of a range of keys.
#[derive(Debug)]
pub(crate) struct WatchStream {
    changes: Streaming<WatchResponse>,
    client: EtcdClient,
    member: String,
    session: u64,
}

impl EtcdClient {
    /// A client that connects with its first call.
    ///
    /// # Panics
    /// If there is no member.
    pub(crate) fn new(connection: EtcdConnection) -> Self {
        assert!(!connection.members.is_empty(), "the command line names a member");
        let (session, history) = (Mutex::default(), StoreHistory::default());
        Self(Arc::new(Shared { connection, session, history }))
    }

    /// What the answers so far show of the store.
    pub(crate) fn seen(&self) -> Seen {
        self.0.history.seen()
    }

    /// Notes the revision of the heartbeat in an answer to a request that was sent when `before`
    /// was known.
    pub(crate) fn note_heartbeat(&self, before: Seen, revision: i64) {
        self.0.history.note_heartbeat(before, revision);
    }

    /// Reads keys, as they are at the time of the call or later.
    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, EtcdError> {
        let mut tries = self.0.connection.members.len();
        loop {
            let attempt = request.clone();
            let answered = self.call(|route| async move {
                let (mut client, attempt) = (route.kv(), route.request(attempt));
                client.range(attempt).await
            });
            match answered.await {
                Err(error) if tries > 0 && (error.is_of_member() || error.is_of_token()) => {
                    tries -= 1;
                }
                answered => return answered,
            }
        }
    }

    /// Tries a transaction once, or once more where etcd refused the token, and so changed nothing.
    /// After an error it may have happened, and may yet happen.
    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        match self.try_txn(request.clone()).await {
            Err(error) if error.is_of_token() => self.try_txn(request).await,
            answered => answered,
        }
    }

    async fn try_txn(&self, request: TxnRequest) -> Result<TxnResponse, EtcdError> {
        let answered = self.call(|route| async move {
            let (mut client, request) = (route.kv(), route.request(request));
            client.txn(request).await
        });
        answered.await
    }

    /// Watches a range of keys.
    pub(crate) async fn watch(&self, create: WatchCreateRequest) -> Result<WatchStream, EtcdError> {
        let route = self.route().await?;
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let request = route.request(stream::iter([create]).chain(stream::pending()));
        let client = WatchClient::new(route.channel.clone());
        let mut client = client.max_decoding_message_size(ANSWER_BYTES_MAX);
        let Route { member, session, .. } = route;
        let error = match timeout(CALL_TIMEOUT, client.watch(request)).await {
            Ok(Ok(changes)) => {
                let (changes, client) = (changes.into_inner(), self.clone());
                return Ok(WatchStream { changes, client, member, session });
            }
            Ok(Err(status)) => EtcdError::refused(member, &status),
            Err(_) => EtcdError::Silent { member },
        };
        self.failed(&error, session).await;
        Err(error)
    }

    async fn call<T, F>(&self, send: impl FnOnce(Route) -> F) -> Result<T, EtcdError>
    where
        T: Answer,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let before = self.seen();
        let route = self.route().await?;
        let (member, session) = (route.member.clone(), route.session);
        let error = match timeout(CALL_TIMEOUT, send(route)).await {
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                if let Some(header) = answer.header() {
                    self.0.history.note(before, header);
                }
                return Ok(answer);
            }
            Ok(Err(status)) => EtcdError::refused(member, &status),
            Err(_) => EtcdError::Silent { member },
        };
        self.failed(&error, session).await;
        Err(error)
    }

    /// The way to the present member. Connects and proves the user where that is not done yet.
    async fn route(&self) -> Result<Route, EtcdError> {
        let EtcdConnection { members, tls, user } = &self.0.connection;
        let mut session = self.0.session.lock().await;
        let url = &members[session.member];
        let channel = match &session.channel {
            Some(channel) => channel.clone(),
            None => {
                let channel = channel(url, tls.as_ref()).await?;
                session.channel = Some(channel.clone());
                channel
            }
        };
        let member = url.to_string();
        if session.token.is_none()
            && let Some(user) = user
        {
            match authenticate(channel.clone(), &member, user).await {
                Ok(token) => session.token = Some(token),
                Err(error) => {
                    if error.is_of_member() {
                        session.leave(members.len());
                    }
                    return Err(error);
                }
            }
        }
        Ok(Route { channel, token: session.token.clone(), member, session: session.number })
    }

    /// Draws the consequences of an error of a call in this session.
    async fn failed(&self, error: &EtcdError, number: u64) {
        let mut session = self.0.session.lock().await;
        if session.number != number {
            return;
        }
        if error.is_of_member() {
            session.leave(self.0.connection.members.len());
        }
        if error.is_of_token() {
            session.token = None;
        }
    }
}

impl WatchStream {
    /// The next message.
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, EtcdError> {
        let status = match self.changes.message().await {
            Ok(Some(message)) => return Ok(message),
            Ok(None) => Status::unavailable("the watch has ended"),
            Err(status) => status,
        };
        let error = EtcdError::refused(self.member.clone(), &status);
        self.client.failed(&error, self.session).await;
        Err(error)
    }
}

/// A token for the user.
async fn authenticate(
    channel: Channel,
    member: &str,
    user: &EtcdUser,
) -> Result<AsciiMetadataValue, EtcdError> {
    let request = AuthenticateRequest { name: user.name.clone(), password: user.password().await? };
    let mut client = AuthClient::new(channel);
    match timeout(CALL_TIMEOUT, client.authenticate(request)).await {
        Ok(Ok(answer)) => token_value(&answer.into_inner().token),
        Ok(Err(status)) => Err(EtcdError::refused(member.to_owned(), &status)),
        Err(_) => Err(EtcdError::Silent { member: member.to_owned() }),
    }
}
