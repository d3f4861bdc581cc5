//! Tools config: which tools a session is offered.

use std::collections::BTreeSet;

use ringfence_kernel::ToolFilter;
use serde::Deserialize;

use crate::config::CliFlags;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ToolsConfigSection {
    pub(crate) allow: Option<BTreeSet<String>>,
    pub(crate) deny: BTreeSet<String>,
}

/// The tools of these layers and the command line. Toolsets of the command line come on top of the config's.
pub(crate) fn tool_filter(
    layers: [&ToolsConfigSection; 2],
    toolsets: BTreeSet<String>,
    flags: &CliFlags,
) -> ToolFilter {
    let mut tools = ToolFilter {
        deny: flags.deny.iter().cloned().collect(),
        toolsets: toolsets.into_iter().chain(flags.toolsets.iter().cloned()).collect(),
        ..ToolFilter::default()
    };
    for layer in layers {
        narrow_tools(&mut tools, layer);
    }
    if !flags.allow.is_empty() {
        let allow = Some(flags.allow.iter().cloned().collect());
        narrow_tools(&mut tools, &ToolsConfigSection { allow, deny: BTreeSet::new() });
    }
    tools
}

/// Fewer tools: denied by anyone is denied, allowed is what all allow.
pub(crate) fn narrow_tools(tools: &mut ToolFilter, by: &ToolsConfigSection) {
    tools.deny.extend(by.deny.iter().cloned());
    if let Some(allow) = &by.allow {
        tools.allow = Some(match &tools.allow {
            Some(already) => already.intersection(allow).cloned().collect(),
            None => allow.clone(),
        });
    }
}
