//! The client beside a server of bytes: a sound one, and all kinds of others.

use std::{io::Cursor, ops::ControlFlow};

use super::{
    connection::{Connection, Scripted, fuzz},
    stream::MESSAGE_BYTES_MAX,
};
use crate::sql::{
    address::Login,
    client::{Client, Error, Result},
    value::Value,
};

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = 4 + body.len() as u32;
    [&[tag], &length.to_be_bytes()[..], body].concat()
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn logged_in() -> Vec<u8> {
    let key = message(b'K', &[0, 0, 0, 1, 0, 0, 0, 2]);
    [message(b'R', &0u32.to_be_bytes()), message(b'S', b"name\0value\0"), key, ready(b'I')].concat()
}

/// The answer to a preparation, with types of parameters and columns.
fn prepared(params: &[u32], columns: &[u32]) -> Vec<u8> {
    let counted = |numbers: &[u32], each: fn(u32) -> Vec<u8>| {
        let all: Vec<u8> = numbers.iter().copied().flat_map(each).collect();
        [&(numbers.len() as u16).to_be_bytes()[..], &all].concat()
    };
    let column =
        |of: u32| [b"c\0".as_slice(), &[0; 6], &of.to_be_bytes(), &[0, 8, 0, 0, 0, 0, 0, 0]].concat();
    let rows = match columns {
        [] => message(b'n', &[]),
        _ => message(b'T', &counted(columns, column)),
    };
    let params = message(b't', &counted(params, |of| of.to_be_bytes().to_vec()));
    [message(b'1', &[]), params, rows, ready(b'I')].concat()
}

