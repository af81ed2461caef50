//! What SDK 0.10 calls otherwise than 0.9, and what only it has.

use crate::{consumer, equal, messages, name, ok, payloads, stream, Outcome, Program};
use futures_util::StreamExt;
use iggy::prelude::*;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

pub async fn rename_stream(client: &IggyClient, stream: &Identifier, name: &str) -> Result<(), IggyError> {
    let options = StreamUpdateOptions { name: Some(name.into()), ..Default::default() };
    client.update_stream(stream, &options).await
}

pub async fn create_topic(
    client: &IggyClient,
    stream: &Identifier,
    name: &str,
    partition_count: u32,
) -> Result<TopicDetails, IggyError> {
    let options = TopicCreateOptions { partitions_count: Some(partition_count), ..Default::default() };
    client.create_topic(stream, name, &options).await
}

pub async fn update_topic(
    client: &IggyClient,
    stream: &Identifier,
    topic: &Identifier,
    name: &str,
    expiry: IggyExpiry,
) -> Result<(), IggyError> {
    let options =
        TopicUpdateOptions { name: Some(name.into()), message_expiry: Some(expiry), ..Default::default() };
    client.update_topic(stream, topic, &options).await
}

pub async fn rename_user(client: &IggyClient, user: &str, name: &str) -> Result<(), IggyError> {
    let options = UserUpdateOptions { username: Some(name.into()), ..Default::default() };
    client.update_user(&Identifier::named(user)?, &options).await
}

pub async fn create_stream(client: &IggyClient, name: &str) -> Result<StreamDetails, IggyError> {
    client.create_stream(name, &StreamCreateOptions::default()).await
}

pub async fn create_user(client: &IggyClient, name: &str, password: &str) -> Result<UserInfoDetails, IggyError> {
    client.create_user(name, password, UserStatus::Active, None, &UserCreateOptions::default()).await
}

pub fn expiry(topic: &TopicDetails) -> IggyExpiry {
    topic.resolved_options().message_expiry
}

/// There is no such request any more.
pub async fn flush(_client: &IggyClient, _stream: &Identifier, _topic: &Identifier) -> Result<(), IggyError> {
    Ok(())
}

#[allow(clippy::too_many_arguments)]
pub async fn poll(
    client: &IggyClient,
    stream: &Identifier,
    topic: &Identifier,
    partition: u32,
    consumer: &Consumer,
    strategy: &PollingStrategy,
    count: u32,
    commit: bool,
) -> Result<PolledMessages, IggyError> {
    let commit = if commit { CommitPolicy::OnRead } else { CommitPolicy::Manual };
    let options = PollOptions { count, commit, ..Default::default() };
    client.poll_messages(stream, topic, partition, consumer, strategy, options).await
}

/// All that a member of a group is given: it names the partition of each poll.
pub async fn poll_group(
    client: &IggyClient,
    stream: &Identifier,
    topic: &Identifier,
    group: &Consumer,
    partition_count: u32,
) -> Result<usize, IggyError> {
    let mut total = 0;
    for partition in 0..partition_count {
        let next = PollingStrategy::next();
        total += poll(client, stream, topic, partition, group, &next, 10, true).await?.messages.len();
    }
    Ok(total)
}

pub async fn last_checks(program: &Program, client: &IggyClient) -> Outcome {
    if !program.has_connections() {
        return Ok(());
    }
    create_topic(client, &stream(), "waits", 4).await?;
    waits(client).await?;
    consumer_of_all_partitions(client).await?;
    member_that_commits_on_the_server(client).await?;
    #[cfg(feature = "idempotence")]
    idempotent_producer(client).await?;
    if program.transport == "tcp" {
        reconnects(program).await?;
    }
    client.delete_topic(&stream(), &name("waits")).await
}

/// A poll waits, and other requests of the same connection are answered meanwhile.
async fn waits(client: &IggyClient) -> Outcome {
    let (stream, topic, consumer) = (stream(), name("waits"), consumer());
    let options = PollOptions::wait(IggyDuration::from(LONG));
    let first = PollingStrategy::offset(0);
    let polls = [0, 1].map(|partition| {
        client.poll_messages(&stream, &topic, partition, &consumer, &first, options)
    });
    let sends = async {
        for round in 0..10 {
            let began = Instant::now();
            send_to(client, 2, "elsewhere").await?;
            assert!(began.elapsed() < PATIENCE, "send {round} waited for a poll");
        }
        send_to(client, 1, "at last").await?;
        send_to(client, 0, "and here").await
    };
    let [one, other] = polls;
    let (one, other, sent) = within(async { Ok(tokio::join!(one, other, sends)) }).await?;
    sent?;
    equal(payloads(&one?), ["and here"], "the first poll");
    equal(payloads(&other?), ["at last"], "the second poll");
    // One that is given up leaves nothing behind.
    let given_up = client.poll_messages(&stream, &topic, 3, &consumer, &first, options);
    assert!(timeout(Duration::from_millis(50), given_up).await.is_err(), "there was nothing to read");
    send_to(client, 3, "for the next").await?;
    let polled = within(client.poll_messages(&stream, &topic, 3, &consumer, &first, options)).await?;
    equal(payloads(&polled), ["for the next"], "a poll after one that was given up");
    ok("waits");
    Ok(())
}

