//! The jail: programs that see the workspace and nothing else.
//!
//! Not here: policy, journal and the files themselves. The jail gets a `View` and gives back what the program left.
