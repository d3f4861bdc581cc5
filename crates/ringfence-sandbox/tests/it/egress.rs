//! Egress channel of a jail: programs reach the proxy outside, and nothing else.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;

use ringfence_sandbox::JailJob;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user};

/// Responses that a program gets at the proxy's address, and at others.
const CONNECT: &str = r#"
import os, socket
host, port = os.environ.get("http_proxy", "http://:0")[7:].split(":")
try:
    with socket.create_connection((host, int(port)), timeout=20) as way:
        way.sendall(b"ask")
        print(way.recv(100).decode())
except OSError as error:
    print("no way")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
    print("around it")
except OSError as error:
    print(error.strerror)
"#;

#[test]
fn a_program_meets_at_its_way_out_who_speaks_for_it() {
    as_each_user("egress::a_program_meets_at_its_way_out_who_speaks_for_it", || check_egress(&SandboxFixture::new()));
}

/// The same with jails that were built in another way.
pub(crate) fn check_egress(world: &SandboxFixture) {
    let view = world.view();
    let argv = ["python3", "/run/ringfence/main"];
    let (ours, theirs) = UnixStream::pair().unwrap();
    let speaker = std::thread::spawn(move || {
        let mut asked = [0; 3];
        let mut program = listener(&ours).accept().unwrap().0;
        program.read_exact(&mut asked).unwrap();
        program.write_all(b"heard outside").unwrap();
        // The jail holds its end of the way until it is gone.
        assert_eq!((&ours).read(&mut asked).unwrap(), 0);
    });
    let job = JailJob { egress: Some(theirs.into()), ..world.job(&view, &argv, CONNECT) };
    let ended = world.sandbox.run(&job, &OutputObserver::default()).unwrap();
    drop(job);
    let said = "Network is unreachable\n";
    assert_eq!(ended.stdout.text(), format!("heard outside\n{said}"), "{}", ended.stderr.text());
    speaker.join().unwrap();
    // Without a grant there is no listener.
    assert_eq!(world.python(CONNECT).stdout.text(), format!("no way\n{said}"));
}

/// The jail's listener.
fn listener(socket: &UnixStream) -> TcpListener {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptors = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.unwrap().into()
}
