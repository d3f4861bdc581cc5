//! Certificate authority of one run: names that it may sign for are in it, and its key is in memory only.
//!
//! Programs in the jail trust it for the hosts with a credential or a path rule. It is valid for a day, signs no further
//! authority, and its critical name constraints permit these host names and exclude every address. A name constraint
//! also has the names below it (RFC 5280); no certificate is ever made for one.
//!
//! Not here: ending connections (`interceptor.rs`), and how programs find the certificate (`ca_environment.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CidrSubnet, DnType, DnValue, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
};
use ringfence_net::TlsServer;

/// The certificate begins to be valid this long before the run, for clocks that are behind.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// No certificate is valid for longer.
const VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// Common name of the authority.
const COMMON_NAME: &str = "Ringfence run";

/// Failed set-up of the authority of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunCaError {
    /// There is nothing to sign for.
    #[error("an authority needs at least one host")]
    NoHosts,
    /// The authority is not for this host.
    #[error("the authority of this run has no certificate for `{0}`")]
    OtherHost(String),
    /// A key or certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
}

impl From<rcgen::Error> for RunCaError {
    fn from(cause: rcgen::Error) -> Self {
        Self::Certificate(cause.to_string())
    }
}

/// The certificate authority of one run.
pub struct RunCertificateAuthority {
    hosts: BTreeSet<String>,
    issuer: CertifiedIssuer<'static, KeyPair>,
    pem: String,
    now: SystemTime,
}

impl fmt::Debug for RunCertificateAuthority {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCertificateAuthority").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl RunCertificateAuthority {
    /// An authority for exactly these host names, from now on.
    pub fn new(hosts: &[String], now: SystemTime) -> Result<Self, RunCaError> {
        let hosts: BTreeSet<String> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        if hosts.is_empty() {
            return Err(RunCaError::NoHosts);
        }
        let mut params = named_params(COMMON_NAME, Vec::new(), now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: hosts.iter().cloned().map(GeneralSubtree::DnsName).collect(),
            excluded_subtrees: vec![
                GeneralSubtree::IpAddress(CidrSubnet::from_v4_prefix([0; 4], 0)),
                GeneralSubtree::IpAddress(CidrSubnet::from_v6_prefix([0; 16], 0)),
            ],
        });
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)?;
        let pem = issuer.pem();
        Ok(Self { hosts, issuer, pem, now })
    }

    /// The certificate, for programs to trust.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// A TLS server for one of the hosts, with a certificate of its own that has this name only.
    pub(crate) fn server(&self, host: &str) -> Result<TlsServer, RunCaError> {
        if !self.hosts.contains(host) {
            return Err(RunCaError::OtherHost(host.to_owned()));
        }
        let mut params = named_params(host, vec![host.to_owned()], self.now)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.der().clone(), self.issuer.der().clone()];
        TlsServer::new(host, chain, key.serialize_der()).map_err(|cause| RunCaError::Certificate(cause.to_string()))
    }
}

fn named_params(common_name: &str, names: Vec<String>, now: SystemTime) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    // A common name has at most 64 characters. The name that counts is in the extension.
    let short: String = common_name.chars().take(64).collect();
    params.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(short));
    let begin = now.checked_sub(CLOCK_SKEW).unwrap_or(now);
    params.not_before = begin.into();
    params.not_after = now.checked_add(VALIDITY - CLOCK_SKEW).unwrap_or(now).into();
    Ok(params)
}
