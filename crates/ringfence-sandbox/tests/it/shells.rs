//! What a shell needs of a jail: one stream for all output, a report of its final directory, and a network that it shares
//! with the programs of its session.

use std::fs::File;
use std::io::Read as _;
use std::thread;

use ringfence_sandbox::{JailJob, OutputCapture, RunResult};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::fixture::{OutputObserver, SandboxFixture, as_each_user};

const BASH: [&str; 2] = ["bash", "/run/ringfence/main"];

fn run(world: &SandboxFixture, script: &str, network: Option<u64>) -> RunResult {
    let view = world.view();
    let job = JailJob { output: OutputCapture::Merged, network, ..world.job(&view, &BASH, script) };
    world.sandbox.run(&job, &OutputObserver::default()).unwrap()
}

#[test]
fn merged_streams_keep_the_order_of_writing() {
    as_each_user("shells::merged_streams_keep_the_order_of_writing", || {
        let ended = run(&SandboxFixture::new(), "for i in 1 2 3; do echo out $i; echo err $i >&2; done", None);
        assert_eq!(ended.stdout.text(), "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n");
        assert_eq!(ended.stderr.text(), "");
    });
}

#[test]
fn a_shell_reports_its_final_directory_on_a_descriptor_of_its_own() {
    as_each_user("shells::a_shell_reports_its_final_directory_on_a_descriptor_of_its_own", || {
        check_report(&SandboxFixture::new());
    });
}

#[test]
fn the_systems_bwrap_passes_that_descriptor_on() {
    if let Some(world) = SandboxFixture::with_bwrap() {
        check_report(&world);
    }
}

fn check_report(world: &SandboxFixture) {
    world.write("src/a", "");
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let view = world.view();
    let script = "cd src; echo there; pwd >&9; ls /proc/self/fd | tr '\\n' ' '";
    let job = JailJob { directory_report: Some(&theirs), ..world.job(&view, &BASH, script) };
    let ended = world.sandbox.run(&job, &OutputObserver::default()).unwrap();
    drop(theirs);
    let mut report = String::new();
    File::from(ours).read_to_string(&mut report).unwrap();
    assert_eq!(report, "/workspace/src\n", "{}", ended.stderr.text());
    assert_eq!(ended.stdout.text(), "there\n0 1 2 3 9 ");
    assert_eq!(world.stdout_of("{ echo x >&9; } 2>/dev/null || echo closed"), "closed\n");
}

#[test]
fn programs_of_one_network_reach_each_other_and_no_others() {
    as_each_user("shells::programs_of_one_network_reach_each_other_and_no_others", || {
        const SERVER: &str = "exec python3 -c 'import socket\n\
            s = socket.create_server((\"127.0.0.1\", 8000)); print(\"ready\", flush=True)\n\
            while True: s.accept()[0].sendall(b\"hello\")'";
        const CLIENT: &str = "exec 3<>/dev/tcp/127.0.0.1/8000 && head -c 5 <&3; cat /proc/net/dev | grep -c :";
        let world = SandboxFixture::new();
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let stop = OutputObserver::stopping_at("never");
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let view = world.view();
                let job = JailJob {
                    network: Some(7),
                    directory_report: Some(&theirs),
                    ..world.job(&view, &["bash", "-c", &format!("{SERVER} >&9")], "")
                };
                world.sandbox.run(&job, &stop).unwrap()
            });
            let mut ready = [0; 6];
            File::from(ours.try_clone().unwrap()).read_exact(&mut ready).unwrap();
            assert_eq!(&ready, b"ready\n");
            assert_eq!(run(&world, CLIENT, Some(7)).stdout.text(), "hello1\n");
            for other in [None, Some(8)] {
                let alone = run(&world, CLIENT, other).stdout.text();
                assert!(alone.contains("refused"), "{alone}");
            }
            // A closed network is another one from then on; who is in it stays in it.
            world.sandbox.close_network(7);
            assert!(run(&world, CLIENT, Some(7)).stdout.text().contains("refused"));
            stop.stop();
            server.join().unwrap();
        });
        // Nothing of it can be changed from inside, and nothing but loopback is there.
        const CHANGES: [&str; 4] = [
            "ip link set lo down",
            "ip addr flush dev lo",
            "echo 4096 4096 4096 > /proc/sys/net/ipv4/tcp_rmem",
            "ping -c1 192.0.2.1",
        ];
        for change in CHANGES {
            let found = run(&world, change, Some(9));
            assert_ne!(found.exit_code, 0, "{change}: {}", found.stdout.text());
        }
        const LOOPBACK: &str = "exec python3 -c 'import socket\n\
            s = socket.create_server((\"127.0.0.1\", 0)); c = socket.create_connection(s.getsockname())\n\
            s.accept()[0].sendall(b\"still here\"); print(c.recv(20))'";
        let all = format!("{}; {LOOPBACK}", CHANGES.join("; "));
        let found = run(&world, &all, Some(9)).stdout.text();
        assert!(found.ends_with("b'still here'\n"), "{found}");
        assert!(run(&world, "echo hi > /dev/tcp/192.0.2.1/80", Some(9)).stdout.text().contains("unreachable"));
    });
}

#[test]
fn programs_of_one_network_share_no_abstract_socket() {
    as_each_user("shells::programs_of_one_network_share_no_abstract_socket", || {
        const LISTEN: &str = "exec python3 -c 'import socket, time\n\
            s = socket.socket(socket.AF_UNIX); s.bind(\"\\0job\"); s.listen(); print(\"ready\", flush=True)\n\
            s.accept()'";
        const CONNECT: &str = "exec python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"\\0job\")' 2>&1";
        let world = SandboxFixture::new();
        let listener = OutputObserver::stopping_at("never");
        thread::scope(|scope| {
            let running = scope.spawn(|| {
                let view = world.view();
                let job = JailJob { network: Some(3), ..world.job(&view, &BASH, LISTEN) };
                world.sandbox.run(&job, &listener).unwrap()
            });
            while !listener.bytes.lock().unwrap().starts_with(b"ready") && !running.is_finished() {
                thread::yield_now();
            }
            let found = run(&world, CONNECT, Some(3)).stdout.text();
            // Landlock refuses the connection or, where it cannot, the filter refuses both sockets.
            assert!(found.contains("PermissionError") || found.contains("Address family not supported"), "{found}");
            listener.stop();
            running.join().unwrap();
        });
    });
}