fn row(fields: &[Option<&[u8]>]) -> Vec<u8> {
    let field = |field: &Option<&[u8]>| match field {
        Some(bytes) => [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat(),
        None => (-1i32).to_be_bytes().to_vec(),
    };
    let all: Vec<u8> = fields.iter().flat_map(field).collect();
    message(b'D', &[&(fields.len() as u16).to_be_bytes()[..], &all].concat())
}

/// The answer to a statement that ends with this tag.
fn done(tag: &str) -> Vec<u8> {
    [message(b'2', &[]), message(b'C', format!("{tag}\0").as_bytes())].concat()
}

fn complaint(code: &str) -> Vec<u8> {
    message(b'E', format!("SERROR\0C{code}\0Mno way\nat all\0\0").as_bytes())
}

const INT8: u32 = 20;
const INT4: u32 = 23;
const TEXT: u32 = 25;

fn connect(script: &[u8], password: &str) -> Result<Connection> {
    let login = Login { user: "u".to_owned(), password: password.to_owned(), database: None };
    Connection::over(Box::new(Scripted(Cursor::new(script.to_vec()))), &login)
}

/// A connection that has logged in and prepared its own statements and one with these types; the server goes on with
/// `script`.
fn connection(params: &[u32], columns: &[u32], script: &[u8]) -> (Connection, usize) {
    let before = [logged_in(), prepared(&[], &[]), prepared(&[], &[]), prepared(params, columns)].concat();
    let mut connection = connect(&[&before, script].concat(), "").unwrap();
    connection.prepare_transactions().unwrap();
    let statement = connection.prepare("SELECT a, b FROM t WHERE c = ?").unwrap();
    (connection, statement)
}

fn rows(connection: &mut Connection, statement: usize, params: &[Value]) -> anyhow::Result<Vec<Vec<Value>>> {
    let mut rows = Vec::new();
    connection.select(statement, params, &mut |row| {
        rows.push(row.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

fn refused(connection: &mut Connection, statement: usize) -> String {
    rows(connection, statement, &[Value::Int(1)]).unwrap_err().to_string()
}

#[test]
fn a_sound_server_is_understood() {
    let first = [
        done("BEGIN"),
        message(b'2', &[]),
        row(&[Some(&(-7i64).to_be_bytes()), Some(b"text")]),
        row(&[Some(&9i64.to_be_bytes()), None]),
        message(b'C', b"SELECT 2\0"),
        ready(b'T'),
    ];
    let last = [done("UPDATE 3"), done("COMMIT"), ready(b'I')];
    let (mut connection, statement) =
        connection(&[INT4], &[INT8, TEXT], &[first.concat(), last.concat()].concat());
    connection.begin().unwrap();
    connection.begin().unwrap();
    let found = rows(&mut connection, statement, &[Value::Int(5)]).unwrap();
    let text = Value::Bytes(b"text".to_vec());
    assert_eq!(found, [[Value::Int(-7), text], [Value::Int(9), Value::Null]]);
    connection.queue(statement, &[Value::Null], 3).unwrap();
    connection.commit().unwrap();
}

#[test]
fn what_was_queued_fails_with_the_next_answer() {
    // The commit is skipped, and nothing of it is answered.
    let script = [done("BEGIN"), message(b'2', &[]), complaint("23505"), ready(b'E')].concat();
    let after = [message(b'C', b"ROLLBACK\0"), ready(b'I')].concat();
    let (mut one, statement) = connection(&[INT4], &[], &[script, after].concat());
    one.begin().unwrap();
    one.queue(statement, &[Value::Int(1)], 0).unwrap();
    assert!(matches!(one.commit(), Err(Error::Duplicate(text)) if text == "no way (SQLSTATE 23505)"));
    one.roll_back().unwrap();

    let script = [done("BEGIN"), done("UPDATE 0"), done("UPDATE 1"), ready(b'T')].concat();
    let (mut one, statement) = connection(&[INT4], &[], &script);
    one.begin().unwrap();
    one.queue(statement, &[Value::Int(1)], 1).unwrap();
    assert!(matches!(one.run(statement, &[Value::Int(1)]), Err(Error::Missing)));
}

#[test]
fn lost_races_are_told_from_other_errors() {
    for (code, is_lost) in [("40001", true), ("40P01", true), ("55P03", true), ("42P01", false)] {
        let script = [complaint(code), ready(b'I')].concat();
        let (mut one, statement) = connection(&[INT4], &[], &script);
        let error = one.run(statement, &[Value::Int(1)]).unwrap_err();
        assert_eq!(matches!(error, Error::LostRace(_)), is_lost, "{error}");
    }
}

/// A commit that was none must not be acknowledged.
#[test]
fn a_commit_that_rolls_back_is_an_error() {
    let script = [done("ROLLBACK"), ready(b'I')].concat();
    let (mut one, _) = connection(&[], &[], &script);
    assert!(one.commit().unwrap_err().to_string().contains("rolled the transaction back"));
    // Nor one that nobody answered.
    let (mut one, _) = connection(&[], &[], &ready(b'I'));
    assert!(one.commit().is_err());
    let (mut one, _) = connection(&[], &[], &done("COMMIT"));
    assert!(one.commit().is_err());
}

#[test]
fn a_server_that_ends_is_quoted() {
    let (mut one, statement) = connection(&[INT4], &[], &complaint("57P01"));
    assert_eq!(refused(&mut one, statement), "no way (SQLSTATE 57P01)");
    assert_eq!(refused(&mut one, statement), "the connection to the server is lost");
}

#[test]
fn parameters_that_do_not_fit_are_refused_before_they_are_sent() {
    let script = [done("UPDATE 1"), ready(b'I')].concat();
    let (mut one, statement) = connection(&[INT4], &[], &script);
    for params in [vec![], vec![Value::Int(1 << 40)], vec![Value::Bytes(vec![1])], vec![Value::Int(1); 2]] {
        assert!(one.run(statement, &params).is_err(), "{params:?}");
    }
    assert_eq!(one.run(statement, &[Value::Int(1)]).unwrap(), 1);
}

#[test]
fn rows_of_other_columns_are_refused() {
    let number = 1i64.to_be_bytes();
    for (fields, reason) in [
        (vec![Some(&number[..])], "other columns"),
        (vec![Some(&number[..]), None, None], "other columns"),
        (vec![Some(&number[..3]), None], "other columns"),
    ] {
        let script = [message(b'2', &[]), row(&fields)].concat();
        let (mut one, statement) = connection(&[INT4], &[INT8, TEXT], &script);
        assert!(refused(&mut one, statement).contains(reason), "{fields:?}");
    }
    let script = [logged_in(), prepared(&[], &[600])].concat();
    let error = connect(&script, "").unwrap().prepare("SELECT 1").unwrap_err();
    assert!(error.to_string().contains("type 600"), "{error}");
}

#[test]
fn messages_that_are_none_are_refused() {
    let long = |length: u32| [b"D", &length.to_be_bytes()[..]].concat();
    for (bytes, reason) in [
        (long(u32::MAX), "invalid message length"),
        (long(i32::MAX as u32), "a message of 2147483647 bytes"),
        (long(MESSAGE_BYTES_MAX as u32 + 1), "a message of 67108865 bytes"),
        (long(MESSAGE_BYTES_MAX as u32), "closed the connection"),
        (long(3), "invalid message length"),
        (long(4), "fill whole buffer"),
        (message(b'?', &[]), "unknown message tag"),
        (message(b'G', &[0, 0, 0]), "does not belong"),
        (message(b'Z', &[]), "fill whole buffer"),
        (ready(b'I'), "does not belong to so many statements"),
        (done("SELECT 1").repeat(2), "does not belong to a statement"),
        (message(b'C', b"no end"), "EOF"),
        (vec![], "closed the connection"),
    ] {
        let (mut one, statement) = connection(&[INT4], &[], &bytes);
        let error = refused(&mut one, statement).to_lowercase();
        assert!(error.contains(&reason.to_lowercase()), "{bytes:?}: {error}");
        assert_eq!(refused(&mut one, statement), "the connection to the server is lost");
    }
}

#[test]
fn answers_without_end_are_refused() {
    let long = row(&[Some(&[b'x'; 1 << 20])]).repeat(17);
    let mut one = connect(&[logged_in(), long].concat(), "").unwrap();
    assert!(one.query("SHOW x").unwrap_err().to_string().contains("too long"));
    let noise =
        message(b'E', &[b"SERROR\0C22000\0M\x1b[2J\xff".as_slice(), &[b'a'; 1 << 20], b"\0\0"].concat());
    let mut one = connect(&[logged_in(), noise, ready(b'I')].concat(), "").unwrap();
    let error = one.query("SHOW x").unwrap_err().to_string();
    assert!(error.len() < 600 && error.starts_with(" [2J") && !error.contains('\x1b'), "{error}");
}

#[test]
fn logins_that_make_no_sense_are_refused() {
    let auth = |kind: u32, body: &[u8]| message(b'R', &[&kind.to_be_bytes()[..], body].concat());
    let sasl = auth(10, b"SCRAM-SHA-256\0\0");
    let mut weak = auth(11, b"r=x,s=YWJj,i=4096");
    weak.extend(auth(0, &[]));
    for (script, password, reason) in [
        (auth(3, &[]), "", "asks for a password of user u"),
        (auth(5, &[1, 2, 3, 4]), "", "asks for a password of user u"),
        (auth(5, &[1]), "p", "failed to fill"),
        (sasl.clone(), "", "asks for a password of user u"),
        (auth(10, b"OTHER\0\0"), "p", "no SCRAM-SHA-256"),
        (auth(10, b"OTHER"), "p", "EOF"),
        // Without a proof that the server knows the password.
        ([sasl.clone(), auth(0, &[])].concat(), "p", "does not belong to a login"),
        ([sasl.clone(), auth(12, b"v=AAAA")].concat(), "p", "does not belong to a login"),
        ([sasl.clone(), sasl.clone()].concat(), "p", "does not belong to a login"),
        ([sasl, weak].concat(), "p", "invalid nonce"),
        (auth(7, &[]), "p", "another login"),
        (auth(99, &[]), "p", "unknown authentication tag"),
        (complaint("28P01"), "p", "no way (SQLSTATE 28P01)"),
        (ready(b'I'), "p", "does not belong to a login"),
        (vec![], "p", "closed the connection"),
    ] {
        let error = connect(&script, password).unwrap_err().to_string();
        assert!(error.to_lowercase().contains(&reason.to_lowercase()), "{script:?}: {error}");
        assert_eq!(error.lines().count(), 1);
    }
}

/// A conversation as [`fuzz`] has it, of which every part succeeds.
fn conversation() -> Vec<u8> {
    let update = [
        done("BEGIN"),
        done("UPDATE 1"),
        message(b'2', &[]),
        row(&[Some(&1i64.to_be_bytes()), Some(b"text")]),
        message(b'C', b"UPDATE 1\0"),
        ready(b'T'),
    ];
    let asked = [message(b'T', &[0, 0]), row(&[Some(b"x"), None]), message(b'C', b"SHOW\0"), ready(b'I')];
    let end = [done("UPDATE 1"), ready(b'T'), done("COMMIT"), ready(b'I')];
    let rolled_back = [message(b'C', b"ROLLBACK\0"), ready(b'I')];
    [
        logged_in(),
        prepared(&[], &[]),
        prepared(&[], &[]),
        asked.concat(),
        prepared(&[INT4], &[INT8, TEXT]),
        update.concat(),
        end.concat(),
        rolled_back.concat(),
    ]
    .concat()
}

#[test]
fn no_byte_of_a_conversation_brings_the_client_down() {
    let sound = conversation();
    for cut in 0..=sound.len() {
        fuzz(&sound[..cut]);
    }
    for at in 0..sound.len() {
        for change in [1, 2, 0x20, 0x7F, 0x80, 0xFF] {
            let mut other = sound.clone();
            other[at] ^= change;
            fuzz(&other);
        }
    }
}
