//! Definitions in syntax trees: which nodes of each grammar define a symbol or own the symbols in them.
//!
//! One function for each language, by the kinds of nodes of its grammar.
//!
//! Not here: the walk over the tree (`extract.rs`).

use std::ops::Range;

use tree_sitter::Node;

use crate::language::SourceLanguage;
use crate::symbol::SymbolKind;

/// What a node is to the walk.
pub(crate) enum NodeRole {
    /// Punctuation and keywords.
    Mark,
    Comment {
        is_doc: bool,
    },
    /// Stands between a definition and its comments.
    Attribute,
    /// Nothing in it is defined.
    Skip,
    /// Something in it may be defined.
    Descend,
    /// It owns what is defined in it, without being a symbol.
    Container(SyntaxScope),
    /// A symbol. `inside` is the scope of what is defined in it, if that is looked for.
    Definition {
        definition: Box<DefinitionNode>,
        inside: Option<SyntaxScope>,
    },
}

/// The scope of definitions.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyntaxScope {
    pub(crate) owner: String,
    /// Functions in it are methods.
    pub(crate) is_type: bool,
}

/// A node that defines something.
#[derive(Clone, Debug)]
pub(crate) struct DefinitionNode {
    pub(crate) kind: SymbolKind,
    pub(crate) name: String,
    /// The owner, if it is not that of the scope.
    pub(crate) owner: Option<String>,
    /// What the signature begins with and the node has not.
    pub(crate) prefix: &'static str,
    pub(crate) range: Range<usize>,
    pub(crate) body: Option<Range<usize>>,
}

/// The role of a named node at a depth below the root.
pub(crate) fn classify(
    language: SourceLanguage,
    node: Node<'_>,
    source: &[u8],
    scope: &SyntaxScope,
    depth: usize,
) -> NodeRole {
    let at = SyntaxNode { node, source, scope, depth };
    match language {
        SourceLanguage::Rust => at.rust(),
        SourceLanguage::Python => at.python(),
        SourceLanguage::JavaScript | SourceLanguage::TypeScript => at.script(),
        SourceLanguage::Go => at.go(),
        SourceLanguage::Java => at.java(),
        SourceLanguage::C => at.c(),
        SourceLanguage::Outlined(_) => NodeRole::Skip,
    }
}

/// The range of the string that documents a definition from inside.
pub(crate) fn docstring(language: SourceLanguage, node: Node<'_>) -> Option<Range<usize>> {
    if language != SourceLanguage::Python {
        return None;
    }
    let first = node.child_by_field_name("body")?.named_child(0)?;
    let string = if first.kind() == "expression_statement" { first.named_child(0)? } else { first };
    (string.kind() == "string").then(|| string.byte_range())
}

struct SyntaxNode<'a, 'tree> {
    node: Node<'tree>,
    source: &'a [u8],
    scope: &'a SyntaxScope,
    depth: usize,
}

