//! Everything a Rust program does with Apache Iggy, done with Courser. Usage: program ADDRESS TRANSPORT
//!
//! Prints one line per check, "ok" and its name, and ends at the first thing that is not as it should be. The test
//! that starts it has put messages of the Python SDK into partition 0 of exchange/messages, and reads partition 1 then.

#[cfg(feature = "sdk-0-8")]
extern crate iggy_0_8 as iggy;
#[cfg(feature = "sdk-0-9")]
extern crate iggy_0_9 as iggy;
#[cfg(feature = "sdk-0-10")]
extern crate iggy_0_10 as iggy;

#[cfg_attr(feature = "sdk-0-8", path = "sdk_0_8.rs")]
#[cfg_attr(feature = "sdk-0-9", path = "sdk_0_9.rs")]
#[cfg_attr(feature = "sdk-0-10", path = "sdk_0_10.rs")]
mod sdk;

use bytes::Bytes;
use iggy::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Debug;

const ROOT: &str = "iggy";
const ROOT_PASSWORD: &str = "iggy";

struct Program {
    address: String,
    transport: String,
}

type Outcome = Result<(), IggyError>;

#[tokio::main]
async fn main() -> Outcome {
    let program = Program {
        address: std::env::args().nth(1).expect("the address of the server"),
        transport: std::env::args().nth(2).expect("the transport"),
    };
    program.reads_on_a_new_connection().await?;
    let root = program.login(ROOT, ROOT_PASSWORD).await?;
    program.wrong_password().await?;
    program.system(&root).await?;
    streams_and_topics(&root).await?;
    partitions(&root).await?;
    missing(&root).await?;
    sending(&root).await?;
    polling(&root).await?;
    offsets(&root).await?;
    if program.has_connections() {
        groups(&root).await?;
    }
    program.users(&root).await?;
    program.permissions(&root).await?;
    program.tokens(&root).await?;
    writes_for_python(&root).await?;
    sdk::last_checks(&program, &root).await?;
    deletes(&root).await?;
    root.logout_user().await?;
    ok("logout");
    Ok(())
}

impl Program {
    /// A consumer that does nothing but poll says less about itself than any other client.
    async fn reads_on_a_new_connection(&self) -> Outcome {
        let reader = self.login(ROOT, ROOT_PASSWORD).await?;
        let (stream, topic) = (name("exchange"), name("messages"));
        let first = PollingStrategy::first();
        let polled = sdk::poll(&reader, &stream, &topic, 0, &consumer(), &first, 10, false).await?;
        equal(payloads(&polled), ["plain", "with a header", "with two"], "messages of the Python SDK");
        equal(polled.messages[0].header.id, 7, "id");
        equal(headers(&polled.messages[1])?, "key=value ".to_string(), "headers");
        equal(headers(&polled.messages[2])?, "first=ü second=2 ".to_string(), "headers");
        ok("reads on a new connection");
        reader.shutdown().await
    }

    async fn wrong_password(&self) -> Outcome {
        let stranger = self.connect().await?;
        refused(stranger.login_user(ROOT, "not the password").await, "a wrong password");
        refused(stranger.get_streams().await, "a request without a login");
        ok("wrong password");
        stranger.shutdown().await
    }

    async fn users(&self, client: &IggyClient) -> Outcome {
        let made = sdk::create_user(client, "reader", "a password").await?;
        equal(client.get_user(&name("reader")).await?.unwrap().id, made.id, "id of the user");
        equal(client.get_users().await?.len(), 2, "users");
        sdk::rename_user(client, "reader", "ferris").await?;
        client.change_password(&name("ferris"), "a password", "another one").await?;
        let user = self.login("ferris", "another one").await?;
        refused(user.get_streams().await, "a user without permissions");
        ok("users");
        user.shutdown().await
    }

