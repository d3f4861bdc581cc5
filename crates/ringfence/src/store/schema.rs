//! The database file: where it is, its schema and migrations, and why it cannot be used.
//!
//! Not here: what is kept in it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use ringfence_fs::PLAIN_FILE_FLAGS;
use ringfence_kernel::StoreError;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

/// The file, below the state directory.
pub const STORE_FILE: &str = "state.db";

/// Its name up to 0.1.0. The first open of a later version moves it, and leaves a database there that earlier versions
/// refuse as too new, so that none of them starts over with an empty store.
const FORMER_STORE_FILE: &str = "approvals.db";

/// A schema version that no release has.
const TOMBSTONE_VERSION: u32 = 1_000_000;

/// The smallest page that SQLite has.
const TOMBSTONE_BYTES: usize = 512;

/// Offset of the schema version in SQLite's file format.
const USER_VERSION_OFFSET: usize = 60;

/// Time to wait for locks of other processes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Migrations from each version to the next. Append only.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE requests (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL,
        expires INTEGER NOT NULL,
        answer TEXT
    );
    CREATE TABLE grants (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL,
        until INTEGER NOT NULL
    );
    CREATE TABLE used (nonce TEXT PRIMARY KEY, expires INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE keys (name TEXT PRIMARY KEY, key BLOB NOT NULL) WITHOUT ROWID;
",
    "
    ALTER TABLE requests ADD COLUMN owner TEXT;
    CREATE TABLE noes (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        count INTEGER NOT NULL,
        last INTEGER NOT NULL
    );
    CREATE TABLE trusted (directory TEXT PRIMARY KEY, sha256 TEXT NOT NULL, who TEXT NOT NULL, since INTEGER NOT NULL)
        WITHOUT ROWID;
",
    "
    CREATE TABLE sittings (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
    CREATE TABLE runs (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
",
    "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        directory TEXT NOT NULL,
        model TEXT NOT NULL,
        agent TEXT,
        dialect TEXT NOT NULL,
        title TEXT NOT NULL,
        started INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        owner TEXT NOT NULL,
        bits TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        session TEXT NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE INDEX entries_of_sessions ON entries (session, number);
",
    "
    CREATE TABLE definitions (tool TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;
",
    "
    ALTER TABLE requests ADD COLUMN draft TEXT;
    ALTER TABLE requests ADD COLUMN draft_id TEXT;
    CREATE TABLE idempotency_keys (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        scope TEXT NOT NULL,
        key TEXT NOT NULL,
        digest TEXT NOT NULL,
        reply TEXT,
        at INTEGER NOT NULL,
        UNIQUE (scope, key)
    );
",
    "
    ALTER TABLE noes RENAME TO denials;
    ALTER TABLE sittings RENAME TO api_sessions;
    ALTER TABLE used RENAME TO used_resume_tokens;
    ALTER TABLE sessions RENAME COLUMN bits TO taint;
",
    "
    CREATE TABLE tokens (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        hash TEXT NOT NULL UNIQUE,
        until INTEGER,
        body TEXT NOT NULL
    );
",
];

/// Opens the file, makes it if it is missing, and brings it to this version.
pub(super) fn open(file: &Path) -> Result<Connection, SqliteError> {
    if let Some(state) = file.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    }
    // One at a time: SQLite does not wait for another process that changes the mode of the journal.
    let _opening = open_lock(file)?;
    adopt_former_store(file)?;
    // Made by us and not by SQLite, so that it is private from the start. An existing one is not opened besides SQLite:
    // closing it would release the locks that this process has on it.
    match open_private(OpenOptions::new().create_new(true), file) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ if !std::fs::symlink_metadata(file)?.is_file() => {
            let message = format!("`{STORE_FILE}` in the state directory is not a regular file");
            return Err(io::Error::other(message).into());
        }
        _ => {}
    }
    let mut connection = open_existing(file)?;
    missing_migrations(schema_version(&connection)?)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Arguments have contents of files in them, which are not kept once they are answered.
    connection.pragma_update(None, "secure_delete", "ON")?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Whether a state directory has a store, by its name or the former one.
pub(super) fn store_exists(state: &Path) -> io::Result<bool> {
    Ok(state.join(STORE_FILE).try_exists()? || is_former_store(&state.join(FORMER_STORE_FILE))?)
}

/// Fails where a newer version wrote the store. To be called before any file of the state directory is changed: a newer
/// version may write them in another form. A store that cannot be read is reported where it is used.
pub(crate) fn refuse_newer_store(state: &Path) -> Result<(), StoreError> {
    let file = state.join(STORE_FILE);
    if !file.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    match open_existing(&file).and_then(|connection| missing_migrations(schema_version(&connection)?)) {
        Err(error @ SqliteError::Newer { .. }) => Err(error.into_store_error()),
        _ => Ok(()),
    }
}

/// Makes versions before the present name of the store refuse this state directory, also where there is no store: they
/// would append records of their own vocabulary, and start a store beside this version's.
pub(crate) fn refuse_earlier_versions(state: &Path) -> Result<(), StoreError> {
    let former = state.join(FORMER_STORE_FILE);
    let leave = || {
        let _opening = open_lock(&former)?;
        write_tombstone(&former)
    };
    if former.try_exists().map_err(StoreError)? { Ok(()) } else { leave().map_err(StoreError) }
}

fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.write(true).mode(0o600).custom_flags(PLAIN_FILE_FLAGS).open(path)
}

/// Held while a database is opened and brought to this version.
fn open_lock(database: &Path) -> io::Result<File> {
    let lock = open_private(OpenOptions::new().create(true), &database.with_extension("lock"))?;
    while let Err(error) = lock.lock() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(lock)
}

fn open_existing(file: &Path) -> Result<Connection, SqliteError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Moves the store of an earlier version to its present name, and leaves a tombstone for earlier versions.
fn adopt_former_store(file: &Path) -> Result<(), SqliteError> {
    let former = file.with_file_name(FORMER_STORE_FILE);
    let is_adopted = file.try_exists()?;
    if is_adopted && former.try_exists()? {
        return Ok(());
    }
    // Earlier versions open theirs under this lock.
    let _opening = open_lock(&former)?;
    if !is_adopted && is_former_store(&former)? {
        let connection = open_existing(&former)?;
        // This folds the write-ahead log into the file, and fails while another process has it open.
        connection.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))?;
        drop(connection);
        std::fs::rename(&former, file)?;
    }
    Ok(write_tombstone(&former)?)
}

