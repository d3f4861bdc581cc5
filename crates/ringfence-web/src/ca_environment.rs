//! CA bundle of the jail: the system's certificates with that of the run, and the variables by which programs find it.
//!
//! The variables name a file that programs read in place of the system's bundle, so the file has both. Java reads no PEM: it gets
//! a trust store (JKS) of the same certificates, and an option of its virtual machine.
//!
//! Not here: reading the system's bundle, and writing the files into the jail.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

/// Variables that name a file of certificates: OpenSSL, Go and Rust (`SSL_CERT_FILE`), and those of single programs.
const BUNDLE_VARIABLES: &[&str] = &[
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CODEX_CA_CERTIFICATE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "npm_config_cafile",
];

/// Variables that must not be set in the jail, because they name other certificates.
pub const CA_VARIABLES_TO_REMOVE: &[&str] = &["SSL_CERT_DIR"];

const PEM_BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const PEM_END: &str = "-----END CERTIFICATE-----";

/// Password of Java's trust stores, which keeps nothing secret.
const TRUST_STORE_PASSWORD: &str = "changeit";

/// The variables for programs whose certificates are in this file of the jail.
pub fn ca_environment(bundle_path: &str) -> Vec<(String, String)> {
    let named = BUNDLE_VARIABLES.iter().map(|name| ((*name).to_owned(), bundle_path.to_owned()));
    // Without it, Node.js ignores the variables that name the proxy.
    named.chain([("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())]).collect()
}

/// The variable for Java, whose trust store is in this file of the jail.
pub fn java_environment(trust_store_path: &str) -> (String, String) {
    ("JAVA_TOOL_OPTIONS".to_owned(), format!("-Djavax.net.ssl.trustStore={trust_store_path}"))
}

/// The bundle of the jail: the certificates of the system's, and one more.
pub fn merge_ca_bundle(system_bundle: &str, certificate_pem: &str) -> String {
    let separator = if system_bundle.is_empty() || system_bundle.ends_with('\n') { "" } else { "\n" };
    format!("{system_bundle}{separator}{}\n", certificate_pem.trim_end())
}

/// The certificates of a bundle as a trust store of Java. What does not read as a certificate is left out.
pub fn java_trust_store(bundle: &str) -> Vec<u8> {
    let blocks = bundle.split(PEM_BEGIN).skip(1).filter_map(|block| block.split_once(PEM_END));
    let certificates: Vec<Vec<u8>> = blocks
        .filter_map(|(text, _)| STANDARD.decode(text.split_ascii_whitespace().collect::<String>()).ok())
        .collect();
    let count = u32::try_from(certificates.len()).unwrap_or(u32::MAX);
    let mut store = [0xfeed_feed_u32, 2, count].map(u32::to_be_bytes).concat();
    let text = |store: &mut Vec<u8>, text: &str| {
        store.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        store.extend_from_slice(text.as_bytes());
    };
    for (index, certificate) in certificates.iter().enumerate() {
        // A trusted certificate, its alias, and a time that says nothing.
        store.extend_from_slice(&2_u32.to_be_bytes());
        text(&mut store, &format!("ca-{index}"));
        store.extend_from_slice(&0_u64.to_be_bytes());
        text(&mut store, "X.509");
        store.extend_from_slice(&u32::try_from(certificate.len()).unwrap_or(u32::MAX).to_be_bytes());
        store.extend_from_slice(certificate);
    }
    let password: Vec<u8> = TRUST_STORE_PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    // The format has this text in its checksum.
    let checksum = Sha1::new().chain_update(password).chain_update(b"Mighty Aphrodite").chain_update(&store).finalize();
    store.extend_from_slice(&checksum);
    store
}

#[cfg(test)]
mod tests {
    use super::{ca_environment, java_environment, java_trust_store, merge_ca_bundle};

    #[test]
    fn every_variable_names_the_bundle() {
        let variables = ca_environment("/etc/ssl/cert.pem");
        for name in ["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "GIT_SSL_CAINFO", "npm_config_cafile", "PIP_CERT"] {
            assert!(variables.contains(&(name.to_owned(), "/etc/ssl/cert.pem".to_owned())), "{name}");
        }
        assert!(variables.contains(&("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned())));
        assert_eq!(java_environment("/a").1, "-Djavax.net.ssl.trustStore=/a");
    }

    #[test]
    fn a_bundle_is_extended_by_whole_lines() {
        assert_eq!(merge_ca_bundle("", "ours\n"), "ours\n");
        assert_eq!(merge_ca_bundle("theirs", "ours"), "theirs\nours\n");
        assert_eq!(merge_ca_bundle("theirs\n", "ours\n"), "theirs\nours\n");
    }

    #[test]
    fn a_trust_store_has_each_certificate_of_the_bundle() {
        let bundle = "# a\n-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n\
                      -----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nAA";
        let store = java_trust_store(bundle);
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 1]);
        assert!(store.windows(7).any(|window| window == [0, 0, 0, 3, 0, 1, 2]));
    }
}
