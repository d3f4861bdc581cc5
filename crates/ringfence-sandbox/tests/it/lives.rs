//! Who dies with whom, and who comes back.

use crate::world::{World, everyone};

#[test]
fn there_is_no_network_but_loopback() {
    everyone("lives::there_is_no_network_but_loopback", || {
        let ended = World::new().python(
            "import socket, threading, os\n\
             s = socket.create_server(('127.0.0.1', 0))\n\
             threading.Thread(target=lambda: s.accept()[0].send(b'hi')).start()\n\
             print(socket.create_connection(s.getsockname()).recv(2))\n\
             try: socket.create_connection(('192.0.2.1', 80), 1)\n\
             except OSError as e: print(e.strerror)\n\
             print(os.getuid(), os.geteuid(), open('/proc/net/dev').read().count(':'))\n",
        );
        assert_eq!(ended.stdout.text(), "b'hi'\nNetwork is unreachable\n1000 1000 1\n", "{}", ended.stderr.text());
    });
}