    async fn permissions(&self, client: &IggyClient) -> Outcome {
        let stream_id = client.get_stream(&stream()).await?.unwrap().id as usize;
        let topic_id = client.get_topic(&stream(), &topic()).await?.unwrap().id as usize;
        let of_topic = TopicPermissions { read_topic: true, poll_messages: true, ..Default::default() };
        let of_stream =
            StreamPermissions { topics: Some(BTreeMap::from([(topic_id, of_topic)])), ..Default::default() };
        let streams = Some(BTreeMap::from([(stream_id, of_stream)]));
        let permissions = Permissions { global: GlobalPermissions::default(), streams };
        client.update_permissions(&name("ferris"), Some(permissions.clone())).await?;
        let read = client.get_user(&name("ferris")).await?.unwrap().permissions;
        equal(read, Some(permissions), "permissions");
        let user = self.login("ferris", "another one").await?;
        equal(payloads(&poll(&user, PollingStrategy::first(), 0, 1, false).await?), ["one"], "message of the user");
        let sent = user.send_messages(&stream(), &topic(), &Partitioning::balanced(), &mut messages(&["no"])).await;
        refused(sent, "a send without permission");
        user.shutdown().await?;
        client.delete_user(&name("ferris")).await?;
        equal(client.get_users().await?.len(), 1, "users after the deletion");
        ok("permissions");
        Ok(())
    }

    async fn tokens(&self, client: &IggyClient) -> Outcome {
        let expiry = PersonalAccessTokenExpiry::ExpireDuration(hour());
        let raw = client.create_personal_access_token("for-rust", expiry).await?;
        equal(client.get_personal_access_tokens().await?[0].name.as_str(), "for-rust", "name of the token");
        let bearer = self.connect().await?;
        bearer.login_with_personal_access_token(&raw.token).await?;
        equal(payloads(&poll(&bearer, PollingStrategy::first(), 0, 1, false).await?), ["one"], "message by token");
        bearer.shutdown().await?;
        client.delete_personal_access_token("for-rust").await?;
        let stranger = self.connect().await?;
        refused(stranger.login_with_personal_access_token(&raw.token).await, "a deleted token");
        ok("tokens");
        stranger.shutdown().await
    }

    /// Over HTTP each request stands alone: there is no "me", and nobody is a member of a group.
    fn has_connections(&self) -> bool {
        self.transport != "http"
    }

    async fn system(&self, client: &IggyClient) -> Outcome {
        client.ping().await?;
        let stats = client.get_stats().await?;
        equal(stats.streams_count, 1, "streams in the statistics");
        equal(stats.hostname.is_empty(), false, "an empty host name in the statistics");
        let clients = client.get_clients().await?;
        if self.has_connections() {
            let me = client.get_me().await?;
            equal(clients.iter().any(|one| one.client_id == me.client_id), true, "this client among the clients");
            equal(client.get_client(me.client_id).await?.unwrap().address, me.address, "address of the client");
        }
        equal(client.get_cluster_metadata().await?.nodes.len(), 1, "nodes");
        let archive = client.snapshot(SnapshotCompression::Deflated, vec![SystemSnapshotType::Test]).await?;
        equal(&archive.0[..2], b"PK".as_slice(), "the first bytes of the archive");
        ok("system");
        Ok(())
    }

    async fn connect(&self) -> Result<IggyClient, IggyError> {
        let (builder, address) = (IggyClientBuilder::new(), self.address.clone());
        let client = match self.transport.as_str() {
            "http" => builder.with_http().with_api_url(format!("http://{address}")).build()?,
            "websocket" => builder.with_websocket().with_server_address(address).build()?,
            "quic" => builder.with_quic().with_server_address(address).build()?,
            _ => builder.with_tcp().with_server_address(address).build()?,
        };
        client.connect().await?;
        Ok(client)
    }

    async fn login(&self, user: &str, password: &str) -> Result<IggyClient, IggyError> {
        let client = self.connect().await?;
        client.login_user(user, password).await?;
        Ok(client)
    }
}

async fn streams_and_topics(client: &IggyClient) -> Outcome {
    let made = sdk::create_stream(client, "rust-first").await?;
    sdk::rename_stream(client, &numbered(made.id), "rust").await?;
    equal(client.get_stream(&stream()).await?.unwrap().id, made.id, "id of the renamed stream");
    equal(client.get_streams().await?.len(), 2, "streams");
    let topic_made = sdk::create_topic(client, &stream(), "first", 2).await?;
    equal(topic_made.partitions_count, 2, "partitions");
    sdk::update_topic(client, &stream(), &numbered(topic_made.id), "orders", IggyExpiry::ExpireDuration(hour())).await?;
    let read = client.get_topic(&stream(), &topic()).await?.unwrap();
    equal(read.id, topic_made.id, "id of the renamed topic");
    equal(sdk::expiry(&read), IggyExpiry::ExpireDuration(hour()), "expiry");
    equal(client.get_topics(&stream()).await?.len(), 1, "topics");
    ok("streams and topics");
    Ok(())
}

