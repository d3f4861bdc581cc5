//! Packages that the model of `search_code` is trained and measured with: their lists, and the fetching of their sources.
//!
//! A package is fetched by name and exact version with the settings of `cargo` and `pip` on this machine, and it is refused if
//! its metadata names no permissive licence. No package of a project that the benchmark measures is in a list for
//! training; the two parts of training do not share a project either.
//!
//! Not here: what is read from the sources (`pairs.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::licence::{is_permissive, is_permissive_python};
use crate::print_status;

const RUST_TRAINING: &str = include_str!("data/rust-training.txt");
const RUST_BENCHMARK: &str = include_str!("data/rust-benchmark.txt");
const PYTHON_TRAINING: &str = include_str!("data/python-training.txt");
const PYTHON_BENCHMARK: &str = include_str!("data/python-benchmark.txt");

/// What `pip download` is asked for at once.
const PIP_CHUNK: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SourceLanguage {
    Rust,
    Python,
}

/// The part of training that sees a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TrainingPart {
    Table,
    Ranker,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedPackage {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) part: TrainingPart,
}

/// The packages for one manifest: cargo can resolve them together.
#[derive(Clone, Debug)]
pub(crate) struct PackageGroup {
    name: String,
    packages: Vec<ListedPackage>,
}

/// A package whose sources are on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FetchedPackage {
    pub(crate) listed: ListedPackage,
    pub(crate) language: SourceLanguage,
    pub(crate) directory: PathBuf,
}

/// Names that the benchmark measures, and names of forks and backports of them.
#[derive(Debug)]
pub(crate) struct BenchmarkNames {
    families: BTreeSet<String>,
    related: BTreeSet<String>,
}

impl BenchmarkNames {
    /// Whether a package is, or may have code of, a project that the benchmark measures.
    pub(crate) fn covers(&self, package: &str) -> bool {
        self.families.contains(family(package)) || self.related.contains(package)
    }
}

/// The training packages of a language.
pub(crate) fn training_groups(language: SourceLanguage) -> Result<Vec<PackageGroup>, String> {
    parse_groups(match language {
        SourceLanguage::Rust => RUST_TRAINING,
        SourceLanguage::Python => PYTHON_TRAINING,
    })
}

/// The packages that the benchmark measures. Python has none: its standard library is measured.
pub(crate) fn benchmark_groups(language: SourceLanguage) -> Result<Vec<PackageGroup>, String> {
    parse_groups(benchmark_list(language))
}

fn benchmark_list(language: SourceLanguage) -> &'static str {
    match language {
        SourceLanguage::Rust => RUST_BENCHMARK,
        SourceLanguage::Python => PYTHON_BENCHMARK,
    }
}

/// Checks that training and benchmark, and the two parts of training, share no project.
pub(crate) fn check_disjoint() -> Result<(), String> {
    for language in [SourceLanguage::Rust, SourceLanguage::Python] {
        check_groups(&training_groups(language)?, &benchmark_names(benchmark_list(language))?)?;
    }
    Ok(())
}

fn check_groups(training: &[PackageGroup], benchmark: &BenchmarkNames) -> Result<(), String> {
    let mut parts: BTreeMap<&str, TrainingPart> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for package in training.iter().flat_map(|group| &group.packages) {
        if benchmark.covers(&package.name) {
            return Err(format!(
                "`{}` is listed for training and belongs to a project of the benchmark: remove it from the list",
                package.name
            ));
        }
        if !seen.insert((&package.name, &package.version)) {
            return Err(format!("`{} {}` is listed twice", package.name, package.version));
        }
        let part = parts.entry(family(&package.name)).or_insert(package.part);
        if *part != package.part {
            return Err(format!("packages of the project of `{}` are in both parts of training", package.name));
        }
    }
    Ok(())
}

/// The first word of a name: packages of one project share it.
pub(crate) fn family(package: &str) -> &str {
    package.split(['-', '_', '.']).next().unwrap_or(package)
}

/// Lines `name version [ranker]` below headings `[group]`. Lines `- name` name related packages (`benchmark_names`).
fn parse_groups(text: &str) -> Result<Vec<PackageGroup>, String> {
    let mut groups: Vec<PackageGroup> = Vec::new();
    for line in lines(text).filter(|line| !line.starts_with("- ")) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            groups.push(PackageGroup { name: name.to_owned(), packages: Vec::new() });
            continue;
        }
        let group = groups.last_mut().ok_or_else(|| format!("`{line}` is above the first `[group]`"))?;
        group.packages.push(parse_package(line)?);
    }
    Ok(groups)
}