impl<'tree> SyntaxNode<'_, 'tree> {
    fn field(&self, name: &str) -> Option<Node<'tree>> {
        self.node.child_by_field_name(name)
    }

    fn text(&self, node: Node<'_>) -> String {
        String::from_utf8_lossy(self.source.get(node.byte_range()).unwrap_or_default()).into_owned()
    }

    fn field_text(&self, name: &str) -> String {
        self.field(name).map(|node| self.text(node)).unwrap_or_default()
    }

    /// A symbol by its fields `name` and `body`.
    fn named(&self, kind: SymbolKind, body: &str) -> DefinitionNode {
        DefinitionNode {
            kind,
            name: self.field_text("name"),
            owner: None,
            prefix: "",
            range: self.node.byte_range(),
            body: self.field(body).map(|node| node.byte_range()),
        }
    }

    /// A symbol that nothing is looked for in.
    fn leaf(definition: DefinitionNode) -> NodeRole {
        NodeRole::Definition { definition: Box::new(definition), inside: None }
    }

    /// A symbol that owns what is defined in it.
    fn owning(&self, definition: DefinitionNode, is_type: bool) -> NodeRole {
        let inside = SyntaxScope { owner: self.joined(&definition.name), is_type };
        NodeRole::Definition { definition: Box::new(definition), inside: Some(inside) }
    }

    fn joined(&self, name: &str) -> String {
        match self.scope.owner.as_str() {
            "" => name.to_owned(),
            outer => format!("{outer}.{name}"),
        }
    }

    fn function_kind(&self) -> SymbolKind {
        if self.scope.is_type { SymbolKind::Method } else { SymbolKind::Function }
    }

    fn rust(&self) -> NodeRole {
        match self.node.kind() {
            "line_comment" | "block_comment" => NodeRole::Comment { is_doc: self.field("outer").is_some() },
            "attribute_item" => NodeRole::Attribute,
            "function_item" | "function_signature_item" => Self::leaf(self.named(self.function_kind(), "body")),
            "struct_item" => Self::leaf(self.named(SymbolKind::Struct, "body")),
            "enum_item" => Self::leaf(self.named(SymbolKind::Enum, "body")),
            "union_item" => Self::leaf(self.named(SymbolKind::Union, "body")),
            // An associated type of an implementation only repeats the trait.
            "type_item" if self.scope.is_type => NodeRole::Skip,
            "type_item" => Self::leaf(self.named(SymbolKind::TypeAlias, "type")),
            "const_item" | "static_item" => Self::leaf(self.named(SymbolKind::Constant, "value")),
            "macro_definition" => {
                let definition = self.named(SymbolKind::Macro, "body");
                let body = self.field("name").map(|name| name.end_byte()..self.node.end_byte());
                Self::leaf(DefinitionNode { body, ..definition })
            }
            "trait_item" => {
                let definition = self.named(SymbolKind::Trait, "body");
                let inside = SyntaxScope { owner: definition.name.clone(), is_type: true };
                NodeRole::Definition { definition: Box::new(definition), inside: Some(inside) }
            }
            "impl_item" => {
                let of = without_generics(&self.field_text("type"));
                let owner = match self.field("trait") {
                    Some(name) => format!("{} for {of}", without_generics(&self.text(name))),
                    None => of,
                };
                NodeRole::Container(SyntaxScope { owner, is_type: true })
            }
            "mod_item" => match self.field("body") {
                Some(_) => NodeRole::Container(SyntaxScope { owner: self.field_text("name"), is_type: false }),
                None => NodeRole::Skip,
            },
            "token_tree" | "use_declaration" | "inner_attribute_item" => NodeRole::Skip,
            _ => self.plain(),
        }
    }

    fn python(&self) -> NodeRole {
        match self.node.kind() {
            "comment" => NodeRole::Comment { is_doc: false },
            "decorator" => NodeRole::Attribute,
            "function_definition" => Self::leaf(self.named(self.function_kind(), "body")),
            "class_definition" => self.owning(self.named(SymbolKind::Class, "body"), true),
            "assignment" if self.depth == 2 => {
                let name = self.field("left").filter(|left| left.kind() == "identifier");
                let name = name.map(|left| self.text(left)).unwrap_or_default();
                let definition = DefinitionNode { name, ..self.named(SymbolKind::Constant, "right") };
                Self::leaf(definition)
            }
            _ => self.plain(),
        }
    }

    fn script(&self) -> NodeRole {
        match self.node.kind() {
            "comment" => NodeRole::Comment { is_doc: true },
            "decorator" => NodeRole::Attribute,
            "function_declaration" | "generator_function_declaration" => {
                self.owning(self.named(SymbolKind::Function, "body"), false)
            }
            "function_signature" => Self::leaf(self.named(SymbolKind::Function, "body")),
            "method_definition" => self.owning(self.named(SymbolKind::Method, "body"), false),
            "abstract_method_signature" => Self::leaf(self.named(SymbolKind::Method, "body")),
            "class_declaration" | "abstract_class_declaration" => {
                self.owning(self.named(SymbolKind::Class, "body"), true)
            }
            "interface_declaration" => Self::leaf(self.named(SymbolKind::Interface, "body")),
            "enum_declaration" => Self::leaf(self.named(SymbolKind::Enum, "body")),
            "type_alias_declaration" => Self::leaf(self.named(SymbolKind::TypeAlias, "value")),
            "internal_module" | "module" => self.owning(self.named(SymbolKind::Module, "body"), false),
            "variable_declarator" | "public_field_definition" => self.script_value("name", "value"),
            "pair" => self.script_value("key", "value"),
            "assignment_expression" => self.script_value("left", "right"),
            _ => self.plain(),
        }
    }

    /// A name that gets a function, a class, or at the top level anything.
    fn script_value(&self, name: &str, value: &str) -> NodeRole {
        let (Some(target), Some(given)) = (self.field(name), self.field(value)) else { return NodeRole::Descend };
        let kind = match given.kind() {
            "arrow_function" | "function_expression" | "generator_function" => self.function_kind(),
            "class" => SymbolKind::Class,
            _ if self.node.kind() == "variable_declarator" && self.depth <= 3 => SymbolKind::Constant,
            _ => return NodeRole::Descend,
        };
        let (owner, name) = match target.kind() {
            "identifier" | "property_identifier" | "private_property_identifier" => (None, self.text(target)),
            "string" => (None, self.text(target).trim_matches(['"', '\'']).to_owned()),
            "member_expression" => {
                let part = |field| target.child_by_field_name(field).map(|node| self.text(node)).unwrap_or_default();
                let object = part("object");
                let object = object.strip_suffix(".prototype").unwrap_or(&object);
                let is_owner =
                    object.len() <= 60 && !matches!(object, "exports" | "module.exports" | "this" | "module");
                (is_owner.then(|| object.to_owned()), part("property"))
            }
            _ => return NodeRole::Descend,
        };
        let body = given.child_by_field_name("body").unwrap_or(given).byte_range();
        let definition = DefinitionNode { kind, name, owner, body: Some(body), ..self.named(kind, value) };
        match kind {
            SymbolKind::Constant => self.owning(definition, false),
            kind => self.owning(definition, kind == SymbolKind::Class),
        }
    }

    fn go(&self) -> NodeRole {
        match self.node.kind() {
            "comment" => NodeRole::Comment { is_doc: true },
            "function_declaration" => Self::leaf(self.named(SymbolKind::Function, "body")),
            "method_declaration" => {
                let receiver = self.field_text("receiver");
                let receiver = receiver.trim_matches(['(', ')']).split('[').next().unwrap_or_default();
                let owner = receiver.split_whitespace().next_back().unwrap_or_default().trim_start_matches('*');
                let owner = Some(owner.to_owned());
                Self::leaf(DefinitionNode { owner, ..self.named(SymbolKind::Method, "body") })
            }
            "type_spec" | "type_alias" => {
                let kind = match self.field("type").map(|node| node.kind()) {
                    Some("struct_type") => SymbolKind::Struct,
                    Some("interface_type") => SymbolKind::Interface,
                    _ => SymbolKind::TypeAlias,
                };
                Self::leaf(DefinitionNode { prefix: "type ", ..self.named(kind, "type") })
            }
            "const_spec" => {
                Self::leaf(DefinitionNode { prefix: "const ", ..self.named(SymbolKind::Constant, "value") })
            }
            "var_spec" => Self::leaf(DefinitionNode { prefix: "var ", ..self.named(SymbolKind::Constant, "value") }),
            _ => self.plain(),
        }
    }

    fn java(&self) -> NodeRole {
        let kind = match self.node.kind() {
            "line_comment" | "block_comment" => return NodeRole::Comment { is_doc: true },
            "method_declaration" | "constructor_declaration" | "compact_constructor_declaration" => {
                return Self::leaf(self.named(SymbolKind::Method, "body"));
            }
            "class_declaration" | "record_declaration" => SymbolKind::Class,
            "interface_declaration" | "annotation_type_declaration" => SymbolKind::Interface,
            "enum_declaration" => SymbolKind::Enum,
            "field_declaration" | "constant_declaration" => return NodeRole::Skip,
            _ => return self.plain(),
        };
        self.owning(self.named(kind, "body"), true)
    }

    fn c(&self) -> NodeRole {
        match self.node.kind() {
            "comment" => NodeRole::Comment { is_doc: true },
            "function_definition" => match declared_name(self.node) {
                Some((name, _)) => {
                    let name = self.text(name);
                    Self::leaf(DefinitionNode { name, ..self.named(SymbolKind::Function, "body") })
                }
                // A macro that looks like one may hold others.
                None => NodeRole::Descend,
            },
            "declaration" => {
                let defines_type = self.field("type").is_some_and(|of| of.child_by_field_name("body").is_some());
                match declared_name(self.node) {
                    _ if defines_type => NodeRole::Descend,
                    Some((name, is_function)) => {
                        let kind = if is_function { SymbolKind::Function } else { SymbolKind::Constant };
                        let name = self.text(name);
                        Self::leaf(DefinitionNode { name, ..self.named(kind, "body") })
                    }
                    None => NodeRole::Skip,
                }
            }
            "type_definition" => {
                let of = self.field("type");
                let kind = match of.map(|of| of.kind()) {
                    Some("struct_specifier") => SymbolKind::Struct,
                    Some("union_specifier") => SymbolKind::Union,
                    Some("enum_specifier") => SymbolKind::Enum,
                    _ => SymbolKind::TypeAlias,
                };
                let name = declared_name(self.node).map(|(name, _)| self.text(name)).unwrap_or_default();
                let body = of.and_then(|of| of.child_by_field_name("body")).map(|body| body.byte_range());
                Self::leaf(DefinitionNode { name, body, ..self.named(kind, "body") })
            }
            kind @ ("struct_specifier" | "union_specifier" | "enum_specifier") => {
                if self.field("body").is_none() || self.field("name").is_none() {
                    return NodeRole::Skip;
                }
                let kind = match kind {
                    "struct_specifier" => SymbolKind::Struct,
                    "union_specifier" => SymbolKind::Union,
                    _ => SymbolKind::Enum,
                };
                Self::leaf(self.named(kind, "body"))
            }
            "preproc_def" | "preproc_function_def" => Self::leaf(self.named(SymbolKind::Macro, "value")),
            "compound_statement" | "preproc_include" => NodeRole::Skip,
            _ => self.plain(),
        }
    }

    /// A node without a role of its own.
    fn plain(&self) -> NodeRole {
        if self.node.named_child_count() == 0 { NodeRole::Skip } else { NodeRole::Descend }
    }
}

/// The name that the declarators of C lead to, and whether it is a function's.
fn declared_name(node: Node<'_>) -> Option<(Node<'_>, bool)> {
    let mut at = node.child_by_field_name("declarator")?;
    let mut is_function = false;
    // Declarators are nested as deep as a file nests them.
    for _ in 0..32 {
        match at.kind() {
            "identifier" | "type_identifier" | "field_identifier" | "primitive_type" => return Some((at, is_function)),
            "function_declarator" => is_function = true,
            // A pointer to a function is a variable.
            "parenthesized_declarator" => {
                is_function = false;
                at = at.named_child(0)?;
                continue;
            }
            _ => {}
        }
        at = at.child_by_field_name("declarator")?;
    }
    None
}

fn without_generics(name: &str) -> String {
    name.split('<').next().unwrap_or_default().trim().to_owned()
}
