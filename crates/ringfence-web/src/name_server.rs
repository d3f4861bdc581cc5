//! Name server of a jail: UDP and TCP, on sockets that the jail made and handed out.
//!
//! Each answer comes from the table of the run, at once. Nothing is looked up outside before a connection is allowed.
//!
//! Not here: the format of messages (`dns_message.rs`).

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::dns_message::{DnsRefusal, DnsResponseCode, parse_dns_query};
use crate::name_table::NameTable;

/// Longest query that is read.
const MAX_QUERY_BYTES: usize = 4096;

/// TCP connections to the name server at once.
const MAX_CONNECTIONS: usize = 16;

/// Time in which a client has to send its query over TCP.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after an error of a socket, so that one that stays does not become a busy loop.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// The answer to a query. `None` for what is not one.
pub(crate) fn answer_query(query: &[u8], names: &NameTable) -> Option<Vec<u8>> {
    match parse_dns_query(query) {
        Ok(question) if !question.wants_address => Some(question.answer(None)),
        Ok(question) => Some(match names.address_of(&question.name) {
            Some(address) => question.answer(Some(address)),
            None => question.refuse(DnsResponseCode::ServerFailure),
        }),
        Err(DnsRefusal::Response(response)) => Some(response),
        Err(DnsRefusal::Ignored) => None,
    }
}

pub(crate) async fn serve_udp(socket: UdpSocket, names: Arc<NameTable>) -> Infallible {
    let mut query = [0; MAX_QUERY_BYTES];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut query).await else {
            sleep(ERROR_PAUSE).await;
            continue;
        };
        if let Some(answer) = query.get(..length).and_then(|query| answer_query(query, &names)) {
            // The client may be gone.
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

pub(crate) async fn serve_tcp(listener: TcpListener, names: Arc<NameTable>) -> io::Result<Infallible> {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ERROR_PAUSE).await;
            continue;
        };
        let names = Arc::clone(&names);
        tokio::spawn(async move {
            let _ = serve_stream(stream, &names).await;
            drop(slot);
        });
    }
}

/// Answers the queries of one connection, each behind its length.
async fn serve_stream(mut stream: TcpStream, names: &NameTable) -> io::Result<()> {
    loop {
        let query = timeout(QUERY_TIMEOUT, async {
            let length = usize::from(stream.read_u16().await?);
            let mut query = vec![0; length];
            stream.read_exact(&mut query).await.map(|_| query)
        });
        let query = query.await??;
        let Some(answer) = Some(&query).filter(|query| query.len() <= MAX_QUERY_BYTES) else { return Ok(()) };
        let Some(answer) = answer_query(answer, names) else { return Ok(()) };
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), &answer[..]].concat()).await?;
    }
}
