//! How a tool looks in a dialect: its name, the arguments it takes there, and how its outcome is said.
//!
//! The type of the arguments is the schema, and its doc comment is the description that the model reads.
//!
//! Not here: the names of errors and the envelopes (`dialect.rs`).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::decode::decode;
use crate::dialect::Notes;
use crate::{
    ChangeGroup, Context, Dialect, Effect, ErrorKind, KeepDecision, Limits, Next, Plan, Preview, Remainder, Review,
    Ticket, Tool, ToolError, Touch,
};

/// A tool as one dialect offers it.
pub struct Face<T: Tool> {
    definition: Definition,
    decode: fn(&str, u64) -> Result<T::Args, ToolError>,
    render: Render<T>,
}

/// What a model is told about a tool.
#[derive(Clone, Debug)]
pub struct Definition {
    pub dialect: Dialect,
    pub name: Cow<'static, str>,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// JSON Schema of the value in a success reply, in the dialects that reply with a value.
    pub output: Option<Value>,
    /// What its calls can do.
    pub effect: Effect,
    /// False where every call ends as `Unavailable` until the user changes the config.
    pub is_available: bool,
}

/// What another program says about a tool of its own.
#[derive(Clone, Debug)]
pub struct Declared {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

enum Render<T: Tool> {
    Value(fn(T::Outcome, Notes) -> String),
    Text(fn(&T::Outcome) -> String),
}

impl<T: Tool> Face<T> {
    /// A face in the `standard` dialect: arguments `A`, reply value `V`.
    pub fn standard<A, V>(name: &'static str) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + Serialize + JsonSchema,
    {
        Self {
            definition: define::<A, T>(Dialect::Standard, name, Some(output_schema::<V>())),
            decode: decode_into::<A, T>,
            render: Render::Value(|outcome, notes| Dialect::render_value(&V::from(outcome), notes)),
        }
    }

    /// A face in the `standard` dialect for a tool that another program describes: any object of arguments, reply value
    /// `V`. Whether they are what the schema says is for that program to judge.
    pub fn declared<V>(declared: Declared) -> Self
    where
        Map<String, Value>: TryInto<T::Args>,
        ToolError: From<<Map<String, Value> as TryInto<T::Args>>::Error>,
        V: From<T::Outcome> + Serialize + JsonSchema,
    {
        let Declared { name, description, parameters } = declared;
        let (dialect, output) = (Dialect::Standard, Some(output_schema::<V>()));
        let effect = Effect { verbs: T::VERBS, same_again: T::SAME_AGAIN };
        Self {
            definition: Definition {
                dialect,
                name: Cow::Owned(name),
                description,
                parameters,
                output,
                effect,
                is_available: true,
            },
            decode: decode_into::<Map<String, Value>, T>,
            render: Render::Value(|outcome, notes| Dialect::render_value(&V::from(outcome), notes)),
        }
    }

    /// A face in the `crewagent` dialect: arguments `A`, reply fields `V`.
    pub fn crewagent<A, V>(name: &'static str) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
        V: From<T::Outcome> + Serialize + JsonSchema,
    {
        Self {
            definition: define::<A, T>(Dialect::Crewagent, name, Some(output_schema::<V>())),
            decode: decode_into::<A, T>,
            render: Render::Value(|outcome, notes| Dialect::render_flat(&V::from(outcome), notes)),
        }
    }

    /// A face in the `miniclaw` dialect: arguments `A`, reply text.
    pub fn miniclaw<A>(name: &'static str, render: fn(&T::Outcome) -> String) -> Self
    where
        A: DeserializeOwned + JsonSchema + TryInto<T::Args>,
        ToolError: From<A::Error>,
    {
        Self {
            definition: define::<A, T>(Dialect::Miniclaw, name, None),
            decode: decode_into::<A, T>,
            render: Render::Text(render),
        }
    }
}

impl<T: Tool> Face<T> {
    /// The same face of a tool that has no backend in this config. It can be called, and says what to set.
    #[must_use]
    pub fn unavailable(mut self) -> Self {
        self.definition.is_available = false;
        self
    }

    pub(crate) fn name(&self) -> Cow<'static, str> {
        self.definition.name.clone()
    }

    fn render(&self, outcome: T::Outcome, notes: Notes) -> String {
        match self.render {
            Render::Value(render) => render(outcome, notes),
            Render::Text(render) => render(&outcome),
        }
    }
}

/// A face bound to its tool, with the types gone: what a catalog holds.
pub(crate) trait Offer: Send + Sync {
    fn definition(&self) -> &Definition;
    /// What the tool is called, in every dialect.
    fn names(&self) -> &[Cow<'static, str>];
    fn quick(&self) -> bool;
    fn stops_itself(&self) -> bool;
    fn time(&self, limits: &Limits) -> Duration;
    fn plan(&self, arguments: &str, cx: &Context<'_>) -> Result<(Vec<Touch>, Box<dyn Planned>), ToolError>;
}

/// A plan with the types gone: what the road carries from the policy to the run.
pub(crate) trait Planned: Send {
    fn preview(&mut self, cx: &Context<'_>) -> Result<Preview, ToolError>;
    fn wants_review(&self) -> Option<Review>;
    fn run(self: Box<Self>, ticket: &Ticket<'_>, notes: Notes) -> Result<Ran, ToolError>;
    fn settle(&mut self, wanted: Vec<KeepDecision>) -> Vec<KeepDecision>;
    fn leave(self: Box<Self>, refused: ToolError, notes: Notes) -> Result<String, ToolError>;
}

/// How far a run brought a call.
pub(crate) enum Ran {
    Said(String),
    /// There is more to decide about.
    Rest(Vec<ChangeGroup>, Box<dyn Planned>),
}

pub(crate) fn bind<T: Tool>(tool: Arc<T>, face: Face<T>, names: Arc<[Cow<'static, str>]>) -> Arc<dyn Offer> {
    Arc::new(Bound { tool, face: Arc::new(face), names })
}

struct Bound<T: Tool> {
    tool: Arc<T>,
    face: Arc<Face<T>>,
    names: Arc<[Cow<'static, str>]>,
}

struct BoundPlan<T: Tool> {
    tool: Arc<T>,
    face: Arc<Face<T>>,
    work: T::Work,
}

impl<T: Tool> Offer for Bound<T> {
    fn definition(&self) -> &Definition {
        &self.face.definition
    }

    fn names(&self) -> &[Cow<'static, str>] {
        &self.names
    }

    fn quick(&self) -> bool {
        T::QUICK
    }

    fn stops_itself(&self) -> bool {
        T::STOPS_ITSELF
    }

    fn time(&self, limits: &Limits) -> Duration {
        T::time(limits)
    }

    fn plan(&self, arguments: &str, cx: &Context<'_>) -> Result<(Vec<Touch>, Box<dyn Planned>), ToolError> {
        let args = (self.face.decode)(arguments, cx.limits.argument_bytes)?;
        let Plan { touches, work } = self.tool.plan(args, cx)?;
        check_verbs::<T>(&touches)?;
        Ok((touches, Box::new(BoundPlan { tool: Arc::clone(&self.tool), face: Arc::clone(&self.face), work })))
    }
}

impl<T: Tool> Planned for BoundPlan<T> {
    fn preview(&mut self, cx: &Context<'_>) -> Result<Preview, ToolError> {
        self.tool.preview(&mut self.work, cx)
    }

    fn wants_review(&self) -> Option<Review> {
        self.tool.wants_review(&self.work)
    }

    fn run(self: Box<Self>, ticket: &Ticket<'_>, notes: Notes) -> Result<Ran, ToolError> {
        let Self { tool, face, work } = *self;
        let outcome = tool.run(work, ticket)?;
        Ok(match tool.follow(outcome) {
            Next::Done(outcome) => Ran::Said(face.render(outcome, notes)),
            Next::Rest(Remainder { groups, work }) => {
                groups.iter().try_for_each(|group| check_verbs::<T>(&group.touches))?;
                Ran::Rest(groups, Box::new(Self { tool, face, work }))
            }
        })
    }

    fn settle(&mut self, wanted: Vec<KeepDecision>) -> Vec<KeepDecision> {
        self.tool.settle(&mut self.work, wanted)
    }

    fn leave(self: Box<Self>, refused: ToolError, notes: Notes) -> Result<String, ToolError> {
        let outcome = self.tool.leave(self.work, refused)?;
        Ok(self.face.render(outcome, notes))
    }
}

/// Callers were told what the tool can do, and may have decided by it.
fn check_verbs<T: Tool>(touches: &[Touch]) -> Result<(), ToolError> {
    match touches.iter().find(|touch| !T::VERBS.contains(&touch.verb)) {
        None => Ok(()),
        Some(touch) => {
            let message = format!("the tool wants to {}, which it does not say that it does", touch.verb.as_str());
            Err(ToolError::new(ErrorKind::Internal, message))
        }
    }
}

fn decode_into<A, T>(arguments: &str, limit: u64) -> Result<T::Args, ToolError>
where
    T: Tool,
    A: DeserializeOwned + TryInto<T::Args>,
    ToolError: From<A::Error>,
{
    Ok(decode::<A>(arguments, limit)?.try_into()?)
}

fn define<A: JsonSchema, T: Tool>(dialect: Dialect, name: &'static str, output: Option<Value>) -> Definition {
    let mut schema = settings().into_generator().into_root_schema_for::<A>();
    schema.remove("title");
    let description = match schema.remove("description") {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    let effect = Effect { verbs: T::VERBS, same_again: T::SAME_AGAIN };
    Definition {
        dialect,
        name: Cow::Borrowed(name),
        description,
        parameters: Value::from(schema),
        output,
        effect,
        is_available: true,
    }
}

fn output_schema<V: JsonSchema>() -> Value {
    let mut schema: Schema = settings().for_serialize().into_generator().into_root_schema_for::<V>();
    schema.remove("title");
    schema.remove("description");
    Value::from(schema)
}

/// Whole schemas without references: many models and servers do not follow `$ref`.
fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    })
}

impl<T: Tool> fmt::Debug for Face<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Face").field("definition", &self.definition).finish_non_exhaustive()
    }
}
