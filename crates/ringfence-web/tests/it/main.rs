//! The web's tools on the whole road, against servers of our own.

mod asking;
mod bodies;
mod inward;
mod leaving;
mod searching;
mod searxng;
mod tls;
mod world;
