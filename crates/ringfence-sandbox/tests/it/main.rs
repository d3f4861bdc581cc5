//! Real programs in real jails, as root and as a plain user.

mod endings;
mod files;
mod lives;
mod world;
