//! Live sessions of the frontends, their owners and their taint.

pub(crate) mod live;
pub(crate) mod owners;
pub(crate) mod taint;
