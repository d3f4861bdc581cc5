//! Client information and capabilities of an MCP request.
//!
//! Older clients say so once, in their handshake; newer ones in every request. Nothing else is remembered about them.

use ringfence_kernel::Assurance;
use rmcp::RoleServer;
use rmcp::model::{ErrorData, ProtocolVersion};
use rmcp::service::RequestContext;

/// Era of the protocol's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtocolEra {
    /// By `initialize`; the server may ask the client.
    Handshake,
    /// Each request stands for itself; what is asked goes into a result, and the answer comes with the next request.
    Stateless,
}

/// The client of one request.
#[derive(Clone, Debug)]
pub(super) struct McpClientInfo {
    pub(super) era: ProtocolEra,
    /// Its revision has structured content.
    pub(super) supports_structured: bool,
    /// It can show its user a form.
    pub(super) supports_forms: bool,
    /// Approval may be requested for this request at all.
    pub(super) may_be_asked: bool,
}

/// Channel of an approval request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApprovalChannel {
    /// To the client, now.
    Form,
    /// To the client, in the result of the call.
    Result,
    /// To a person at ringfence's own terminal or page.
    Person,
    Unavailable,
}

impl McpClientInfo {
    pub(super) fn from_context(context: &RequestContext<RoleServer>) -> Result<Self, ErrorData> {
        let Some(version) = context.protocol_version() else {
            let message = "send `initialize` first, or `_meta` with your protocol version";
            return Err(ErrorData::invalid_request(message, None));
        };
        let era = if version.has_initialize() { ProtocolEra::Handshake } else { ProtocolEra::Stateless };
        let elicitation = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
        // A client that names neither form supports the older one.
        let shows_forms = elicitation.is_some_and(|ways| ways.form.is_some() || ways.url.is_none());
        Ok(Self {
            era,
            supports_structured: supports_structured(&version),
            supports_forms: shows_forms,
            may_be_asked: true,
        })
    }

    /// The channel for a required assurance. A client's answer is never a person's.
    pub(super) fn approval_channel(&self, least: Assurance) -> ApprovalChannel {
        if !self.may_be_asked {
            return ApprovalChannel::Unavailable;
        }
        match (self.supports_forms && least < Assurance::Person, self.era) {
            (false, _) => ApprovalChannel::Person,
            (true, ProtocolEra::Handshake) => ApprovalChannel::Form,
            (true, ProtocolEra::Stateless) => ApprovalChannel::Result,
        }
    }
}

/// Versions are dates, so they compare as texts.
fn supports_structured(version: &ProtocolVersion) -> bool {
    version.as_str() >= ProtocolVersion::V_2025_06_18.as_str()
}

#[cfg(test)]
mod tests {
    use ringfence_kernel::Assurance;
    use rmcp::model::ProtocolVersion;

    use super::{ApprovalChannel, McpClientInfo, ProtocolEra, supports_structured};

    #[test]
    fn structured_content_came_with_a_revision() {
        let cases = [
            (ProtocolVersion::V_2024_11_05, false),
            (ProtocolVersion::V_2025_03_26, false),
            (ProtocolVersion::V_2025_06_18, true),
            (ProtocolVersion::V_2025_11_25, true),
            (ProtocolVersion::V_2026_07_28, true),
        ];
        for (version, expected) in cases {
            assert_eq!(supports_structured(&version), expected, "{version:?}");
        }
    }

    #[test]
    fn a_client_is_never_asked_for_the_word_of_a_person() {
        for era in [ProtocolEra::Handshake, ProtocolEra::Stateless] {
            for shows_forms in [true, false] {
                let client =
                    McpClientInfo { era, supports_structured: true, supports_forms: shows_forms, may_be_asked: true };
                assert_eq!(client.approval_channel(Assurance::Person), ApprovalChannel::Person);
                let asked = client.approval_channel(Assurance::Relayed);
                assert_eq!(asked == ApprovalChannel::Person, !shows_forms, "{era:?}");
            }
        }
    }
}
