//! Symbols by language.

use std::fmt::Write as _;

use expect_test::{Expect, expect};

use crate::{ExtractionLimits, SourceLanguage, extract_symbols};

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "as `expect!` gives it")]
fn check(path: &str, source: &str, expected: Expect) {
    let language = SourceLanguage::of_path(path).unwrap();
    let mut text = String::new();
    for symbol in extract_symbols(language, source.as_bytes(), &ExtractionLimits::default()) {
        let lines = (symbol.start_line, symbol.end_line);
        let _ = writeln!(text, "{}-{} {} [{}] {}", lines.0, lines.1, symbol.kind.name(), symbol.owner, symbol.name);
        let _ = writeln!(text, "    {}", symbol.signature);
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for (label, part) in [("doc", &symbol.doc), ("body", &symbol.body)] {
            if !part.trim().is_empty() {
                let _ = writeln!(text, "    {label}: {}", flat(part));
            }
        }
    }
    expected.assert_eq(&text);
}

#[test]
fn rust() {
    check(
        "a.rs",
        r#"//! File.

use std::fmt;

/// A point.
///
/// In space.
#[derive(Debug)]
pub struct Point<T> {
    /// Across.
    x: T,
}

impl<T: Copy> fmt::Display for Point<T> {
    // Not documentation.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "point")
    }
}

/// Shapes.
pub trait Shape: Sized {
    /// Its area.
    fn area(&self) -> f64;
}

mod inner {
    /// Adds.
    pub(crate) const fn add(a: u32, b: u32) -> u32 { a + b }
}

const LIMIT: usize = 10;
type Pair = (u32, u32);
enum Color { Red, Green }
/// Makes it.
macro_rules! make { () => { 1 } }
"#,
        expect![[r#"
            9-12 struct [] Point
                pub struct Point<T>
                doc: A point. In space.
                body: { /// Across. x: T, }
            16-18 method [fmt::Display for Point] fmt
                fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result
                body: // Not documentation. { write!(f, "point") }
            22-25 trait [] Shape
                pub trait Shape: Sized
                doc: Shapes.
                body: { area }
            24-24 method [Shape] area
                fn area(&self) -> f64
                doc: Its area.
            29-29 function [inner] add
                pub(crate) const fn add(a: u32, b: u32) -> u32
                doc: Adds.
                body: { a + b }
            32-32 constant [] LIMIT
                const LIMIT: usize = 10
            33-33 type [] Pair
                type Pair = (u32, u32)
            34-34 enum [] Color
                enum Color
                body: { Red, Green }
            36-36 macro [] make
                macro_rules! make
                doc: Makes it.
                body: { () => { 1 } }
        "#]],
    );
}

#[test]
fn python() {
    check(
        "a.py",
        r#""""Module."""
import os

LIMIT = 10


class Cart(Base):
    """A cart of things."""

    # Adds a thing.
    @property
    def total(self) -> int:
        """Sum of prices.

        In cents."""
        return sum(item.price for item in self.items)

    async def load(self, path: str = "x"):
        await read(path)


if os.name == "posix":
    def open_it(path):
        r'''Opens.'''
        def nested():
            pass
        return path
"#,
        expect![[r#"
            4-4 constant [] LIMIT
                LIMIT = 10
            7-19 class [] Cart
                class Cart(Base)
                doc: A cart of things.
                body: total load
            12-16 method [Cart] total
                def total(self) -> int
                doc: Sum of prices. In cents.
                body: # Adds a thing. return sum(item.price for item in self.items)
            18-19 method [Cart] load
                async def load(self, path: str = "x")
                body: await read(path)
            23-27 function [] open_it
                def open_it(path)
                doc: Opens.
                body: def nested(): pass return path
        "#]],
    );
}

#[test]
fn javascript_and_typescript() {
    check(
        "a.tsx",
        r#"// Licence.

import x from "y";

/**
 * Reads a user.
 */
export async function readUser<T>(id: string): Promise<T> {
  function helper() { return 1; }
  return helper();
}

export const parseDate = (text: string): Date => new Date(text);
export const LIMIT = 5;

/** A store. */
export default abstract class Store<T> extends Base<T> {
  items: T[] = [];
  onChange = (item: T) => { this.items.push(item); };
  /** Adds. */
  add(item: T): void { this.items.push(item); }
  abstract clear(): void;
}

interface Shape { area(): number }
type Pair = [number, number];
enum Color { Red }
namespace Inner { export function deep() {} }
declare function ambient(x: number): void;
const View = () => <div onClick={() => go()}>{"text"}</div>;
"#,
        expect![[r#"
            8-11 function [] readUser
                async function readUser<T>(id: string): Promise<T>
                doc: Reads a user.
                body: { helper return helper(); }
            9-9 function [readUser] helper
                function helper()
                body: { return 1; }
            13-13 function [] parseDate
                parseDate = (text: string): Date =>
                body: new Date(text)
            14-14 constant [] LIMIT
                LIMIT = 5
            17-23 class [] Store
                abstract class Store<T> extends Base<T>
                doc: A store.
                body: { items: T[] = []; onChange ; add clear ; }
            19-19 method [Store] onChange
                onChange = (item: T) =>
                body: { this.items.push(item); }
            21-21 method [Store] add
                add(item: T): void
                doc: Adds.
                body: { this.items.push(item); }
            22-22 method [Store] clear
                abstract clear(): void
            25-25 interface [] Shape
                interface Shape
                body: { area(): number }
            26-26 type [] Pair
                type Pair = [number, number]
            27-27 enum [] Color
                enum Color
                body: { Red }
            28-28 module [] Inner
                namespace Inner
                body: { export deep }
            28-28 function [Inner] deep
                function deep()
                body: {}
            29-29 function [] ambient
                function ambient(x: number): void
            30-30 function [] View
                View = () =>
                body: <div onClick={() => go()}>{"text"}</div>
        "#]],
    );
    check(
        "a.js",
        r#"'use strict';
exports.send = function (req) { return req; };
Request.prototype.abort = function abort() {};
const handlers = { open: function () {}, close() {}, "on-end": () => 1 };
let { a, b } = require("c");
(function () { function hidden() {} })();
"#,
        expect![[r#"
            2-2 function [] send
                exports.send = function (req)
                body: { return req; }
            3-3 function [Request] abort
                Request.prototype.abort = function abort()
                body: {}
            4-4 constant [] handlers
                handlers = { open: function () {}, close() {}, "on-end": () => 1 }
            4-4 function [handlers] open
                open: function ()
                body: {}
            4-4 method [handlers] close
                close()
                body: {}
            4-4 function [handlers] on-end
                "on-end": () =>
                body: 1
            6-6 function [] hidden
                function hidden()
                body: {}
        "#]],
    );
}

#[test]
fn go() {
    check(
        "a.go",
        r#"package a

// Server serves.
type Server struct {
	// Addr to listen on.
	Addr string
}

type (
	Handler interface { Serve() error }
	ID = int
)

// Serve runs.
func (s *Server[T]) Serve(l net.Listener) error {
	return nil
}

func New(addr string) *Server { return &Server{addr} }

const (
	// Limit of it.
	Limit = 10
)
var errClosed = errors.New("closed")
"#,
        expect![[r#"
            4-7 struct [] Server
                type Server
                doc: Server serves.
                body: struct { // Addr to listen on. Addr string }
            10-10 interface [] Handler
                type Handler
                body: interface { Serve() error }
            11-11 type [] ID
                type ID = int
            15-17 method [Server] Serve
                func (s *Server[T]) Serve(l net.Listener) error
                doc: Serve runs.
                body: { return nil }
            19-19 function [] New
                func New(addr string) *Server
                body: { return &Server{addr} }
            23-23 constant [] Limit
                const Limit = 10
                doc: Limit of it.
            25-25 constant [] errClosed
                var errClosed = errors.New("closed")
        "#]],
    );
}

#[test]
fn java() {
    check(
        "A.java",
        r#"package a;

/** A cart. */
@Entity
public class Cart<T> extends Base implements Shape {
    private static final int LIMIT = 1;

    /** Makes one. */
    public Cart(int size) { this.size = size; }

    @Override
    public List<T> items() throws IOException { return items; }

    enum Color { RED; int code() { return 1; } }
    interface Inner { void go(); }
}
record Pair(int a, int b) {}
"#,
        expect![[r#"
            4-16 class [] Cart
                @Entity public class Cart<T> extends Base implements Shape
                doc: A cart.
                body: { private static final int LIMIT = 1; Cart items Color Inner }
            9-9 method [Cart] Cart
                public Cart(int size)
                doc: Makes one.
                body: { this.size = size; }
            11-12 method [Cart] items
                @Override public List<T> items() throws IOException
                body: { return items; }
            14-14 enum [Cart] Color
                enum Color
                body: { RED; code }
            14-14 method [Cart.Color] code
                int code()
                body: { return 1; }
            15-15 interface [Cart] Inner
                interface Inner
                body: { go }
            15-15 method [Cart.Inner] go
                void go()
            17-17 class [] Pair
                record Pair(int a, int b)
                body: {}
        "#]],
    );
}

#[test]
fn c() {
    check(
        "a.c",
        r#"#include <stdio.h>
#define LIMIT 10
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* A node. */
struct node { struct node *next; int value; };
typedef struct { int x; } point_t;
typedef int (*compare_fn)(const void *, const void *);
enum color { RED, GREEN };

#ifdef X
// Pushes.
static struct node *push(struct node *head, int value)
{
    return head;
}
#endif
int count(const struct node *head);
static int total = 0;
"#,
        expect![[r#"
            2-2 macro [] LIMIT
                #define LIMIT
                body: 10
            3-3 macro [] MAX
                #define MAX(a, b)
                body: ((a) > (b) ? (a) : (b))
            6-6 struct [] node
                struct node
                doc: A node.
                body: { struct node *next; int value; }
            7-7 struct [] point_t
                typedef struct
                body: { int x; } point_t;
            8-8 type [] compare_fn
                typedef int (*compare_fn)(const void *, const void *)
            9-9 enum [] color
                enum color
                body: { RED, GREEN }
            13-16 function [] push
                static struct node *push(struct node *head, int value)
                doc: Pushes.
                body: { return head; }
            18-18 function [] count
                int count(const struct node *head)
            19-19 constant [] total
                static int total = 0
        "#]],
    );
}

#[test]
fn other_languages_by_their_lines() {
    check(
        "a.cpp",
        r#"// Reads.
int Reader::read(char *buffer, size_t size)
{
    if (size == 0) {
        return 0;
    }
    return size;
}

template <typename T>
class Stack : public Base {
public:
    void push(T item) {
        items.push_back(item);
    }
};
"#,
        expect![[r#"
            2-8 function [Reader] read
                int Reader::read(char *buffer, size_t size)
                doc: Reads.
                body: { if (size == 0) { return 0; } return size; }
            11-16 class [] Stack
                class Stack : public Base
                body: public:
            13-15 function [Stack] push
                void push(T item)
                body: items.push_back(item); }
        "#]],
    );
    check(
        "a.rb",
        r#"module Shop
  # A cart.
  class Cart < Base
    def self.open(id)
      find(id)
    end

    def total?
      1
    end
  end
end
"#,
        expect![[r#"
            1-12 module [] Shop
                module Shop
                body: # A cart.
            3-11 class [Shop] Cart
                class Cart < Base
                doc: A cart.
            4-6 function [Cart] open
                def self.open(id)
                body: find(id) end
            8-10 function [Cart] total?
                def total?
                body: 1 end
        "#]],
    );
    check(
        "a.lua",
        "function M.open(path)\n  return 1\nend\nlocal close = function(x)\nend\n",
        expect![[r#"
        1-3 function [M] open
            function M.open(path)
            body: return 1 end
        4-5 function [] close
            local close = function(x)
            body: end
    "#]],
    );
    check(
        "a.sql",
        "CREATE TABLE IF NOT EXISTS users (\n  id INT\n);\n",
        expect![[r#"
        1-3 struct [] users
            CREATE TABLE IF NOT EXISTS users (
            body: id INT );
    "#]],
    );
    check(
        "a.sh",
        "# Builds.\nbuild() {\n  make\n}\n\nif test; then (a) {\n",
        expect![[r#"
        2-4 function [] build
            build()
            doc: Builds.
            body: make }
    "#]],
    );
    check(
        "a.ex",
        "defmodule Shop.Cart do\n  def add(cart, item) do\n    1\n  end\nend\n",
        expect![[r#"
        1-5 module [Shop] Cart
            defmodule Shop.Cart do
        2-4 function [Cart] add
            def add(cart, item) do
            body: 1 end
    "#]],
    );
}
