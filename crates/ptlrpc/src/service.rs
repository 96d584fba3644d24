//! The server.

use crate::target::ServerRequest;
use nacre_base::{Errno, Payload};

pub(crate) struct Arrival {}

impl Arrival {
    pub(crate) async fn pull(&self, _request: &ServerRequest) -> Result<Payload, Errno> {
        todo!()
    }
    pub(crate) async fn push(&self, _request: &ServerRequest, _data: Payload) -> Result<(), Errno> {
        todo!()
    }
}
