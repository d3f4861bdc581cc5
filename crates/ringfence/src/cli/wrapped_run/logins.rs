//! Logins of a wrapped run: tokens of the person's own clients, placeholders for the inside.
//!
//! Tokens are read from the person's files for each request, and new ones are written to them. The program gets the files
//! with placeholders.
//!
//! Not here: the files (`login_file.rs`), and the requests (`ringfence-web`).

use std::path::Path;
use std::sync::Arc;

use ringfence_kernel::HomeFile;
use ringfence_web::{LoginStoreError, OAuthLoginBinding, TlsInterceptor};

use crate::cli::wrapped_run::credentials::CredentialError;
use crate::cli::wrapped_run::login_file::LoginFile;
use crate::cli::wrapped_run::login_setting::LoginSetting;
use crate::config::credentials::header_kind;

/// The logins of a profile, with their files.
#[derive(Debug, Default)]
pub(crate) struct RunLogins(Vec<RunLogin>);

#[derive(Debug)]
struct RunLogin {
    setting: LoginSetting,
    file: LoginFile,
}

/// What a program has of the logins that are there.
#[derive(Debug, Default)]
pub(crate) struct LoginInside {
    pub(crate) files: Vec<HomeFile>,
    /// Hosts that it needs.
    pub(crate) hosts: Vec<String>,
    /// For the person.
    pub(crate) notes: Vec<String>,
}

impl RunLogins {
    pub(crate) fn new(settings: &[LoginSetting], home: &Path, state: &Path) -> Self {
        let login = |setting: &LoginSetting| RunLogin {
            setting: setting.clone(),
            file: LoginFile::new(setting.clone(), home, state),
        };
        Self(settings.iter().map(login).collect())
    }

    /// What is to be intercepted: also where there is no login, so that no program makes one that has real tokens inside.
    pub(crate) fn bindings(&self) -> Result<Vec<OAuthLoginBinding>, CredentialError> {
        self.0.iter().map(RunLogin::binding).collect()
    }

    /// What the program starts with. A login that cannot be used is left out with a note.
    pub(crate) fn inside(&self, interceptor: &TlsInterceptor) -> LoginInside {
        let mut inside = LoginInside::default();
        for login in &self.0 {
            match login.file_inside(interceptor) {
                Ok(Some(file)) => {
                    inside.files.push(file);
                    inside.hosts.extend(login.setting.all_hosts().map(str::to_owned));
                }
                Ok(None) => {}
                Err(problem) => inside.notes.push(format!("the login `{}` is not used: {problem}", login.setting.name)),
            }
        }
        inside
    }
}

impl RunLogin {
    /// The login file of the program, if there is a login.
    fn file_inside(&self, interceptor: &TlsInterceptor) -> Result<Option<HomeFile>, String> {
        let Self { setting, file } = self;
        let placeholders = interceptor.login_placeholders(&setting.name).map_err(|error| error.to_string())?;
        let Some(placeholders) = placeholders else { return Ok(None) };
        let tokens = [
            (Some(setting.access_token.as_str()), placeholders.access.as_str()),
            (Some(setting.refresh_token.as_str()), placeholders.refresh.as_str()),
            (setting.id_token.as_deref(), placeholders.id.as_deref().unwrap_or_default()),
        ];
        let with_id = if placeholders.id.is_some() { &tokens[..] } else { &tokens[..2] };
        let contents = file.with_placeholders(with_id).map_err(|error: LoginStoreError| error.to_string())?;
        let path = setting.file.clone().into();
        Ok(Some(HomeFile { path, contents: contents.into_bytes(), is_renewed: true }))
    }

    fn binding(&self) -> Result<OAuthLoginBinding, CredentialError> {
        let setting = &self.setting;
        let invalid = |problem: String| CredentialError::Invalid { name: setting.name.clone(), problem };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(CredentialError::Random)?;
        let (token_host, token_path) =
            setting.endpoint().ok_or_else(|| invalid("`token_endpoint` has no path".to_owned()))?;
        let headers = setting.headers.iter().map(|header| header_kind(header)).collect::<Result<_, _>>();
        Ok(OAuthLoginBinding {
            name: setting.name.clone(),
            hosts: setting.hosts.clone(),
            paths: setting.paths.clone(),
            websocket_paths: setting.websocket_paths.clone(),
            headers: headers.map_err(invalid)?,
            token_host: token_host.to_owned(),
            token_path: token_path.to_owned(),
            answer_members: setting.answer.clone(),
            shapes: setting.shapes(),
            store: Arc::new(self.file.clone()),
            seed,
        })
    }
}
