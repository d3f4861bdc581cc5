//! Wrapped programs: caches of toolchains under layers of their own.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::fixture::as_each_user;
use crate::wrapped_fixture::{WrappedFixture, names_in};

/// A home directory of a person, with these files.
fn person(files: &[(&str, &str)]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = home.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    home
}

fn read(directory: &Path, path: &str) -> String {
    fs::read_to_string(directory.join(path)).unwrap_or_default()
}

#[test]
fn a_cache_is_warm_and_what_is_written_to_it_stays_in_its_layer() {
    as_each_user("tool_caches::a_cache_is_warm_and_what_is_written_to_it_stays_in_its_layer", || {
        let home = person(&[
            (".cargo/registry/cache/a.crate", "package"),
            (".cargo/registry/old/b.crate", "old"),
            (".cargo/credentials.toml", "token"),
            (".npm/_logs/log", "command lines"),
        ]);
        let mut place = WrappedFixture::new();
        place.add_cache(home.path(), ".cargo/registry");
        let script = "cd ~/.cargo; ls -A .; cat registry/cache/a.crate; stat -c ' %u' registry/cache/a.crate\n\
            echo poison > registry/cache/a.crate; echo new > registry/cache/c.crate; rm -r registry/old\n\
            mkdir registry/old; mv registry/cache/c.crate registry/old/d.crate; ls -A ~ registry/old";
        let printed = place.stdout_of(script);
        let home_inside = "/home/me";
        let expected = format!("registry\npackage 4321\n{home_inside}:\n.cargo\nproject\n\nregistry/old:\nd.crate\n");
        assert_eq!(printed, expected);
        let own = home.path().join(".cargo/registry");
        assert_eq!((read(&own, "cache/a.crate"), read(&own, "old/b.crate")), ("package".to_owned(), "old".to_owned()));
        assert_eq!(
            (names_in(&own.join("cache")), names_in(&own.join("old"))),
            (vec!["a.crate".to_owned()], vec!["b.crate".to_owned()])
        );
        assert_eq!(read(&place.layer("cache-0/upper"), "cache/a.crate"), "poison\n");
        assert_eq!(place.names_in("home/upper"), Vec::<String>::new(), "nothing of it is in the home's layer");
    });
}

#[test]
fn a_secret_in_a_cache_is_empty_and_does_not_come_back() {
    as_each_user("tool_caches::a_secret_in_a_cache_is_empty_and_does_not_come_back", || {
        let home = person(&[
            (".gradle/caches/gradle.properties", "password=7f3a9c"),
            (".gradle/caches/a/.ssh/id_rsa", "7f3a9c"),
            (".gradle/caches/a/b.jar", "jar"),
            (".gradle/gradle.properties", "password=7f3a9c"),
        ]);
        let mut place = WrappedFixture::new();
        place.add_cache(home.path(), ".gradle/caches");
        let look = "grep -r 7f3a9c ~/.gradle || echo clean; cat ~/.gradle/caches/a/b.jar";
        assert_eq!(place.stdout_of(look), "clean\njar");
        let change = "cd ~/.gradle/caches; rm gradle.properties; mv a/.ssh a/ssh 2>/dev/null || cp -r a/.ssh a/ssh\n\
            rm -rf a/.ssh; cp -r a copy; grep -r 7f3a9c ~ || echo clean";
        assert_eq!(place.stdout_of(change), "clean\n");
        place.empty_work_directories();
        assert_eq!(place.stdout_of("grep -r 7f3a9c ~ || echo clean"), "clean\n", "in the next run too");
    });
}

#[test]
fn a_cache_that_the_person_has_not_starts_empty() {
    as_each_user("tool_caches::a_cache_that_the_person_has_not_starts_empty", || {
        let home = person(&[("elsewhere/private", "7f3a9c")]);
        std::os::unix::fs::symlink(home.path().join("elsewhere"), home.path().join(".npm")).unwrap();
        let mut place = WrappedFixture::new();
        for path in [".cache/pip", ".npm", ".npm/_cacache"] {
            place.add_cache(home.path(), path);
        }
        assert_eq!(
            place.stdout_of("ls -A ~/.cache/pip ~/.npm; echo x > ~/.cache/pip/x; cat ~/.cache/pip/x").lines().last(),
            Some("x")
        );
        assert_eq!(names_in(home.path()), [".npm", "elsewhere"]);
        assert_eq!(read(&place.layer("cache-0/upper"), "x"), "x\n");
    });
}

#[test]
fn a_link_that_a_program_put_in_the_place_of_a_cache_leads_nowhere() {
    as_each_user("tool_caches::a_link_that_a_program_put_in_the_place_of_a_cache_leads_nowhere", || {
        let home = person(&[(".npm/_cacache/index", "person")]);
        let mut place = WrappedFixture::new();
        assert_eq!(place.stdout_of("mkdir ~/target; ln -s target ~/.npm"), "");
        place.empty_work_directories();
        place.add_cache(home.path(), ".npm/_cacache");
        assert_eq!(place.stdout_of("readlink ~/.npm; ls -A ~/target"), "target\n");
    });
}