fn parse_package(line: &str) -> Result<ListedPackage, String> {
    let words: Vec<&str> = line.split(' ').collect();
    let (name, version, part) = match words[..] {
        [name, version] => (name, version, TrainingPart::Table),
        [name, version, "ranker"] => (name, version, TrainingPart::Ranker),
        _ => return Err(format!("`{line}`: a line of a package list is `name version` or `name version ranker`")),
    };
    Ok(ListedPackage { name: name.to_owned(), version: version.to_owned(), part })
}

fn benchmark_names(text: &str) -> Result<BenchmarkNames, String> {
    let packages = parse_groups(text)?.into_iter().flat_map(|group| group.packages);
    let families = packages.map(|package| family(&package.name).to_owned()).collect();
    let related = lines(text).filter_map(|line| line.strip_prefix("- ")).map(str::to_owned).collect();
    Ok(BenchmarkNames { families, related })
}

/// Lines that say something; `#` begins a comment.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Fetches crates with cargo, which keeps sources where it always does, and returns the listed ones in the order of their
/// names.
pub(crate) fn fetch_rust(groups: &[PackageGroup], work: &Path) -> Result<Vec<FetchedPackage>, String> {
    let mut fetched = Vec::new();
    for group in groups {
        let directory = work.join("rust").join(&group.name);
        fs::create_dir_all(directory.join("src")).map_err(|error| format!("cannot create a directory: {error}"))?;
        let written = fs::write(directory.join("src/lib.rs"), "")
            .and_then(|()| fs::write(directory.join("Cargo.toml"), manifest(group)));
        written.map_err(|error| format!("cannot write the manifest of `{}`: {error}", group.name))?;
        print_status(&format!("fetching {} crates of `{}`", group.packages.len(), group.name));
        let output = crate::cargo()
            .args(["metadata", "--quiet", "--format-version", "1", "--manifest-path"])
            .arg(directory.join("Cargo.toml"))
            .output()
            .map_err(|error| format!("cannot run cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let metadata: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
        for listed in &group.packages {
            fetched.push(fetched_crate(listed, &metadata)?);
        }
    }
    fetched.sort_by(|a, b| (&a.listed.name, &a.listed.version).cmp(&(&b.listed.name, &b.listed.version)));
    Ok(fetched)
}

/// A manifest that depends on exactly these versions, without features so that they fit together.
fn manifest(group: &PackageGroup) -> String {
    let mut text = "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n[dependencies]\n".to_owned();
    for (at, package) in group.packages.iter().enumerate() {
        text += &format!(
            "p{at} = {{ package = \"{}\", version = \"={}\", default-features = false }}\n",
            package.name, package.version
        );
    }
    text
}

fn fetched_crate(listed: &ListedPackage, metadata: &Value) -> Result<FetchedPackage, String> {
    let named = |package: &&Value| package["name"] == *listed.name && package["version"] == *listed.version;
    let package = metadata["packages"].as_array().and_then(|packages| packages.iter().find(named));
    let package = package.ok_or_else(|| format!("cargo did not fetch `{} {}`", listed.name, listed.version))?;
    let licence = package["license"].as_str().unwrap_or_default();
    if !is_permissive(licence) {
        return Err(format!("`{}`: the licence `{licence}` is not permissive: remove it from the list", listed.name));
    }
    let manifest = package["manifest_path"].as_str().unwrap_or_default();
    let directory = Path::new(manifest).parent().map(Path::to_owned).unwrap_or_default();
    Ok(FetchedPackage { listed: listed.clone(), language: SourceLanguage::Rust, directory })
}

/// Fetches wheels with pip and unpacks them below the directory.
pub(crate) fn fetch_python(groups: &[PackageGroup], work: &Path) -> Result<Vec<FetchedPackage>, String> {
    let wheels = work.join("python/wheels");
    let sources = work.join("python/sources");
    for directory in [&wheels, &sources] {
        fs::create_dir_all(directory).map_err(|error| format!("cannot create a directory: {error}"))?;
    }
    let packages: Vec<&ListedPackage> = groups.iter().flat_map(|group| &group.packages).collect();
    let missing: Vec<String> = packages
        .iter()
        .filter(|package| wheel_of(&wheels, package).is_none())
        .map(|package| format!("{}=={}", package.name, package.version))
        .collect();
    for chunk in missing.chunks(PIP_CHUNK) {
        print_status(&format!("fetching {} Python packages", chunk.len()));
        let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"];
        run(Command::new("python3").args(pip).arg(&wheels).args(chunk))?;
    }
    let mut fetched = Vec::new();
    for listed in packages {
        let wheel = wheel_of(&wheels, listed).ok_or_else(|| format!("pip did not fetch `{}`", listed.name))?;
        let directory = sources.join(format!("{}-{}", listed.name, listed.version));
        if !directory.is_dir() {
            // In two steps, so that a directory with this name is complete.
            let unfinished = directory.with_extension("unfinished");
            let _ = fs::remove_dir_all(&unfinished);
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unfinished))?;
            fs::rename(&unfinished, &directory).map_err(|error| format!("cannot unpack `{}`: {error}", listed.name))?;
        }
        if !is_permissive_python(&python_metadata(&directory)) {
            return Err(format!(
                "`{}`: its metadata names no permissive licence: remove it from the list",
                listed.name
            ));
        }
        fetched.push(FetchedPackage { listed: listed.clone(), language: SourceLanguage::Python, directory });
    }
    fetched.sort_by(|a, b| a.listed.name.cmp(&b.listed.name));
    Ok(fetched)
}

