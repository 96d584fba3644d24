//! One connection to a member of etcd: HTTP/1.1 over TCP, with TLS if there is a certificate authority to check it by.

use crate::address::Host;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// A connection that can take one request after another.
pub(crate) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    pub(crate) async fn open(host: &Host, tls: Option<&TlsConnector>) -> io::Result<Connection> {
        let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
        stream.set_nodelay(true)?;
        let requests = match tls {
            None => handshake(stream).await?,
            Some(tls) => {
                let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
                handshake(tls.connect(name, stream).await?).await?
            }
        };
        Ok(Connection { requests, host: host.to_string() })
    }

    /// True while it can take a request.
    pub(crate) fn is_ready(&self) -> bool {
        self.requests.is_ready()
    }

    /// Sends a request. The next one must wait until the body of the response has been read.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        body: Bytes,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let mut request = Request::post(path).header(HOST, &self.host).header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body)).expect("the parts of a request are ours");
        self.requests.ready().await?;
        self.requests.send_request(request).await
    }
}

async fn handshake<S>(stream: S) -> io::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends with the last request, or with the connection.
    drop(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to etcd ended");
        }
    }));
    Ok(requests)
}
