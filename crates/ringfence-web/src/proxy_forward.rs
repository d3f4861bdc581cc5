//! Forwarding of plain HTTP requests, and responses of the proxy's own.
//!
//! Headers between two machines go no further, and the host is the one that was judged, whatever the program wrote.
//!
//! Not here: which host that is (`egress_proxy.rs`).

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use tokio::net::TcpStream;

use crate::egress_proxy::ProxyState;
use crate::fetch_target::FetchTarget;
use crate::hop_by_hop::strip_hop_by_hop;

/// A response to a program.
pub(crate) type ProxyResponse = Response<Either<Full<Bytes>, Incoming>>;

pub(crate) fn text_response(status: StatusCode, text: &str) -> ProxyResponse {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(format!("ringfence: {text}\n")))));
    *response.status_mut() = status;
    response
}

/// The request as the host is to have it, and its answer.
pub(crate) async fn forward(
    mut request: Request<Incoming>,
    upstream: TcpStream,
    target: &FetchTarget,
    state: &ProxyState,
) -> Result<ProxyResponse, String> {
    *request.uri_mut() = target.path_and_query().parse::<Uri>().map_err(|_| "the path cannot be sent".to_owned())?;
    strip_hop_by_hop(request.headers_mut());
    let host = HeaderValue::from_str(&target.host_header()).map_err(|_| "the host cannot be sent".to_owned())?;
    request.headers_mut().insert(HOST, host);
    // Its connection ends with that of the program, whose runtime it is in.
    let answer = match state.interceptor() {
        Some(interceptor) => {
            let events = state.recorder(target.authority());
            ringfence_net::forward(upstream, request.map(|body| interceptor.guard_body(body, events))).await
        }
        None => ringfence_net::forward(upstream, request).await,
    };
    let mut answer = answer.map_err(|cause| format!("`{}` did not answer: {cause}", target.host()))?;
    strip_hop_by_hop(answer.headers_mut());
    Ok(answer.map(Either::Right))
}
