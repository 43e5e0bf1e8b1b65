//! Logging in: without a password, with one as it is, with MD5, or with SCRAM-SHA-256.

use std::time::Duration;

use fallible_iterator::FallibleIterator;
use postgres_protocol::{
    authentication::{
        md5_hash,
        sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256},
    },
    message::{
        backend::{ErrorResponseBody, Message},
        frontend,
    },
};

use super::stream::Stream;
use crate::sql::{
    address::Login,
    client::{Error, Result},
};

/// How long a server may take for each message of a login.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of what a server complains so much is quoted.
const COMPLAINT_CHARS_MAX: usize = 500;

/// How far an exchange of SCRAM is.
enum Scram {
    None,
    /// The first message is sent.
    Begun(ScramSha256),
    /// The proof is sent.
    Proven(ScramSha256),
    /// The server has proven that it knows the password, too.
    Done,
}

/// Logs in; afterwards the server waits for statements.
pub(super) fn log_in(stream: &mut Stream, login: &Login) -> Result<()> {
    stream.set_patience(Some(PATIENCE))?;
    let database = login.database.as_deref().unwrap_or("postgres");
    let parameters = [
        ("user", login.user.as_str()),
        ("database", database),
        ("client_encoding", "UTF8"),
        ("application_name", "lacuna"),
    ];
    frontend::startup_message(parameters, &mut stream.output)?;
    stream.send()?;
    authenticate(stream, login)?;
    loop {
        match stream.receive()? {
            Message::BackendKeyData(_) => {}
            Message::ReadyForQuery(_) => return stream.set_patience(None),
            Message::ErrorResponse(body) => return Err(error_of(&body)),
            _ => return Err(unexpected("a login")),
        }
    }
}

fn authenticate(stream: &mut Stream, login: &Login) -> Result<()> {
    let password = || match login.password.as_str() {
        "" => Err(Error::Other(format!("the server asks for a password of user {}", login.user))),
        password => Ok(password.as_bytes()),
    };
    let mut scram = Scram::None;
    loop {
        scram = match (stream.receive()?, scram) {
            (Message::AuthenticationOk, Scram::None | Scram::Done) => return Ok(()),
            (Message::AuthenticationCleartextPassword, Scram::None) => {
                frontend::password_message(password()?, &mut stream.output)?;
                Scram::None
            }
            (Message::AuthenticationMd5Password(body), Scram::None) => {
                let hash = md5_hash(login.user.as_bytes(), password()?, body.salt());
                frontend::password_message(hash.as_bytes(), &mut stream.output)?;
                Scram::None
            }
            (Message::AuthenticationSasl(body), Scram::None) => {
                if !body.mechanisms().any(|mechanism| Ok(mechanism == SCRAM_SHA_256))? {
                    return Err(Error::Other("the server offers no SCRAM-SHA-256".to_owned()));
                }
                let scram = ScramSha256::new(password()?, ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), &mut stream.output)?;
                Scram::Begun(scram)
            }
            (Message::AuthenticationSaslContinue(body), Scram::Begun(mut scram)) => {
                scram.update(body.data())?;
                frontend::sasl_response(scram.message(), &mut stream.output)?;
                Scram::Proven(scram)
            }
            (Message::AuthenticationSaslFinal(body), Scram::Proven(mut scram)) => {
                scram.finish(body.data())?;
                Scram::Done
            }
            (Message::ErrorResponse(body), _) => return Err(error_of(&body)),
            (
                Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential,
                _,
            ) => return Err(Error::Other("the server asks for another login than by password".to_owned())),
            _ => return Err(unexpected("a login")),
        };
        stream.send()?;
    }
}

/// The error for a message that is none of those that may come.
pub(super) fn unexpected(what: &str) -> Error {
    Error::Other(format!("the server sent a message that does not belong to {what}"))
}

/// What a server complains of, in one line.
pub(super) fn error_of(body: &ErrorResponseBody) -> Error {
    let (mut code, mut message) = (String::new(), String::new());
    let mut fields = body.fields();
    // A cut list of fields ends it.
    while let Ok(Some(field)) = fields.next() {
        let text = || {
            let all = String::from_utf8_lossy(field.value_bytes());
            let line = all.lines().next().unwrap_or_default().chars().take(COMPLAINT_CHARS_MAX);
            line.map(|c| if c.is_control() { ' ' } else { c }).collect::<String>()
        };
        match field.type_() {
            b'C' => code = text(),
            b'M' => message = text(),
            _ => {}
        }
    }
    let text = format!("{message} (SQLSTATE {code})");
    match code.as_str() {
        // Not serializable, a deadlock, a lock that was not to be had.
        "40001" | "40P01" | "55P03" => Error::LostRace(text),
        "23505" => Error::Duplicate(text),
        _ => Error::Other(text),
    }
}
