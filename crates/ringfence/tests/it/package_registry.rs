//! Package registries on this machine's loopback: a sparse index of crates, an npm registry, and a simple index of wheels.
//!
//! Every package is made by the test that publishes it, with whatever is wrong about it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use flate2::{Compression, Crc, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512};

/// Long ago: old enough for every minimum age.
pub(crate) const OLD: &str = "2020-01-01T00:00:00.000Z";

type Served = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

pub(crate) struct RegistryServer {
    pub(crate) at: SocketAddr,
    served: Served,
    /// Paths of the requests.
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    /// Whether files may be used from a cache without a request.
    pub(crate) is_cacheable: Arc<AtomicBool>,
}

/// An entry of an archive.
pub(crate) enum ArchiveEntry<'a> {
    File(&'a str, &'a str),
    Link(&'a str, &'a str),
}

/// What is special about an npm package.
#[derive(Clone)]
pub(crate) struct NpmRelease {
    pub(crate) version: &'static str,
    /// Further keys of its manifest.
    pub(crate) manifest: Value,
    pub(crate) published: String,
    /// In the place of its own address.
    pub(crate) tarball: Option<String>,
    /// In the place of its own digest.
    pub(crate) integrity: Option<String>,
}

impl Default for NpmRelease {
    fn default() -> Self {
        let (manifest, published) = (json!({}), OLD.to_owned());
        Self { version: "1.0.0", manifest, published, tarball: None, integrity: None }
    }
}

