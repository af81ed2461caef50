//! What SDK 0.10 calls otherwise than 0.9, and what only it has.

use futures_util::StreamExt;
use iggy::prelude::*;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

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

/// A consumer that fetches from all partitions at once, and a producer whose messages are numbered.
pub async fn last_checks(client: &IggyClient, transport: &str) -> Result<(), IggyError> {
    if transport == "http" {
        return Ok(());
    }
    let next = PollingStrategy::next();
    let mut consumer = client.consumer_group("readers", "rust", "orders")?.polling_strategy(next).build();
    consumer.init().await?;
    let mut found = given(&mut consumer, 6).await;
    found.sort();
    crate::equal(found, ["balanced", "keyed 1", "keyed 2", "one", "three", "two"], "messages of all partitions");

    let last = Partitioning::partition_id(2);
    let producer = client.producer("rust", "orders")?.idempotent().partitioning(last).build();
    producer.init().await?;
    for number in 0..3 {
        let sent = producer.send(crate::messages(&[&format!("numbered {number}")])).await;
        assert!(sent.is_ok(), "a numbered send: {:?}", sent.err());
    }
    crate::equal(given(&mut consumer, 3).await, ["numbered 0", "numbered 1", "numbered 2"], "numbered messages");
    consumer.shutdown().await?;
    crate::ok("fetches and numbered messages");
    Ok(())
}

async fn given(consumer: &mut IggyConsumer, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let next = tokio::time::timeout(PATIENCE, consumer.next()).await.expect("a message in time");
        let received = next.expect("a message").expect("no failure");
        found.push(String::from_utf8_lossy(&received.message.payload).into_owned());
    }
    found
}
