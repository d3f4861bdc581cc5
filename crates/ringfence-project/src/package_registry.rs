//! Package registries: the URL of each, and the hosts that it sends packages from.
//!
//! They come from the config of the user or the owner of the machine: no file of a workspace names one.
//!
//! Not here: connecting. The package managers do, in the jail.

use std::fmt;

use crate::package_spec::PackageEcosystem;

/// Why a registry of the config is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryConfigError {
    #[error("invalid URL `{0}`; expected one such as `https://packages.example.org/simple/`, without a user name")]
    Url(String),
    #[error("invalid host `{0}`; expected one such as `files.example.org` or `files.example.org:8443`")]
    Host(String),
}

/// The registries of the ecosystems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRegistries {
    /// A sparse index of crates.
    pub cargo: PackageRegistry,
    pub npm: PackageRegistry,
    /// A simple index.
    pub python: PackageRegistry,
}

/// One registry.
#[derive(Clone, PartialEq, Eq)]
pub struct PackageRegistry {
    /// Ends with a slash.
    url: String,
    /// `host:port` of the URL first, then those of packages.
    endpoints: Vec<String>,
}

impl fmt::Debug for PackageRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PackageRegistry").field(&self.url).finish()
    }
}

impl Default for PackageRegistries {
    fn default() -> Self {
        let registry = |host: &str, path: &str, packages: &[&str]| PackageRegistry {
            url: format!("https://{host}/{path}"),
            endpoints: std::iter::once(host)
                .chain(packages.iter().copied())
                .map(|host| format!("{host}:443"))
                .collect(),
        };
        Self {
            cargo: registry("index.crates.io", "", &["static.crates.io"]),
            npm: registry("registry.npmjs.org", "", &[]),
            python: registry("pypi.org", "simple/", &["files.pythonhosted.org"]),
        }
    }
}

/// The source of crates of the public registry in a lockfile, wherever they were fetched from.
pub(crate) const CRATES_IO_SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

impl PackageRegistries {
    pub(crate) fn get(&self, ecosystem: PackageEcosystem) -> &PackageRegistry {
        match ecosystem {
            PackageEcosystem::Cargo => &self.cargo,
            PackageEcosystem::Npm => &self.npm,
            PackageEcosystem::Python => &self.python,
        }
    }
}

impl PackageRegistry {
    /// A registry of the config, with the hosts that packages come from besides its own.
    pub fn new(url: &str, hosts: &[String]) -> Result<Self, RegistryConfigError> {
        let invalid = || RegistryConfigError::Url(url.to_owned());
        let (scheme, authority, path) = parts(url).ok_or_else(invalid)?;
        let own = endpoint(authority, scheme).ok_or_else(invalid)?;
        let is_local = ["localhost:", "127.0.0.1:", "[::1]:"].iter().any(|local| own.starts_with(local));
        let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._~-+%".contains(c));
        if !is_plain || (scheme == "http" && !is_local) {
            return Err(invalid());
        }
        let mut endpoints = vec![own];
        for host in hosts {
            endpoints.push(endpoint(host, "https").ok_or_else(|| RegistryConfigError::Host(host.clone()))?);
        }
        let slash = if path.ends_with('/') { "" } else { "/" };
        Ok(Self { url: format!("{scheme}://{authority}{path}{slash}"), endpoints })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// `host:port` of each host.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Whether a package at this URL comes from the registry: from one of its hosts, and as it is fetched itself.
    pub(crate) fn serves(&self, url: &str) -> bool {
        let own_scheme = parts(&self.url).map(|(scheme, ..)| scheme);
        parts(url).is_some_and(|(scheme, authority, _)| {
            let endpoint = endpoint(authority, scheme);
            (scheme == "https" || own_scheme == Some(scheme))
                && endpoint.is_some_and(|endpoint| self.endpoints.contains(&endpoint))
        })
    }
}

/// Scheme, authority and path.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
    let path = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(path);
    Some((scheme, authority, path))
}

/// `host:port`, in lower case.
fn endpoint(authority: &str, scheme: &str) -> Option<String> {
    let port = if scheme == "http" { 80 } else { 443 };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, number)) if !number.ends_with(']') => (host, number.parse::<u16>().ok()?),
        _ => (authority, port),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let is_address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    let is_name = !host.is_empty() && !host.starts_with('-') && host.chars().all(plain);
    (is_name || is_address).then(|| format!("{}:{port}", host.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::{PackageRegistries, PackageRegistry};

    #[test]
    fn a_registry_has_an_encrypted_url_or_is_on_this_machine() {
        for (url, expected) in [
            ("https://a.example", Some("https://a.example/")),
            ("https://a.example:8443/simple", Some("https://a.example:8443/simple/")),
            ("http://127.0.0.1:4000/npm/", Some("http://127.0.0.1:4000/npm/")),
            ("http://[::1]:4000/", Some("http://[::1]:4000/")),
            ("http://a.example/", None),
            ("http://localhost.example/", None),
            ("https://me:token@a.example/", None),
            ("https://a.example/?x=y", None),
            ("https://a.example/ --flag", None),
            ("https://a.example:port/", None),
            ("https:///x", None),
            ("sparse+https://a.example/", None),
            ("file:///x", None),
            ("", None),
        ] {
            let made = PackageRegistry::new(url, &[]).map(|registry| registry.url().to_owned());
            assert_eq!(made.ok().as_deref(), expected, "{url}");
        }
        assert!(PackageRegistry::new("https://a.example", &["b.example/".to_owned()]).is_err());
    }

    #[test]
    fn packages_come_from_the_hosts_of_the_registry_only() {
        let registry = PackageRegistry::new("https://A.example/npm", &["files.example:8443".to_owned()]).unwrap();
        assert_eq!(registry.endpoints(), ["a.example:443", "files.example:8443"]);
        for (url, expected) in [
            ("https://a.example/x.tgz", true),
            ("https://a.example:443/x.tgz", true),
            ("https://files.example:8443/x.tgz", true),
            ("https://files.example/x.tgz", false),
            ("http://a.example/x.tgz", false),
            ("https://a.example.evil.example/x.tgz", false),
            ("https://a.example@evil.example/x.tgz", false),
            ("git+https://a.example/x", false),
            ("file:x", false),
            ("", false),
        ] {
            assert_eq!(registry.serves(url), expected, "{url}");
        }
        let local = PackageRegistry::new("http://127.0.0.1:4000/npm", &[]).unwrap();
        assert!(local.serves("http://127.0.0.1:4000/x") && !local.serves("http://127.0.0.1:4001/x"));
        let public = PackageRegistries::default();
        for registry in [public.cargo, public.npm, public.python] {
            assert_eq!(PackageRegistry::new(registry.url(), &[]).unwrap().url(), registry.url());
        }
    }
}
