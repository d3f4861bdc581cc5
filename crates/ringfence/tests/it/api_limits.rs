//! Limits on the resources that one token, or a client without a token, can use.

use std::net::TcpStream;

use ringfence_testkit::patience::PATIENCE;
use serde_json::json;

use crate::api_client::{ApiTestClient, TestApiServer};
use crate::site::TestSite;

/// Opens as many as it gets of something. Gives them, and the status of the one that was refused.
fn take_all<T>(mut take: impl FnMut() -> Result<T, u16>) -> (Vec<T>, u16) {
    let mut taken = Vec::new();
    loop {
        match take() {
            Ok(one) if taken.len() < 1200 => taken.push(one),
            Ok(_) => panic!("there is no end"),
            Err(status) => return (taken, status),
        }
    }
}

/// Opens a stream of events, and keeps it.
fn stream(caller: &ApiTestClient<'_>) -> Result<TcpStream, u16> {
    use std::io::{BufRead as _, BufReader};
    let token = format!("Bearer {}", caller.token);
    let stream = caller.server.open("GET", "/v1/events", &[("Authorization", &token)], None);
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    match line.split(' ').nth(1).unwrap().parse().unwrap() {
        200 => Ok(stream),
        status => Err(status),
    }
}

#[test]
fn event_streams_of_one_token_leave_others_theirs() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--rate", "100000"]);
    let (greedy, other, page) = (server.agent(&site, "greedy"), server.agent(&site, "other"), server.page());
    let (held, refused) = take_all(|| stream(&greedy));
    assert_eq!(refused, 429);
    assert!(stream(&other).is_ok() && stream(&page).is_ok());
    drop(held);
}

#[test]
fn sessions_of_one_token_leave_others_theirs() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &["--rate", "100000"]);
    let (greedy, other, page) = (server.agent(&site, "greedy"), server.agent(&site, "other"), server.page());
    let begin = |caller: &ApiTestClient<'_>| {
        let got = caller.post("/v1/sessions", &json!({}));
        if got.status == 201 { Ok(got.json()["id"].as_str().unwrap().to_owned()) } else { Err(got.status) }
    };
    let (taken, refused) = take_all(|| begin(&greedy));
    assert_eq!(refused, 429);
    assert!(begin(&other).is_ok() && begin(&page).is_ok());
    assert_eq!(greedy.send("DELETE", &format!("/v1/sessions/{}", taken[0]), None).status, 200);
    assert!(begin(&greedy).is_ok(), "the place of the one that ended");
}

#[test]
fn a_crowd_of_silent_connections_makes_room_for_who_speaks() {
    let site = TestSite::new();
    let server = TestApiServer::start(&site, &[]);
    let agent = server.agent(&site, "agent");
    // A client that has shown its token is not part of the crowd.
    let mut known = agent.events("/v1/events");
    let mut crowd: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    let session = agent.create_session(&json!({}));
    known.next_of("session");
    // The oldest ones of the crowd were closed to make room.
    let mut byte = [0; 1];
    crowd[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(std::io::Read::read(&mut crowd[0], &mut byte).unwrap(), 0);
    assert_eq!(agent.get(&format!("/v1/sessions/{session}"))["ended"], serde_json::Value::Null);
}
