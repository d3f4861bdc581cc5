//! Audit records of intercepted connections: each request by method and path, each tripwire and each cut answer.
//!
//! A request is sent once it is on record, and one that sends contents once a person has decided. A tripwire, a refused request and a cut answer are refusals, which are recorded too.
//!
//! Not here: records of connections (`egress_proxy.rs`).

use std::sync::Arc;
use std::sync::mpsc::Sender;

use ringfence_kernel::{
    ConnectionAttempt, ErrorKind, NET_MOUNT, PolicyAction, PolicyResource, Preview, PreviewBody, ResourceAccess,
    ToolError,
};
use tokio::sync::oneshot;

use crate::interceptor::{InterceptionObserver, RequestDecision, RequestQuestion, RequestRecorded};

/// Characters of a place in a record, which may be the name of a header.
const MAX_PLACE: usize = 100;

/// Records what happens on the connections to one host.
#[derive(Debug)]
pub(crate) struct InterceptionRecorder {
    /// `host:port`.
    authority: String,
    attempts: Sender<ConnectionAttempt>,
}

impl InterceptionRecorder {
    pub(crate) fn new(authority: String, attempts: Sender<ConnectionAttempt>) -> Self {
        Self { authority, attempts }
    }

    fn access(&self, details: &str) -> ResourceAccess {
        let separator = if details.is_empty() { "" } else { " " };
        let resource = PolicyResource {
            mount: Arc::from(NET_MOUNT),
            display_path: format!("{}{separator}{details}", self.authority),
            requested_path: self.authority.clone(),
            ..PolicyResource::default()
        };
        ResourceAccess { action: PolicyAction::Fetch, resource }
    }

    /// Hands a record over, and returns when it is made. `None`: the run has ended.
    fn record(&self, details: &str, refused: Option<String>) -> Option<oneshot::Receiver<()>> {
        let (go, goes) = oneshot::channel();
        let refused = refused.map(|why| ToolError::new(ErrorKind::Network, why));
        let attempt = ConnectionAttempt::new(self.access(details), refused, move || {
            // The receiver may be gone.
            let _ = go.send(());
        });
        self.attempts.send(attempt).ok().map(|()| goes)
    }
}

fn request_details(method: &str, path: &str, credential: Option<&str>) -> String {
    match credential {
        Some(name) => format!("{method} {path} with credential `{name}`"),
        None => format!("{method} {path}"),
    }
}

impl InterceptionObserver for InterceptionRecorder {
    fn on_request(&self, method: &str, path: &str, credential: Option<&str>) {
        self.record(&request_details(method, path, credential), None);
    }

    fn on_tripwire(&self, place: &str) {
        // The path of a record is what a reader of the log finds: a refusal alone could be any.
        let place: String = place.chars().take(MAX_PLACE).collect();
        let why = format!("the placeholder of a credential was in the {place} of a request");
        self.record(&format!("tripwire: placeholder in the {place}"), Some(why));
    }

    fn on_redaction(&self, place: &str) {
        let why = format!("the answer was cut: its {place} contained a credential, or could not be checked for one");
        self.record(&format!("redaction of the {place}"), Some(why));
    }

    fn on_refusal(&self, method: &str, path: &str, reason: &str) {
        self.record(&request_details(method, path, None), Some(reason.to_owned()));
    }

    fn ask_about<'a>(&'a self, question: &'a RequestQuestion) -> RequestDecision<'a> {
        let access = ResourceAccess { action: PolicyAction::Send, ..self.access(&question.details) };
        let summary = format!("send `{}` to `{}`", question.details, self.authority);
        let mut preview = Preview::new(&summary, format!("{} {}", self.authority, question.details));
        for loss in &question.losses {
            preview = preview.with_line(loss);
        }
        if !question.changes.is_empty() {
            preview = preview.with_body(PreviewBody::Text(question.changes.join("\n")));
        }
        let (decide, decided) = oneshot::channel();
        let attempt = ConnectionAttempt::undecided(access, move |decision| {
            // The receiver may be gone.
            let _ = decide.send(decision);
        });
        let is_sent = self.attempts.send(attempt.with_preview(preview)).is_ok();
        Box::pin(async move {
            let ended = || "the run has ended".to_owned();
            if !is_sent {
                return Err(ended());
            }
            decided.await.map_err(|_| ended())?.map_err(|error| error.message)
        })
    }

    fn record_request<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        credential: Option<&'a str>,
    ) -> RequestRecorded<'a> {
        let recorded = self.record(&request_details(method, path, credential), None);
        Box::pin(async move {
            match recorded {
                Some(recorded) => recorded.await.is_ok(),
                None => false,
            }
        })
    }
}
