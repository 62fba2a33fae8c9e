//! Short constructors for the operations and conditions of transactions.

use super::messages::*;

impl RangeRequest {
    /// One key.
    pub(crate) fn key(key: Vec<u8>) -> Self {
        Self { key, ..Self::default() }
    }

    /// Everything from one key up to another.
    pub(crate) fn range((key, range_end): (Vec<u8>, Vec<u8>)) -> Self {
        Self { key, range_end, ..Self::default() }
    }
}

impl PutRequest {
    pub(crate) fn new(key: Vec<u8>, value: impl Into<Vec<u8>>) -> Self {
        Self { key, value: value.into(), ..Self::default() }
    }
}

impl TxnRequest {
    /// Operations that run if all conditions hold.
    pub(crate) fn when(compare: impl Into<Vec<Compare>>, success: Vec<RequestOp>) -> Self {
        Self { compare: compare.into(), success, failure: Vec::new() }
    }

    /// Operations that run otherwise.
    pub(crate) fn or_else(self, failure: Vec<RequestOp>) -> Self {
        Self { failure, ..self }
    }
}

impl RequestOp {
    pub(crate) fn get(request: RangeRequest) -> Self {
        Self { request: Some(Request::Range(request)) }
    }

    pub(crate) fn put(request: PutRequest) -> Self {
        Self { request: Some(Request::Put(request)) }
    }

    pub(crate) fn delete(key: Vec<u8>) -> Self {
        Self { request: Some(Request::Delete(DeleteRangeRequest { key })) }
    }

    pub(crate) fn txn(request: TxnRequest) -> Self {
        Self { request: Some(Request::Txn(request)) }
    }
}

impl ResponseOp {
    /// The keys found, if this is the answer to a `get`.
    pub(crate) fn found(self) -> Vec<KeyValue> {
        match self.response {
            Some(Response::Range(found)) => found.kvs,
            _ => Vec::new(),
        }
    }

    /// The answer to a nested transaction, if this is one.
    pub(crate) fn nested(self) -> Option<TxnResponse> {
        match self.response {
            Some(Response::Txn(answer)) => Some(answer),
            _ => None,
        }
    }
}

impl Compare {
    /// Whether the key was created at this revision; 0 means that it does not exist.
    pub(crate) fn created(key: Vec<u8>, revision: i64) -> Self {
        Self::by(CompareTarget::Create, CompareResult::Equal, key, Revision::Create(revision))
    }

    /// Whether all of a range was created before this revision.
    pub(crate) fn created_before((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Self {
        let created = Revision::Create(revision);
        let before = Self::by(CompareTarget::Create, CompareResult::Less, key, created);
        Self { range_end, ..before }
    }

    /// Whether all of a range was created at this revision or later.
    pub(crate) fn created_since((key, range_end): (Vec<u8>, Vec<u8>), revision: i64) -> Self {
        let created = Revision::Create(revision - 1);
        let since = Self::by(CompareTarget::Create, CompareResult::Greater, key, created);
        Self { range_end, ..since }
    }

    /// Whether the key was last changed at this revision.
    pub(crate) fn changed(key: Vec<u8>, revision: i64) -> Self {
        Self::by(CompareTarget::Mod, CompareResult::Equal, key, Revision::Mod(revision))
    }

    /// Whether a range is empty.
    pub(crate) fn empty((key, range_end): (Vec<u8>, Vec<u8>)) -> Self {
        Self { range_end, ..Self::created(key, 0) }
    }

    fn by(target: CompareTarget, result: CompareResult, key: Vec<u8>, with: Revision) -> Self {
        let (target, result) = (target as i32, result as i32);
        Self { target, result, key, revision: Some(with), range_end: Vec::new() }
    }
}
