//! Tool bindings: a tool's name, argument schema and reply shape in one dialect.
//!
//! The type of the arguments is the schema, and its doc comment is the description that the model reads.
//!
//! Not here: the names of errors and the envelopes (`reply.rs`).

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::decode::decode;
use crate::reply::{MODIFIED_NOTE, ModelText, RenderedReply, ReplyNotes};
use crate::{
    CallContext, CallLimits, ChangeGroup, ChangeGroupDecision, Dialect, ErrorKind, FollowUpMode, FollowUpPlan,
    PhasedTool, Preview, ResourceAccess, ReviewRequirement, Ticket, ToolCapabilities, ToolError, ToolPhaseResult,
    ToolPlan,
};

/// A tool as one dialect offers it.
pub struct ToolBinding<T: PhasedTool> {
    definition: ToolDefinition,
    decode: fn(&str, u64) -> Result<T::Args, ToolError>,
    render: OutcomeRenderer<T>,
    /// The text for models of an outcome whose value has none of its own.
    model_text: Option<fn(&T::Outcome) -> String>,
}

/// A tool's definition for a model.
#[derive(Clone, Debug)]
pub struct ToolDefinition {
    /// The dialect of the name and the schemas.
    pub dialect: Dialect,
    /// Name of the tool in this dialect.
    pub name: Cow<'static, str>,
    /// The capabilities of its calls.
    pub capabilities: ToolCapabilities,
    /// False where every call ends as `Unavailable` until the user changes the config.
    pub is_available: bool,
    /// The toolset that it belongs to. Such a tool is offered only to sessions that ask for it.
    pub toolset: Option<&'static str>,
    /// The sessions that it is offered to.
    pub audience: ToolAudience,
    arguments: LazySchema<ArgumentSchema>,
    output: Option<LazySchema<Value>>,
}

/// The sessions that a tool is offered to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolAudience {
    /// Every session.
    #[default]
    Everyone,
    /// Sessions of persons only: agents are not offered it, whatever their config allows.
    Persons,
}

impl ToolDefinition {
    /// Description for the model.
    pub fn description(&self) -> &str {
        &self.arguments.get().description
    }

    /// JSON Schema of the arguments.
    pub fn parameters(&self) -> &Value {
        &self.arguments.get().parameters
    }

    /// JSON Schema of the value in a success reply, in the dialects that reply with a value.
    pub fn output(&self) -> Option<&Value> {
        self.output.as_ref().map(LazySchema::get)
    }
}

/// A schema that is generated when it is first read: a process offers the tools of one dialect, and knows those of all.
#[derive(Clone)]
struct LazySchema<S> {
    schema: OnceLock<S>,
    generate: fn() -> S,
}

impl<S> LazySchema<S> {
    fn new(generate: fn() -> S) -> Self {
        Self { schema: OnceLock::new(), generate }
    }

    fn get(&self) -> &S {
        self.schema.get_or_init(self.generate)
    }
}

impl<S: fmt::Debug> fmt::Debug for LazySchema<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.schema.fmt(f)
    }
}

/// The schema of arguments, without the description of the whole.
#[derive(Clone, Debug, Default)]
struct ArgumentSchema {
    description: String,
    parameters: Value,
}

