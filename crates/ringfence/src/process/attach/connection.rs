//! Connections to running wrapped programs, of those who attach.
//!
//! Not here: the terminal of a person who attaches (`cli/wrapped_run/attached_terminal.rs`).

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::codec::io_text::IoText;
use crate::process::attach::attach_directory::AttachDirectory;
use crate::process::attach::protocol::{
    AttachFrame, AttachFrameDecoder, AttachFrameError, AttachHello, AttachRole, MAX_REPLY_BYTES, PROTOCOL_VERSION,
    RunRequest, RunStatus,
};

/// The longest that a run may take for a reply. One that is stopped with its process gives none.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A run that cannot be attached to, or does not do what is requested.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("no running program has the layer `{0}`; `ringfence layers list` shows which ones run")]
    NotRunning(String),
    #[error("`{0}` is the start of several layers; give the whole ID")]
    Ambiguous(String),
    #[error("{0}")]
    Refused(String),
    #[error("cannot reach the run: {}", IoText(.0))]
    Io(#[from] io::Error),
    #[error("the run does not speak this version's protocol: {0}")]
    Protocol(#[from] AttachFrameError),
}

/// A connection to a run.
#[derive(Debug)]
pub(crate) struct AttachConnection {
    pub(crate) stream: UnixStream,
    decoder: AttachFrameDecoder,
    layer: String,
}

impl AttachConnection {
    /// Connects to the run of a layer, by its ID or the start of it, as this person.
    pub(crate) fn open(state: &Path, layer: &str, hello: AttachHello) -> Result<Self, AttachError> {
        let directory = AttachDirectory::open(state)?;
        let found: Vec<String> =
            directory.layers()?.into_iter().filter(|name| !layer.is_empty() && name.starts_with(layer)).collect();
        let connected = found.into_iter().filter_map(|name| Some((directory.connect(&name).ok()?, name)));
        let connected: Vec<_> = connected.take(2).collect();
        let (stream, layer) = match <[_; 1]>::try_from(connected) {
            Ok([(stream, name)]) => (stream, name),
            Err(none) if none.is_empty() => return Err(AttachError::NotRunning(layer.to_owned())),
            Err(_) => return Err(AttachError::Ambiguous(layer.to_owned())),
        };
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut connection = Self { stream, decoder: AttachFrameDecoder::new(MAX_REPLY_BYTES), layer };
        connection.send(&AttachFrame::Hello(hello))?;
        Ok(connection)
    }

    /// The whole ID of the layer.
    pub(crate) fn layer(&self) -> &str {
        &self.layer
    }

    pub(crate) fn send(&mut self, frame: &AttachFrame) -> Result<(), AttachError> {
        Ok(self.stream.write_all(&frame.encode())?)
    }

    /// The next frame that was read already.
    pub(crate) fn read_frame(&mut self) -> Result<Option<AttachFrame>, AttachError> {
        Ok(self.decoder.next_frame()?)
    }

    /// Reads once. False at the end of the connection.
    pub(crate) fn read_more(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 32 << 10];
        let count = self.stream.read(&mut bytes)?;
        self.decoder.push(bytes.get(..count).unwrap_or_default());
        Ok(count > 0)
    }

    /// Waits for the next frame. A refusal is an error.
    pub(crate) fn next_frame(&mut self) -> Result<AttachFrame, AttachError> {
        loop {
            match self.decoder.next_frame()? {
                Some(AttachFrame::Refused(reason)) => return Err(AttachError::Refused(reason)),
                Some(frame) => return Ok(frame),
                None if self.read_more()? => {}
                None => return Err(AttachError::NotRunning(self.layer.clone())),
            }
        }
    }
}

/// The layers of runs that may go on. One that was killed is still among them.
pub(crate) fn running_layers(state: &Path) -> Result<Vec<String>, AttachError> {
    Ok(AttachDirectory::open(state)?.layers()?)
}

/// Types to a run as this person, who takes over from the former writer. The run has got everything when this returns.
pub(crate) fn type_to_run(state: &Path, layer: &str, person: &str, keys: Vec<u8>) -> Result<(), AttachError> {
    let role = AttachRole::Writer;
    let hello = AttachHello { version: PROTOCOL_VERSION, role, person: person.to_owned(), size: None };
    let mut connection = AttachConnection::open(state, layer, hello)?;
    wait_for_role(&mut connection)?;
    connection.send(&AttachFrame::Input(keys))?;
    // Its notice that we only view comes when it took what we typed before.
    connection.send(&AttachFrame::Leave)?;
    wait_for_role(&mut connection)
}

fn wait_for_role(connection: &mut AttachConnection) -> Result<(), AttachError> {
    loop {
        if let AttachFrame::Role(_) = connection.next_frame()? {
            return Ok(());
        }
    }
}

/// Makes a request of a run, and gives its state after it.
pub(crate) fn request_run(
    state: &Path,
    layer: &str,
    person: &str,
    request: RunRequest,
) -> Result<RunStatus, AttachError> {
    let role = AttachRole::Control;
    let hello = AttachHello { version: PROTOCOL_VERSION, role, person: person.to_owned(), size: None };
    let mut connection = AttachConnection::open(state, layer, hello)?;
    connection.send(&AttachFrame::Request(request))?;
    loop {
        if let AttachFrame::Reply(status) = connection.next_frame()? {
            return Ok(status);
        }
    }
}
