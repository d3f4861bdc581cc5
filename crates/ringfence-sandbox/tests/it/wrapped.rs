//! Wrapped programs: real paths, the person's identity, layers on disk, and a home directory that is not trusted.
//!
//! Not here: their terminals (`terminal.rs`), and what all jails hold (`escapes.rs`, `resource_exhaustion.rs`).

use std::fs;
use std::os::unix::fs::symlink;

use ringfence_sandbox::PlacedFile;

use crate::fixture::{OutputObserver, as_each_user};
use crate::wrapped_fixture::{WrappedFixture, names_in};

#[test]
fn a_program_is_where_and_who_it_is_without_a_jail() {
    as_each_user("wrapped::a_program_is_where_and_who_it_is_without_a_jail", || {
        let mut place = WrappedFixture::new();
        place.world.write("file", "text");
        place.files.push(PlacedFile { path: "/etc/placed".into(), contents: b"given".to_vec() });
        place.files.push(PlacedFile { path: "/home/me/.placed".into(), contents: b"at home".to_vec() });
        let printed = place.stdout_of(
            "pwd; cat file; echo; id -un; id -u; id -g; cd; pwd; cat /etc/placed ~/.placed; echo; ls -A ~\n\
             for path in /etc/placed ~/.placed; do (echo x > $path) 2>/dev/null && echo written; done; true",
        );
        let expected = "/home/me/project\ntext\nme\n4321\n4322\n/home/me\ngivenat home\n.placed\nproject\n";
        assert_eq!(printed, expected);
    });
}

#[test]
fn what_a_program_writes_is_in_its_layers_and_stays_for_the_next_one() {
    as_each_user("wrapped::what_a_program_writes_is_in_its_layers_and_stays_for_the_next_one", || {
        let place = WrappedFixture::new();
        place.world.write("old", "old");
        place.world.write("gone", "gone");
        place.stdout_of("echo new > old; rm gone; mkdir made; echo x > ~/.state");
        assert_eq!(place.names_in("workspace/upper"), ["gone", "made", "old"]);
        assert_eq!(place.names_in("home/upper"), [".state"]);
        assert_eq!(names_in(place.world.path()), ["gone", "old"]);
        assert_eq!(fs::read_to_string(place.world.path().join("old")).unwrap(), "old");
        assert_eq!(place.stdout_of("cat old ~/.state; ls"), "new\nx\nmade\nold\n");
    });
}

/// An earlier run of the agent left these in the home directory.
#[test]
fn links_that_an_earlier_run_left_at_home_are_not_followed() {
    as_each_user("wrapped::links_that_an_earlier_run_left_at_home_are_not_followed", || {
        for (link, target) in [
            ("project", "/etc"),
            ("project", "/proc/1/root"),
            (".config", "/etc"),
            (".config", "project"),
            (".config/placed", "/etc/passwd"),
        ] {
            let mut place = WrappedFixture::new();
            place.world.write("file", "text");
            let path = "/home/me/.config/placed".into();
            place.files.push(PlacedFile { path, contents: b"given".to_vec() });
            let planted = place.layer("home/upper").join(link);
            fs::create_dir_all(planted.parent().unwrap()).unwrap();
            symlink(target, &planted).unwrap();
            // It starts as it should, or not at all.
            let script = "cat /home/me/project/file; stat -c %F /etc /etc/passwd; ls /etc/file /etc/placed 2>/dev/null";
            match place.try_run(&["bash", "/run/ringfence/main"], script) {
                Ok(ended) => {
                    let printed = ended.stdout.text();
                    assert_eq!(printed, "textdirectory\nregular file\n", "{link} -> {target}: {}", ended.stderr.text());
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(!text.contains(place.layers_path().to_str().unwrap()), "{link} -> {target}: {text}");
                }
            }
            assert_eq!(names_in(place.world.path()), ["file"]);
        }
    });
}

/// Two runs at once share nothing: not their layers, nor their homes, nor what one has mounted.
#[test]
fn two_wrapped_programs_at_once_do_not_meet() {
    as_each_user("wrapped::two_wrapped_programs_at_once_do_not_meet", || {
        let (first, second) = (WrappedFixture::new(), WrappedFixture::new());
        let watch = OutputObserver::stopping_at("stop");
        let script = "echo secret-of-one > ~/note; echo secret-of-one > note; echo secret-of-one > /tmp/note\n\
            exec 9<> /dev/shm/note; echo ready; read -r line; echo stop";
        std::thread::scope(|scope| {
            let run = scope.spawn(|| first.run_observed(&script.replace("read -r line", "sleep 1000"), &watch));
            ringfence_testkit::patience::wait_until("the first program", || {
                String::from_utf8_lossy(&watch.bytes.lock().unwrap()).contains("ready")
            });
            let seen =
                second.stdout_of("cat ~/note note /tmp/note /dev/shm/note 2>/dev/null; ls -A ~ . /tmp /dev/shm; true");
            assert!(!seen.contains("note"), "{seen}");
            watch.stop();
            run.join().unwrap().unwrap();
        });
    });
}