/// Writes the tombstone, unless there is something of its name. To be called under the lock of earlier versions.
fn write_tombstone(former: &Path) -> io::Result<()> {
    if former.try_exists()? {
        return Ok(());
    }
    let unfinished = former.with_extension("new");
    let mut file = open_private(OpenOptions::new().create(true).truncate(true), &unfinished)?;
    file.write_all(&tombstone_page())?;
    file.sync_all()?;
    std::fs::rename(&unfinished, former)
}

/// An SQLite database without tables: one page, in the journal mode of earlier versions, so that opening it changes nothing.
fn tombstone_page() -> [u8; TOMBSTONE_BYTES] {
    const HEADER: &[u8] = b"SQLite format 3\0\x02\x00\x02\x02\x00\x40\x20\x20";
    const EMPTY_TABLE_LEAF: &[u8] = b"\x0d\0\0\0\0\x02\0\0";
    let mut page = [0; TOMBSTONE_BYTES];
    page[..HEADER.len()].copy_from_slice(HEADER);
    // Change counter, pages, schema format, text encoding, schema version, and which SQLite wrote it at which change.
    let numbers =
        [(24, 1), (28, 1), (44, 4), (56, 1), (USER_VERSION_OFFSET, TOMBSTONE_VERSION), (92, 1), (96, 3_045_000)];
    for (offset, number) in numbers {
        page[offset..offset + 4].copy_from_slice(&u32::to_be_bytes(number));
    }
    page[100..100 + EMPTY_TABLE_LEAF.len()].copy_from_slice(EMPTY_TABLE_LEAF);
    page
}

/// Whether this is the store of an earlier version, and not the tombstone.
fn is_former_store(former: &Path) -> io::Result<bool> {
    if !former.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    let mut version = [0; 4];
    let file = OpenOptions::new().read(true).custom_flags(PLAIN_FILE_FLAGS).open(former)?;
    match file.read_exact_at(&mut version, USER_VERSION_OFFSET as u64) {
        // A database that is empty has no header.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        read => read.map(|()| u32::from_be_bytes(version) != TOMBSTONE_VERSION),
    }
}

fn schema_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// The migrations from a version on.
fn missing_migrations(found: u32) -> Result<&'static [&'static str], SqliteError> {
    let missing = usize::try_from(found).ok().and_then(|found| MIGRATIONS.get(found..));
    missing.ok_or(SqliteError::Newer { found, newest: newest_version() })
}

fn newest_version() -> u32 {
    u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX)
}

fn migrate(connection: &mut Connection) -> Result<(), SqliteError> {
    if schema_version(connection)? == newest_version() {
        return Ok(());
    }
    // Of several processes at once, one does it and the others find it done.
    let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for step in missing_migrations(schema_version(&change)?)? {
        change.execute_batch(step)?;
    }
    change.pragma_update(None, "user_version", newest_version())?;
    Ok(change.commit()?)
}

/// Failure to use the database.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SqliteError {
    #[error(
        "`{STORE_FILE}` in the state directory was written by a newer ringfence: schema version {found}, and this one supports up to {newest}"
    )]
    Newer { found: u32, newest: u32 },
    #[error(
        "the store in the state directory, `{STORE_FILE}` or `{FORMER_STORE_FILE}` of an earlier version, is damaged; move it \
         away to continue: persistent grants are lost and must be approved again"
    )]
    Damaged(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "another process holds the store in the state directory, `{STORE_FILE}` or `{FORMER_STORE_FILE}` of an earlier version; \
         stop ringfence processes of an earlier version and try again"
    )]
    Busy,
    #[error(transparent)]
    Other(rusqlite::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.into()),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            // A table that is not there, or has something else in it.
            None | Some(ErrorCode::Unknown | ErrorCode::TypeMismatch) => Self::Damaged(error.into()),
            Some(_) => Self::Other(error),
        }
    }
}

impl SqliteError {
    pub(crate) fn into_store_error(self) -> StoreError {
        StoreError(io::Error::other(self))
    }
}
