//! Names that look like those of well-known packages: one character more, less, other, or two of them swapped.
//!
//! A hit is a line for the person who is asked, and decides nothing. The lists are short: packages that most projects of their
//! language have heard of, which is what a name is made to look like.
//!
//! Not here: the names that a call may have (`package_spec.rs`).

use crate::package_spec::{PackageEcosystem, python_key};

/// Shorter names have too many neighbours.
const MIN_NAME_BYTES: usize = 4;

const CARGO: &str = "actix-web ahash anyhow arc-swap async-trait axum backtrace base64 bincode bitflags blake3 bumpalo bytemuck \
    byteorder bytes camino chrono clap colored config criterion crossbeam crossterm csv ctrlc dashmap diesel digest dirs dotenvy \
    either env_logger eyre flate2 futures futures-util getrandom git2 glob globset hashbrown heck hex hmac http hyper ignore indexmap \
    indicatif insta itertools lazy_static libc libloading log lru memchr memmap2 mime miette mio nalgebra native-tls ndarray nix \
    nom notify num num-traits num_cpus once_cell openssl ordered-float parking_lot paste percent-encoding petgraph pin-project \
    pretty_assertions proc-macro2 proptest prost pyo3 quick-xml quote rand rand_core ratatui rayon redis regex reqwest ring rusqlite \
    rustc-hash rustix rustls semver serde serde_derive serde_json serde_yaml sha2 slab smallvec socket2 sqlx strum subtle syn sysinfo \
    tempfile tera termcolor thiserror time tokio tokio-stream tokio-util toml toml_edit tonic tower tower-http tracing \
    tracing-subscriber tree-sitter tungstenite typenum unicode-segmentation unicode-width url uuid walkdir wasm-bindgen wgpu winapi \
    windows-sys winit zerocopy zeroize zstd";

const NPM: &str = "@angular/core @babel/core @reduxjs/toolkit @types/node @types/react ajv angular ansi-styles async autoprefixer \
    axios babel-core babel-loader bcrypt bluebird body-parser bootstrap chai chalk cheerio chokidar classnames color colors commander \
    concurrently cookie-parser core-js cors cross-env cross-spawn css-loader date-fns dayjs debug dotenv drizzle-orm ejs electron \
    esbuild eslint eslint-config-prettier eslint-plugin-import eslint-plugin-react event-stream execa express fastify formik \
    framer-motion fs-extra glob got graphql handlebars helmet husky immer inquirer ioredis jest jquery js-yaml jsdom jsonwebtoken \
    knex koa left-pad lint-staged lodash lodash-es lru-cache luxon marked material-ui mime minimatch minimist mkdirp mocha moment \
    mongodb mongoose morgan multer mysql mysql2 nanoid nest next node-fetch nodemailer nodemon npm nyc openai ora passport playwright \
    pnpm postcss prettier prisma prompts prop-types puppeteer query-string ramda react react-dom react-native react-query \
    react-redux react-router react-router-dom redis redux regenerator-runtime request rimraf rollup rxjs sass sass-loader semver \
    sequelize sharp shelljs sinon socket.io socket.io-client styled-components superagent supertest svelte swiper tailwindcss terser \
    three through2 ts-jest ts-loader ts-node tslib typeorm typescript underscore uuid validator vite vitest vue vue-router vuex \
    webpack webpack-cli webpack-dev-server winston yargs yarn zustand";

const PYTHON: &str = "aiohttp alembic anthropic anyio asyncpg attrs beautifulsoup4 black boto3 botocore cachetools celery certifi cffi \
    charset-normalizer click colorama coverage cryptography cython dash dask django djangorestframework docker docutils fastapi \
    filelock flake8 flask fsspec gevent google-auth greenlet grpcio gunicorn h5py httpx huggingface-hub hypothesis idna ipython \
    isort jinja2 jmespath joblib jsonschema jupyter keras langchain lightgbm lxml markdown markupsafe matplotlib mypy mysqlclient \
    networkx nltk notebook numba numpy openai opencv-python openpyxl orjson packaging pandas paramiko pillow pip platformdirs plotly \
    pluggy poetry polars pre-commit protobuf psutil psycopg2 psycopg2-binary pyarrow pyasn1 pycparser pydantic pygments pyjwt pylint \
    pymongo pymysql pyopenssl pyparsing pytest pytest-asyncio pytest-cov python-dateutil python-dotenv pytorch pytz pyyaml redis \
    regex requests rich ruff scikit-learn scipy seaborn selenium sentry-sdk setuptools simplejson six sphinx spacy sqlalchemy \
    starlette streamlit sympy tensorflow tiktoken toml tornado torch torchvision tox tqdm transformers twisted typer \
    typing-extensions tzdata ujson urllib3 uvicorn virtualenv watchdog werkzeug wheel wrapt xgboost zope-interface";

/// The well-known package that a name looks like; `None` if it is one itself.
pub(crate) fn lookalike(name: &str, ecosystem: PackageEcosystem) -> Option<&'static str> {
    let list = match ecosystem {
        PackageEcosystem::Cargo => CARGO,
        PackageEcosystem::Npm => NPM,
        PackageEcosystem::Python => PYTHON,
    };
    // Registries take these characters for one, or not; a person does.
    let key = |name: &str| match ecosystem {
        PackageEcosystem::Cargo | PackageEcosystem::Python => python_key(name),
        PackageEcosystem::Npm => name.to_ascii_lowercase(),
    };
    let name = key(name);
    let known = || list.split_whitespace();
    if name.len() < MIN_NAME_BYTES || known().any(|known| key(known) == name) {
        return None;
    }
    known().find(|known| known.len() >= MIN_NAME_BYTES && strsim::osa_distance(&key(known), &name) == 1)
}

#[cfg(test)]
mod tests {
    use super::lookalike;
    use crate::package_spec::PackageEcosystem::{Cargo, Npm, Python};

    #[test]
    fn one_edit_away_is_a_lookalike_and_the_package_itself_is_not() {
        for (name, ecosystem, expected) in [
            ("reqeusts", Python, Some("requests")),
            ("request", Python, Some("requests")),
            ("requests", Python, None),
            ("Requests", Python, None),
            ("python_dateutil", Python, None),
            ("lodahs", Npm, Some("lodash")),
            ("expres", Npm, Some("express")),
            ("left-pad", Npm, None),
            ("@type/node", Npm, Some("@types/node")),
            ("serde-json", Cargo, None),
            ("serd_json", Cargo, Some("serde_json")),
            ("tokoi", Cargo, Some("tokio")),
            ("six", Python, None),
            ("siz", Python, None),
            ("something-else", Npm, None),
        ] {
            assert_eq!(lookalike(name, ecosystem), expected, "{name}");
        }
    }
}
