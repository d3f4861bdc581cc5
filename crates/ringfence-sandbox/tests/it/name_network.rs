//! Network for names: what programs connect to by name arrives at sockets outside, and their own network stays theirs.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use ringfence_sandbox::JailJob;
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType, recvmsg};

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user};

/// Connects by name, then listens where a server of a developer does.
const PROGRAM: &str = r#"
import os, socket
print(socket.gethostbyname("db.example.org"))
with socket.create_connection(("db.example.org", 5432), timeout=20) as stream:
    print(stream.recv(100).decode())
for port in (443, 5432, 53):
    try:
        socket.create_connection(("198.18.200.7", port), timeout=20).close()
        print("connected")
    except OSError as error:
        print(error.strerror)
for address in (("0.0.0.0", 8080), ("127.0.0.1", 443), ("0.0.0.0", 5432), ("127.0.0.1", 53)):
    with socket.socket() as server:
        server.bind(address)
        server.listen()
        with socket.create_connection(("127.0.0.1", address[1]), timeout=20) as client:
            accepted, _ = server.accept()
            accepted.sendall(b"own")
            print(client.recv(100).decode())
for address in (("192.0.2.1", 80), ("198.19.0.1", 22)):
    try:
        socket.create_connection(address, timeout=20)
        print("connected")
    except OSError as error:
        print(error.strerror)
print(open("/etc/resolv.conf").readline().strip())
"#;

#[test]
fn a_program_reaches_by_name_who_captures_it_and_keeps_its_own_ports() {
    as_each_user("name_network::a_program_reaches_by_name_who_captures_it_and_keeps_its_own_ports", || {
        let world = SandboxFixture::new();
        let view = world.view();
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(b"names 443 5432\n").unwrap();
        let host = std::thread::spawn(move || {
            let mut sockets = sockets(&ours).into_iter();
            let _proxy = sockets.next().unwrap();
            let resolver = sockets.next().unwrap();
            assert_eq!(socket_type(&resolver).unwrap(), SocketType::DGRAM);
            let mut listeners: Vec<TcpListener> = sockets.map(TcpListener::from).collect();
            let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
            assert_eq!(ports, [53, 443, 5432]);
            let database = listeners.pop().unwrap();
            std::thread::spawn(move || answer_queries(&UdpSocket::from(resolver)));
            let (mut stream, from) = database.accept().unwrap();
            assert_eq!(stream.local_addr().unwrap().to_string(), "198.18.1.1:5432");
            assert_eq!(from.ip().to_string(), "198.19.0.2");
            stream.write_all(b"captured").unwrap();
            drop(stream);
            // The jail holds its end of the way until it is gone, and its networks go with it.
            assert_eq!((&ours).read(&mut [0]).unwrap(), 0);
        });
        let argv = ["python3", "/run/ringfence/main"];
        let job = JailJob { egress: Some(theirs.into()), ..world.job(&view, &argv, PROGRAM) };
        let ended = world.sandbox.run(&job, &OutputObserver::default()).unwrap();
        drop(job);
        let expected = "198.18.1.1\ncaptured\nconnected\nconnected\nConnection refused\nown\nown\nown\nown\n\
            Network is unreachable\nConnection refused\nnameserver 198.19.0.1\n";
        assert_eq!(ended.stdout.text(), expected, "{}", ended.stderr.text());
        host.join().unwrap();
    });
}

/// Answers each question of an IPv4 address with the same one, as the proxy does.
fn answer_queries(socket: &UdpSocket) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let end = 12 + query[12..length].iter().position(|byte| *byte == 0).unwrap() + 5;
        let is_address = query[end - 3] == 1;
        let mut answer = query[..end].to_vec();
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
        if is_address {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 1, 1]);
        }
        socket.send_to(&answer, from).unwrap();
    }
}

/// The sockets that the jail hands out.
fn sockets(socket: &UnixStream) -> Vec<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    descriptors.flatten().collect()
}