async fn partitions(client: &IggyClient) -> Outcome {
    client.create_partitions(&stream(), &topic(), 2).await?;
    equal(client.get_topic(&stream(), &topic()).await?.unwrap().partitions.len(), 4, "partitions after two more");
    client.delete_partitions(&stream(), &topic(), 1).await?;
    equal(client.get_topic(&stream(), &topic()).await?.unwrap().partitions.len(), 3, "partitions after one less");
    ok("partitions");
    Ok(())
}

async fn missing(client: &IggyClient) -> Outcome {
    let nowhere = name("nowhere");
    equal(client.get_stream(&nowhere).await?.is_none(), true, "a stream that is not there");
    equal(client.get_topic(&stream(), &nowhere).await?.is_none(), true, "a topic that is not there");
    refused(client.delete_stream(&nowhere).await, "deleting a stream that is not there");
    let sent = client.send_messages(&nowhere, &topic(), &Partitioning::balanced(), &mut messages(&["lost"])).await;
    refused(sent, "a send to nowhere");
    refused(poll(client, PollingStrategy::first(), 99, 1, false).await, "a poll of a partition that is not there");
    refused(sdk::create_stream(client, "rust").await, "a name that is taken");
    client.ping().await?;
    ok("missing");
    Ok(())
}

async fn sending(client: &IggyClient) -> Outcome {
    let key = Partitioning::messages_key_str("customer-7")?;
    send(client, Partitioning::partition_id(0), &["one", "two", "three"]).await?;
    send(client, Partitioning::balanced(), &["balanced"]).await?;
    send(client, key.clone(), &["keyed 1"]).await?;
    send(client, key, &["keyed 2"]).await?;
    equal(client.get_topic(&stream(), &topic()).await?.unwrap().messages_count, 6, "messages");
    let mut together = 0;
    for partition in 0..3 {
        let found = payloads(&poll(client, PollingStrategy::first(), partition, 10, false).await?);
        together += usize::from(found.join(" ").contains("keyed 1 keyed 2"));
    }
    equal(together, 1, "partitions with both messages of the key");
    sdk::flush(client, &stream(), &topic()).await?;
    ok("sending");
    Ok(())
}

async fn polling(client: &IggyClient) -> Outcome {
    let first = poll(client, PollingStrategy::first(), 0, 2, false).await?;
    equal(payloads(&first), ["one", "two"], "first");
    equal(payloads(&poll(client, PollingStrategy::offset(1), 0, 1, false).await?), ["two"], "offset 1");
    let count = client.get_topic(&stream(), &topic()).await?.unwrap().partitions[0].messages_count;
    let last = poll(client, PollingStrategy::last(), 0, 1, false).await?;
    equal(last.messages[0].header.offset, count - 1, "last");
    let since = PollingStrategy::timestamp(first.messages[0].header.timestamp.into());
    equal(poll(client, since, 0, 100, false).await?.messages.len() as u64, count, "since the first");
    equal(payloads(&poll(client, PollingStrategy::next(), 0, 2, true).await?), ["one", "two"], "next");
    equal(payloads(&poll(client, PollingStrategy::next(), 0, 1, true).await?), ["three"], "next again");
    ok("polling");
    Ok(())
}

async fn offsets(client: &IggyClient) -> Outcome {
    equal(stored(client).await?, Some(2), "automatic commit");
    client.store_consumer_offset(&consumer(), &stream(), &topic(), Some(0), 0).await?;
    equal(stored(client).await?, Some(0), "stored offset");
    equal(payloads(&poll(client, PollingStrategy::next(), 0, 1, false).await?), ["two"], "next");
    client.delete_consumer_offset(&consumer(), &stream(), &topic(), Some(0)).await?;
    equal(stored(client).await?, None, "deleted offset");
    ok("offsets");
    Ok(())
}