async fn consumer_of_all_partitions(client: &IggyClient) -> Outcome {
    let mut reader = client
        .consumer("reader", "rust", "waits")?
        .partitions(0..4)
        .poll_options(PollOptions::wait(IggyDuration::from(LONG)))
        .polling_strategy(PollingStrategy::offset(0))
        .build();
    reader.init().await?;
    let mut counts = [0; 4];
    for _ in 0..13 {
        counts[next(&mut reader).await?.partition_id as usize] += 1;
    }
    equal(counts, [1, 1, 10, 1], "messages by partition");
    for partition in 0..4 {
        send_to(client, partition, "more").await?;
        let received = next(&mut reader).await?;
        equal(received.partition_id, partition, "the partition of the next message");
        reader.commit(received.checkpoint()).await?;
    }
    reader.shutdown().await?;
    ok("consumer of all partitions");
    Ok(())
}

async fn member_that_commits_on_the_server(client: &IggyClient) -> Outcome {
    let options = PollOptions { commit: CommitPolicy::OnRead, ..PollOptions::wait(IggyDuration::from(LONG)) };
    for expected in [17, 4] {
        let mut member = client
            .consumer_group("members", "rust", "waits")?
            .create_consumer_group_if_not_exists()
            .poll_options(options)
            .polling_strategy(PollingStrategy::next())
            .build();
        member.init().await?;
        if expected == 4 {
            for partition in 0..4 {
                send_to(client, partition, "after the commits").await?;
            }
        }
        for _ in 0..expected {
            let text = next(&mut member).await?.message.payload;
            equal(&text[..] == b"after the commits", expected == 4, "whether it comes after the commits");
        }
        member.shutdown().await?;
    }
    ok("member that commits on the server");
    Ok(())
}

#[cfg(feature = "idempotence")]
async fn idempotent_producer(client: &IggyClient) -> Outcome {
    create_topic(client, &stream(), "once", 2).await?;
    let producer = client.producer("rust", "once")?.idempotent().build();
    producer.init().await?;
    for number in 0..20 {
        producer.send(messages(&[format!("{number}").as_str()])).await?;
    }
    producer.shutdown().await;
    let mut found = Vec::new();
    for partition in 0..2 {
        let first = PollingStrategy::first();
        let polled = poll(client, &stream(), &name("once"), partition, &consumer(), &first, 100, false).await?;
        found.extend(payloads(&polled).iter().map(|text| text.parse::<u32>().unwrap()));
    }
    found.sort_unstable();
    equal(found, (0..20).collect::<Vec<u32>>(), "messages of the idempotent producer");
    client.delete_topic(&stream(), &name("once")).await?;
    ok("idempotent producer");
    Ok(())
}

/// A connection is lost while a read waits. The client connects and logs in again, and the reader goes on.
async fn reconnects(program: &Program) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let links = Arc::new(Mutex::new(Vec::new()));
    let (server, opened) = (program.address.clone(), links.clone());
    let proxy = tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(&server).await.unwrap();
            let link = tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            opened.lock().unwrap().push(link.abort_handle());
        }
    });
    let client = IggyClient::from_connection_string(&format!("iggy+tcp://iggy:iggy@{address}"))?;
    client.connect().await?;
    let mut reader = client
        .consumer("reconnecting", "rust", "waits")?
        .partitions(0..4)
        .poll_options(PollOptions::wait(IggyDuration::from(LONG)))
        .polling_strategy(PollingStrategy::offset(0))
        .build();
    reader.init().await?;
    send_to(&client, 3, "before").await?;
    while next(&mut reader).await?.message.payload != "before" {}
    for link in links.lock().unwrap().drain(..) {
        link.abort();
    }
    within(async {
        while send_to(&client, 3, "after").await.is_err() {}
        Ok(())
    })
    .await?;
    while next(&mut reader).await?.message.payload != "after" {}
    reader.shutdown().await?;
    client.shutdown().await?;
    proxy.abort();
    ok("reconnects");
    Ok(())
}

async fn send_to(client: &IggyClient, partition: u32, text: &str) -> Outcome {
    let partitioning = Partitioning::partition_id(partition);
    client.send_messages(&stream(), &name("waits"), &partitioning, &mut messages(&[text])).await?;
    Ok(())
}

async fn next(reader: &mut IggyConsumer) -> Result<ReceivedMessage, IggyError> {
    within(async { Ok(reader.next().await.expect("the stream never ends").expect("a read")) }).await
}

async fn within<T>(work: impl std::future::Future<Output = Result<T, IggyError>>) -> Result<T, IggyError> {
    timeout(PATIENCE, work).await.expect("it takes too long")
}