/// An MCP server's definition of a tool.
#[derive(Clone, Debug)]
pub struct ExternalToolDefinition {
    /// Name of the tool, with the server's prefix.
    pub name: String,
    /// The server's description, which is untrusted.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

enum OutcomeRenderer<T: PhasedTool> {
    Value(fn(T::Outcome, ReplyNotes) -> RenderedReply),
    Text(fn(&T::Outcome) -> String, fn(String, T::Outcome, ReplyNotes) -> RenderedReply),
    Model(fn(T::Outcome, Dialect, ReplyNotes) -> RenderedReply),
}

impl<T: PhasedTool> ToolBinding<T> {
    /// A binding in the `standard` dialect: arguments `A`, reply value `V`.
    pub fn standard<A, V>(name: &'static str) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + Serialize + JsonSchema + Send + Sync + 'static,
    {
        Self {
            definition: build_definition::<A, T>(Dialect::Standard, name, Some(output_schema::<V>)),
            decode: decode_into::<A, T>,
            render: OutcomeRenderer::Value(|outcome, notes| RenderedReply::with_value(V::from(outcome), notes)),
            model_text: None,
        }
    }

    /// The same for a result that has a text of its own for models, which a frontend may show in place of the value.
    pub fn standard_with_text<A, V>(name: &'static str) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + ModelText + Serialize + JsonSchema + Send + Sync + 'static,
    {
        Self {
            definition: build_definition::<A, T>(Dialect::Standard, name, Some(output_schema::<V>)),
            decode: decode_into::<A, T>,
            render: OutcomeRenderer::Value(|outcome, notes| RenderedReply::with_model_value(V::from(outcome), notes)),
            model_text: None,
        }
    }

    /// A binding in the dialect of a model family: arguments `A`, and the text of the result `V` as reply. Programs get
    /// `V` as the value.
    pub fn model<A, V>(dialect: Dialect, name: &'static str) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + ModelText + Serialize + Send + Sync + 'static,
    {
        Self {
            definition: build_definition::<A, T>(dialect, name, None),
            decode: decode_into::<A, T>,
            render: OutcomeRenderer::Model(|outcome, dialect, notes| {
                RenderedReply::for_model(V::from(outcome), dialect, notes)
            }),
            model_text: None,
        }
    }

    /// A binding in the `standard` dialect for an MCP tool: any object of arguments, reply value `V`. Its server checks
    /// them against the schema.
    pub fn external<V>(declared: ExternalToolDefinition) -> Self
    where
        Map<String, Value>: TryInto<T::Args>,
        ToolError: From<<Map<String, Value> as TryInto<T::Args>>::Error>,
        V: From<T::Outcome> + ModelText + Serialize + JsonSchema + Send + Sync + 'static,
    {
        let ExternalToolDefinition { name, description, parameters } = declared;
        let (dialect, capabilities) = (Dialect::Standard, capabilities_of::<T>());
        Self {
            definition: ToolDefinition {
                dialect,
                name: Cow::Owned(name),
                capabilities,
                is_available: true,
                toolset: None,
                audience: ToolAudience::Everyone,
                arguments: LazySchema {
                    schema: OnceLock::from(ArgumentSchema { description, parameters }),
                    generate: ArgumentSchema::default,
                },
                output: Some(LazySchema::new(output_schema::<V>)),
            },
            decode: decode_into::<Map<String, Value>, T>,
            render: OutcomeRenderer::Value(|outcome, notes| RenderedReply::with_model_value(V::from(outcome), notes)),
            model_text: None,
        }
    }

    /// A binding in the `crewagent` dialect: arguments `A`, reply fields `V`.
    pub fn crewagent<A, V>(name: &'static str) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + Serialize + JsonSchema + Send + Sync + 'static,
    {
        Self {
            definition: build_definition::<A, T>(Dialect::Crewagent, name, Some(output_schema::<V>)),
            decode: decode_into::<A, T>,
            render: OutcomeRenderer::Value(|outcome, notes| RenderedReply::flat(V::from(outcome), notes)),
            model_text: None,
        }
    }

    /// A binding in the `miniclaw` dialect: arguments `A`, reply text. Programs get the value `V` of the standard
    /// dialect.
    pub fn miniclaw<A, V>(name: &'static str, render: fn(&T::Outcome) -> String) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + Serialize + Send + Sync + 'static,
    {
        Self::text::<A, V>(Dialect::Miniclaw, name, render)
    }

    /// A binding in a dialect that replies in text: arguments `A`. Programs get the value `V` of the standard dialect.
    pub fn text<A, V>(dialect: Dialect, name: &'static str, render: fn(&T::Outcome) -> String) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + Serialize + Send + Sync + 'static,
    {
        Self {
            definition: build_definition::<A, T>(dialect, name, None),
            decode: decode_into::<A, T>,
            render: OutcomeRenderer::Text(render, |text, outcome, notes| {
                RenderedReply::with_text(text, V::from(outcome), notes)
            }),
            model_text: None,
        }
    }
}

impl<T: PhasedTool> ToolBinding<T> {
    /// The same binding of a tool that has no backend in this config. It can be called, and says what to set.
    #[must_use]
    pub fn unavailable(mut self) -> Self {
        self.definition.is_available = false;
        self
    }

    /// The same binding of a tool that is offered on request, with the other tools of its toolset.
    #[must_use]
    pub fn in_toolset(mut self, toolset: &'static str) -> Self {
        self.definition.toolset = Some(toolset);
        self
    }

    /// The same binding of a tool that only persons are offered, such as one that decides about an agent's changes.
    #[must_use]
    pub fn for_persons(mut self) -> Self {
        self.definition.audience = ToolAudience::Persons;
        self
    }

    /// The same binding with a text for models, from the outcome itself: `standard` shows it over MCP in place of the value.
    #[must_use]
    pub fn with_model_text(mut self, render: fn(&T::Outcome) -> String) -> Self {
        self.model_text = Some(render);
        self
    }

    pub(crate) fn name(&self) -> Cow<'static, str> {
        self.definition.name.clone()
    }

    fn render(&self, outcome: T::Outcome, notes: ReplyNotes) -> RenderedReply {
        let dialect = self.definition.dialect;
        let own_text = self.model_text.map(|render| render(&outcome));
        let mut reply = match self.render {
            OutcomeRenderer::Value(render) => render(outcome, notes),
            OutcomeRenderer::Text(text, render) => render(text(&outcome), outcome, notes),
            OutcomeRenderer::Model(render) => render(outcome, dialect, notes),
        };
        if let Some(text) = own_text {
            reply = reply.with_model_text(text);
        }
        if dialect.is_model_family() && notes.modified {
            reply.text.push_str("\n[");
            reply.text.push_str(MODIFIED_NOTE);
            reply.text.push(']');
        }
        reply
    }
}

fn capabilities_of<T: PhasedTool>() -> ToolCapabilities {
    ToolCapabilities { actions: T::ACTIONS, idempotent: T::IDEMPOTENT, waits_for_job: T::WAITS_FOR_JOB }
}

/// A type-erased binding: what a catalog holds.
pub(crate) trait ErasedTool: Send + Sync {
    fn definition(&self) -> &ToolDefinition;
    /// The tool's names, in all dialects.
    fn names(&self) -> &[Cow<'static, str>];
    fn supports_non_blocking(&self) -> bool;
    fn stops_gracefully(&self) -> bool;
    fn time_limit(&self, limits: &CallLimits) -> Duration;
    fn end_session(&self, session: &str);
    fn plan(
        &self,
        arguments: &str,
        cx: &CallContext<'_>,
    ) -> Result<(Vec<ResourceAccess>, Box<dyn ErasedPlan>), ToolError>;
}

/// A type-erased plan, carried from the policy to the run.
pub(crate) trait ErasedPlan: Send {
    fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError>;
    fn required_review(&self) -> Option<ReviewRequirement>;
    fn follow_up(&self) -> FollowUpMode;
    fn acts_as(&self) -> Option<&str>;
    fn run(self: Box<Self>, ticket: &Ticket<'_>, notes: ReplyNotes) -> Result<PlanRunOutcome, ToolError>;
    fn reconcile(&mut self, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision>;
    fn abort(self: Box<Self>, refused: ToolError, notes: ReplyNotes) -> Result<RenderedReply, ToolError>;
}

/// The state of a call after a run.
pub(crate) enum PlanRunOutcome {
    Finished(RenderedReply),
    /// There is more to decide about.
    FollowUp(Vec<ChangeGroup>, Box<dyn ErasedPlan>),
}

pub(crate) fn bind<T: PhasedTool>(
    tool: Arc<T>,
    binding: ToolBinding<T>,
    names: Arc<[Cow<'static, str>]>,
) -> Arc<dyn ErasedTool> {
    Arc::new(DialectTool { tool, binding: Arc::new(binding), names })
}

struct DialectTool<T: PhasedTool> {
    tool: Arc<T>,
    binding: Arc<ToolBinding<T>>,
    names: Arc<[Cow<'static, str>]>,
}

struct DialectToolPlan<T: PhasedTool> {
    tool: Arc<T>,
    binding: Arc<ToolBinding<T>>,
    prepared: T::Prepared,
}

impl<T: PhasedTool> ErasedTool for DialectTool<T> {
    fn definition(&self) -> &ToolDefinition {
        &self.binding.definition
    }

    fn names(&self) -> &[Cow<'static, str>] {
        &self.names
    }

    fn supports_non_blocking(&self) -> bool {
        T::SUPPORTS_NON_BLOCKING
    }

    fn stops_gracefully(&self) -> bool {
        T::GRACEFUL_STOP
    }

    fn time_limit(&self, limits: &CallLimits) -> Duration {
        T::time_limit(limits)
    }

    fn end_session(&self, session: &str) {
        self.tool.end_session(session);
    }

    fn plan(
        &self,
        arguments: &str,
        cx: &CallContext<'_>,
    ) -> Result<(Vec<ResourceAccess>, Box<dyn ErasedPlan>), ToolError> {
        let args = (self.binding.decode)(arguments, cx.limits.argument_bytes)?;
        let ToolPlan { accesses, prepared: work } = self.tool.plan(args, cx)?;
        check_actions::<T>(&accesses)?;
        Ok((
            accesses,
            Box::new(DialectToolPlan {
                tool: Arc::clone(&self.tool),
                binding: Arc::clone(&self.binding),
                prepared: work,
            }),
        ))
    }
}

impl<T: PhasedTool> ErasedPlan for DialectToolPlan<T> {
    fn preview(&mut self, cx: &CallContext<'_>) -> Result<Preview, ToolError> {
        self.tool.preview(&mut self.prepared, cx)
    }

    fn required_review(&self) -> Option<ReviewRequirement> {
        self.tool.required_review(&self.prepared)
    }

    fn follow_up(&self) -> FollowUpMode {
        self.tool.follow_up(&self.prepared)
    }

    fn acts_as(&self) -> Option<&str> {
        self.tool.acts_as(&self.prepared)
    }

    fn run(self: Box<Self>, ticket: &Ticket<'_>, notes: ReplyNotes) -> Result<PlanRunOutcome, ToolError> {
        let Self { tool, binding, prepared: work } = *self;
        Ok(match tool.run_phase(work, ticket)? {
            ToolPhaseResult::Done(outcome) => PlanRunOutcome::Finished(binding.render(outcome, notes)),
            ToolPhaseResult::FollowUp(FollowUpPlan { groups, prepared: work }) => {
                groups.iter().try_for_each(|group| check_actions::<T>(&group.accesses))?;
                PlanRunOutcome::FollowUp(groups, Box::new(Self { tool, binding, prepared: work }))
            }
        })
    }

    fn reconcile(&mut self, wanted: Vec<ChangeGroupDecision>) -> Vec<ChangeGroupDecision> {
        self.tool.reconcile(&mut self.prepared, wanted)
    }

    fn abort(self: Box<Self>, refused: ToolError, notes: ReplyNotes) -> Result<RenderedReply, ToolError> {
        let outcome = self.tool.abort(self.prepared, refused)?;
        Ok(self.binding.render(outcome, notes))
    }
}

/// Callers know the declared actions of the tool, and may have decided by them.
fn check_actions<T: PhasedTool>(accesses: &[ResourceAccess]) -> Result<(), ToolError> {
    match accesses.iter().find(|access| !T::ACTIONS.contains(&access.action)) {
        None => Ok(()),
        Some(access) => {
            let message = format!("the tool tried to {}, which it does not declare", access.action.as_str());
            Err(ToolError::new(ErrorKind::Internal, message))
        }
    }
}

fn decode_into<A, T>(arguments: &str, limit: u64) -> Result<T::Args, ToolError>
where
    T: PhasedTool,
    A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
    ToolError: From<A::Error>,
{
    Ok(decode::<A>(arguments, limit)?.try_into()?)
}

fn build_definition<A: JsonSchema, T: PhasedTool>(
    dialect: Dialect,
    name: &'static str,
    output: Option<fn() -> Value>,
) -> ToolDefinition {
    ToolDefinition {
        dialect,
        name: Cow::Borrowed(name),
        capabilities: capabilities_of::<T>(),
        is_available: true,
        toolset: None,
        audience: ToolAudience::Everyone,
        arguments: LazySchema::new(argument_schema::<A>),
        output: output.map(LazySchema::new),
    }
}

fn argument_schema<A: JsonSchema>() -> ArgumentSchema {
    let mut schema = schema_settings().into_generator().into_root_schema_for::<A>();
    take_key(&mut schema, "title");
    let description = match take_key(&mut schema, "description") {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    ArgumentSchema { description, parameters: Value::from(schema) }
}

fn output_schema<V: JsonSchema>() -> Value {
    let mut schema: Schema = schema_settings().for_serialize().into_generator().into_root_schema_for::<V>();
    take_key(&mut schema, "title");
    take_key(&mut schema, "description");
    Value::from(schema)
}

/// The others keep their order.
fn take_key(schema: &mut Schema, key: &str) -> Option<Value> {
    schema.as_object_mut().and_then(|fields| fields.shift_remove(key))
}

/// Whole schemas without references: many models and servers do not follow `$ref`.
fn schema_settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    })
}

impl<T: PhasedTool> fmt::Debug for ToolBinding<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolBinding").field("definition", &self.definition).finish_non_exhaustive()
    }
}