/// The wheel of a package: `name-version-….whl`, where the name may be written in other ways.
fn wheel_of(wheels: &Path, package: &ListedPackage) -> Option<PathBuf> {
    let plain = |name: &str| name.to_lowercase().replace(['-', '.'], "_");
    let mut names: Vec<PathBuf> = fs::read_dir(wheels).ok()?.flatten().map(|entry| entry.path()).collect();
    names.sort();
    names.into_iter().find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = name.split('-');
        name.ends_with(".whl")
            && parts.next().is_some_and(|name| plain(name) == plain(&package.name))
            && parts.next() == Some(&package.version)
    })
}

fn python_metadata(directory: &Path) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let info = entries.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "dist-info"));
    info.and_then(|info| fs::read_to_string(info.join("METADATA")).ok()).unwrap_or_default().replace("\r\n", "\n")
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{program}: {status}")),
        Err(error) => Err(format!("cannot run {program}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        SourceLanguage, benchmark_groups, benchmark_names, check_disjoint, check_groups, manifest, parse_groups,
        training_groups,
    };

    #[test]
    fn the_committed_lists_share_no_project() {
        check_disjoint().unwrap();
        let count = |groups: Vec<super::PackageGroup>| groups.iter().map(|group| group.packages.len()).sum::<usize>();
        assert!(count(training_groups(SourceLanguage::Rust).unwrap()) > 1000);
        assert!(count(training_groups(SourceLanguage::Python).unwrap()) > 200);
        assert!(count(benchmark_groups(SourceLanguage::Rust).unwrap()) > 60);
    }

    #[test]
    fn a_project_in_two_lists_is_refused() {
        let benchmark = benchmark_names("[a]\ntokio 1.0.0\n- ordermap\n").unwrap();
        for (list, wanted) in [
            ("[a]\nserde 1.0.0\n", None),
            ("[a]\ntokio-util 0.7.0\n", Some("belongs to a project of the benchmark")),
            ("[a]\nordermap 0.5.0\n", Some("belongs to a project of the benchmark")),
            ("[a]\nserde 1.0.0\n[b]\nserde_with 1.0.0 ranker\n", Some("both parts")),
            ("[a]\nserde 1.0.0\nserde 1.0.0\n", Some("twice")),
            ("[a]\nserde 1.0.0\nserde 0.9.0\n", None),
        ] {
            let found = check_groups(&parse_groups(list).unwrap(), &benchmark).err();
            let holds = match (wanted, &found) {
                (None, None) => true,
                (Some(wanted), Some(found)) => found.contains(wanted),
                _ => false,
            };
            assert!(holds, "{list}: {found:?}");
        }
    }

    #[test]
    fn a_list_says_which_line_is_wrong() {
        for line in ["serde 1.0.0", "[a]\nserde", "[a]\nserde 1.0.0 both"] {
            assert!(parse_groups(line).unwrap_err().contains("serde"), "{line}");
        }
    }

    #[test]
    fn a_manifest_names_exact_versions() {
        let groups = parse_groups("# heading\n[a]\nserde 1.0.0\nserde 0.9.0 ranker\n").unwrap();
        let text = manifest(&groups[0]);
        assert!(text.contains("p0 = { package = \"serde\", version = \"=1.0.0\", default-features = false }"));
        assert!(text.contains("p1 = { package = \"serde\", version = \"=0.9.0\", default-features = false }"));
    }
}