async fn groups(client: &IggyClient) -> Outcome {
    let workers = name("workers");
    let made = client.create_consumer_group(&stream(), &topic(), "workers").await?;
    equal(made.partitions_count, 3, "partitions of the group");
    client.join_consumer_group(&stream(), &topic(), &workers).await?;
    let joined = client.get_consumer_group(&stream(), &topic(), &workers).await?.unwrap();
    equal(joined.members_count, 1, "members");
    equal(joined.members[0].partitions.len(), 3, "partitions of the member");
    equal(client.get_consumer_groups(&stream(), &topic()).await?.len(), 1, "groups");
    let group = Consumer::group(workers.clone());
    let total = sdk::poll_group(client, &stream(), &topic(), &group, 3).await?;
    equal(total, 6, "messages of the group");
    client.leave_consumer_group(&stream(), &topic(), &workers).await?;
    let left = client.get_consumer_group(&stream(), &topic(), &workers).await?.unwrap();
    equal(left.members_count, 0, "members after the leave");
    client.delete_consumer_group(&stream(), &topic(), &workers).await?;
    equal(client.get_consumer_groups(&stream(), &topic()).await?.len(), 0, "groups after the deletion");
    ok("groups");
    Ok(())
}

async fn writes_for_python(client: &IggyClient) -> Outcome {
    let headers = BTreeMap::from([
        (HeaderKey::try_from("key")?, HeaderValue::try_from("value")?),
        (HeaderKey::try_from("count")?, HeaderValue::from(42_u32)),
    ]);
    let with_headers = IggyMessage::builder().payload(Bytes::from("with headers")).user_headers(headers).build()?;
    let mut sent = [
        IggyMessage::builder().id(7).payload(Bytes::from("plain")).build()?,
        with_headers,
        IggyMessage::builder().payload(Bytes::from("x".repeat(1_000_000))).build()?,
    ];
    let partition = Partitioning::partition_id(1);
    client.send_messages(&name("exchange"), &name("messages"), &partition, &mut sent).await?;
    ok("writes for Python");
    Ok(())
}

async fn deletes(client: &IggyClient) -> Outcome {
    client.delete_topic(&stream(), &topic()).await?;
    equal(client.get_topics(&stream()).await?.len(), 0, "topics after the deletion");
    client.delete_stream(&stream()).await?;
    equal(client.get_streams().await?.len(), 1, "streams after the deletion");
    ok("deletes");
    Ok(())
}

// --- the means -------------------------------------------------------------------------------------------

async fn send(client: &IggyClient, partitioning: Partitioning, texts: &[&str]) -> Outcome {
    client.send_messages(&stream(), &topic(), &partitioning, &mut messages(texts)).await?;
    Ok(())
}

async fn poll(
    client: &IggyClient,
    strategy: PollingStrategy,
    partition: u32,
    count: u32,
    commit: bool,
) -> Result<PolledMessages, IggyError> {
    sdk::poll(client, &stream(), &topic(), partition, &consumer(), &strategy, count, commit).await
}

async fn stored(client: &IggyClient) -> Result<Option<u64>, IggyError> {
    let found = client.get_consumer_offset(&consumer(), &stream(), &topic(), Some(0)).await?;
    Ok(found.map(|info| info.stored_offset))
}

fn messages(texts: &[&str]) -> Vec<IggyMessage> {
    texts.iter().map(|text| IggyMessage::from(*text)).collect()
}

fn payloads(polled: &PolledMessages) -> Vec<String> {
    polled.messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

fn headers(message: &IggyMessage) -> Result<String, IggyError> {
    let mut text = String::new();
    for (key, value) in message.user_headers_map()?.unwrap_or_default() {
        text += &format!("{}={} ", key.as_str()?, value.as_str()?);
    }
    Ok(text)
}

fn stream() -> Identifier {
    name("rust")
}

fn topic() -> Identifier {
    name("orders")
}

fn consumer() -> Consumer {
    Consumer::new(name("rust"))
}

fn name(text: &str) -> Identifier {
    Identifier::named(text).unwrap()
}

fn numbered(id: u32) -> Identifier {
    Identifier::numeric(id).unwrap()
}

fn hour() -> IggyDuration {
    IggyDuration::new_from_secs(3600)
}

fn ok(check: &str) {
    println!("ok {check}");
}

fn equal<A: PartialEq<B> + Debug, B: Debug>(is: A, wanted: B, what: &str) {
    assert!(is == wanted, "{what}: {is:?}, not {wanted:?}");
}

fn refused<T>(outcome: Result<T, IggyError>, what: &str) {
    assert!(outcome.is_err(), "{what} was not refused");
}
