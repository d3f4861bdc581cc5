//! Panic handling: a request whose handler panics still gets an error response.
//!
//! The SDK drops a handler that panics, and the client waits for ever. Here it gets an error, and the connection goes on.

use std::borrow::Cow;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use rmcp::model::{ClientNotification, ClientRequest, ErrorData, ProtocolVersion, ServerConfig, ServerResult};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{RoleServer, Service};

/// A service whose panics are errors.
#[derive(Debug)]
pub(super) struct CatchPanicService<S>(pub(super) S);

impl<S: Service<RoleServer>> Service<RoleServer> for CatchPanicService<S> {
    async fn handle_request(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        catch_panic(self.0.handle_request(request, context)).await
    }

    async fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        catch_panic(self.0.handle_notification(notification, context)).await
    }

    fn get_info(&self) -> ServerConfig {
        self.0.get_info()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.0.supported_protocol_versions()
    }
}

/// The work, with an error where it panics.
pub(super) async fn catch_panic<T>(work: impl Future<Output = Result<T, ErrorData>>) -> Result<T, ErrorData> {
    let mut work = pin!(work);
    poll_fn(|cx| {
        // After a panic it is not polled again.
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))).unwrap_or_else(|_| {
            let message = "internal error";
            Poll::Ready(Err(ErrorData::internal_error(message, None)))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequestParams, CallToolResponse, ErrorData};
    use rmcp::service::{RequestContext, serve_directly};
    use rmcp::{RoleServer, ServerHandler};
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio_util::sync::CancellationToken;

    use super::CatchPanicService;
    use crate::mcp::in_flight::InFlightRequests;
    use crate::mcp::transport::StdioServerTransport;

    struct PanickingHandler;

    impl ServerHandler for PanickingHandler {
        async fn call_tool(
            &self,
            _: CallToolRequestParams,
            _: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            tokio::task::yield_now().await;
            panic!("as it should not");
        }
    }

    #[tokio::test]
    async fn a_handler_that_panics_answers_and_the_next_request_is_served() {
        std::panic::set_hook(Box::new(|_| {}));
        let (client, server) = tokio::io::duplex(1 << 16);
        let (read, write) = tokio::io::split(server);
        let wire =
            StdioServerTransport::new(read, write, 1 << 16, InFlightRequests::default(), CancellationToken::new());
        let running = serve_directly(CatchPanicService(PanickingHandler), wire, None);
        let (read, mut write) = tokio::io::split(client);
        let mut lines = BufReader::new(read).lines();
        for (id, method) in [(1, "tools/call"), (2, "tools/call"), (3, "ping")] {
            let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"name": "x"}});
            write.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            let reply: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
            assert_eq!(reply["id"], id);
            assert_eq!(reply["error"]["code"].as_i64(), (method == "tools/call").then_some(-32603), "{reply}");
        }
        running.cancel().await.unwrap();
    }
}