impl RegistryServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (at, served, requests) = (listener.local_addr().unwrap(), Served::default(), Arc::default());
        let is_cacheable: Arc<AtomicBool> = Arc::default();
        let (files, seen, cacheable) = (Arc::clone(&served), Arc::clone(&requests), Arc::clone(&is_cacheable));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, seen, cacheable) = (Arc::clone(&files), Arc::clone(&seen), Arc::clone(&cacheable));
                std::thread::spawn(move || answer(stream, &files, &seen, cacheable.load(Ordering::Relaxed)));
            }
        });
        let server = Self { at, served, requests, is_cacheable };
        let download = json!({"dl": server.url("cargo/dl"), "api": server.url("cargo")});
        server.put("/cargo/index/config.json", download.to_string());
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.at)
    }

    pub(crate) fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.served.lock().unwrap().insert(path.to_owned(), bytes.into());
    }

    /// What replaces a file when it is called.
    pub(crate) fn replace_later(&self, path: &str, bytes: Vec<u8>) -> impl FnOnce() + Send + 'static {
        let (served, path) = (Arc::clone(&self.served), path.to_owned());
        move || {
            served.lock().unwrap().insert(path, bytes);
        }
    }

    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        self.served.lock().unwrap().get(path).cloned().unwrap_or_default()
    }

    /// Publishes a package with one module.
    pub(crate) fn npm(&self, name: &str, release: NpmRelease) {
        self.npm_files(name, release, &[ArchiveEntry::File("package/index.js", "module.exports = 1;\n")]);
    }

    pub(crate) fn npm_files(&self, name: &str, release: NpmRelease, entries: &[ArchiveEntry<'_>]) {
        let NpmRelease { version, manifest, published, tarball, integrity } = release;
        let mut own = json!({"name": name, "version": version});
        own.as_object_mut().unwrap().extend(manifest.as_object().unwrap().clone());
        let text = own.to_string();
        let package_json = ArchiveEntry::File("package/package.json", &text);
        let archive = tar_gz(std::iter::once(&package_json).chain(entries));
        let path = format!("npm/{name}/-/{name}-{version}.tgz");
        let digest = base64::engine::general_purpose::STANDARD.encode(Sha512::digest(&archive));
        self.put(&format!("/{path}"), archive);
        own["dist"] = json!({
            "tarball": tarball.unwrap_or_else(|| self.url(&path)),
            "integrity": integrity.unwrap_or_else(|| format!("sha512-{digest}")),
        });
        if ["preinstall", "install", "postinstall"].iter().any(|script| own["scripts"].get(script).is_some()) {
            own["hasInstallScript"] = json!(true);
        }
        let at = format!("/npm/{name}");
        let mut all: Value = serde_json::from_slice(&self.get(&at)).unwrap_or_else(|_| json!({"name": name}));
        all["versions"][version] = own;
        all["time"][version] = json!(published);
        all["dist-tags"]["latest"] = json!(version);
        self.put(&at, all.to_string());
    }

    /// Publishes a crate with an empty library. `manifest` is added to its manifest.
    pub(crate) fn krate(&self, name: &str, dependencies: &[&str], entries: &[ArchiveEntry<'_>]) {
        let manifest = format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2021\"\n");
        let root = format!("{name}-1.0.0");
        let [manifest_path, library] = [format!("{root}/Cargo.toml"), format!("{root}/src/lib.rs")];
        let own = [ArchiveEntry::File(&manifest_path, &manifest), ArchiveEntry::File(&library, "")];
        let archive = tar_gz(own.iter().chain(entries));
        let dependency = |name: &&str| {
            json!({"name": name, "req": "^1", "features": [], "optional": false, "default_features": true, "target": null,
                "kind": "normal"})
        };
        let line = json!({"name": name, "vers": "1.0.0", "deps": dependencies.iter().map(dependency).collect::<Vec<_>>(),
            "cksum": hex(&Sha256::digest(&archive)), "features": {}, "yanked": false});
        self.put(&format!("/cargo/dl/{name}/1.0.0/download"), archive);
        self.put(&format!("/cargo/index/{}/{}/{name}", &name[..2], &name[2..4]), format!("{line}\n"));
    }

    /// Publishes a wheel with one module.
    pub(crate) fn wheel(&self, name: &str, dependencies: &[&str], entries: &[(&str, &str)]) {
        let info = format!("{name}-1.0.dist-info");
        let mut metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n");
        for dependency in dependencies {
            let _ = writeln!(metadata, "Requires-Dist: {dependency}");
        }
        let mut files = vec![
            (format!("{name}/__init__.py"), "x = 1\n".to_owned()),
            (format!("{info}/METADATA"), metadata),
            (
                format!("{info}/WHEEL"),
                "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n".to_owned(),
            ),
        ];
        files.extend(entries.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        let mut record: String = files.iter().map(|(path, _)| format!("{path},,\n")).collect();
        let _ = writeln!(record, "{info}/RECORD,,");
        files.push((format!("{info}/RECORD"), record));
        let file = format!("{name}-1.0-py3-none-any.whl");
        self.python_file(name, &file, zip(&files));
    }

    /// Publishes any file of a Python package.
    pub(crate) fn python_file(&self, name: &str, file: &str, bytes: Vec<u8>) {
        let (digest, bytes_len) = (hex(&Sha256::digest(&bytes)), bytes.len());
        self.put(&format!("/files/{file}"), bytes);
        let file = json!({"filename": file, "url": self.url(&format!("files/{file}")), "hashes": {"sha256": digest},
            "upload-time": OLD, "size": bytes_len});
        let index = json!({"meta": {"api-version": "1.1"}, "name": name, "versions": ["1.0"], "files": [file]});
        self.put(&format!("/simple/{name}/"), index.to_string());
    }
}

fn answer(
    mut stream: TcpStream,
    served: &Mutex<BTreeMap<String, Vec<u8>>>,
    seen: &Mutex<Vec<String>>,
    is_cacheable: bool,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    if reader.read_line(&mut first).is_err() {
        return;
    }
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        line.clear();
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    seen.lock().unwrap().push(path.to_owned());
    let found = served.lock().unwrap().get(path).cloned();
    let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
    let kind = match path {
        path if path.starts_with("/simple/") => "application/vnd.pypi.simple.v1+json",
        path if path.ends_with(".tgz") || path.ends_with(".whl") => "application/octet-stream",
        _ => "application/json",
    };
    let body = found.unwrap_or_else(|| b"{}".to_vec());
    // A cache keeps nothing without a date.
    const CACHEABLE: &str = "Date: Wed, 01 Jan 2020 00:00:00 GMT\r\nCache-Control: max-age=2000000000\r\n";
    let cache = if is_cacheable { CACHEABLE } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{cache}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == "HEAD" { &[] } else { body.as_slice() };
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// A compressed archive in the format of POSIX.
pub(crate) fn tar_gz<'a>(entries: impl IntoIterator<Item = &'a ArchiveEntry<'a>>) -> Vec<u8> {
    let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
    for entry in entries {
        let (path, contents, kind, target) = match entry {
            ArchiveEntry::File(path, contents) => (*path, contents.as_bytes(), b'0', ""),
            ArchiveEntry::Link(path, target) => (*path, b"".as_slice(), b'2', *target),
        };
        let mut header = [0_u8; 512];
        let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        field(0, path);
        field(100, "0000644\0");
        field(108, "0000000\0");
        field(116, "0000000\0");
        field(124, &format!("{:011o}\0", contents.len()));
        field(136, "00000000000\0");
        field(148, "        ");
        field(157, target);
        field(257, "ustar\u{0}00");
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        archive.write_all(&header).unwrap();
        archive.write_all(contents).unwrap();
        archive.write_all(&vec![0; contents.len().next_multiple_of(512) - contents.len()]).unwrap();
    }
    archive.write_all(&[0; 1024]).unwrap();
    archive.finish().unwrap()
}

/// An archive of files that are not compressed.
fn zip(files: &[(String, String)]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (path, text) in files {
        let mut crc = Crc::new();
        crc.update(text.as_bytes());
        let size = u32::try_from(text.len()).unwrap();
        let mut common = [20_u16, 0, 0, 0, 0x21].map(u16::to_le_bytes).concat();
        common.extend([crc.sum(), size, size].map(u32::to_le_bytes).concat());
        common.extend([u16::try_from(path.len()).unwrap(), 0].map(u16::to_le_bytes).concat());
        let offset = u32::try_from(bytes.len()).unwrap();
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend(path.as_bytes());
        bytes.extend(text.as_bytes());
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0_u16, 0, 0].map(u16::to_le_bytes).concat());
        directory.extend([0o100_644_u32 << 16, offset].map(u32::to_le_bytes).concat());
        directory.extend(path.as_bytes());
    }
    let (count, start) = (u16::try_from(files.len()).unwrap(), u32::try_from(bytes.len()).unwrap());
    let size = u32::try_from(directory.len()).unwrap();
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06");
    bytes.extend([0, 0, count, count].map(u16::to_le_bytes).concat());
    bytes.extend([size, start].map(u32::to_le_bytes).concat());
    bytes.extend([0, 0]);
    bytes
}
