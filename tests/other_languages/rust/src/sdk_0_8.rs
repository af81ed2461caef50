//! What SDK 0.8 calls otherwise than 0.9.

use iggy::prelude::*;

pub async fn rename_stream(client: &IggyClient, stream: &Identifier, name: &str) -> Result<(), IggyError> {
    client.update_stream(stream, name).await
}

pub async fn create_topic(
    client: &IggyClient,
    stream: &Identifier,
    name: &str,
    partition_count: u32,
) -> Result<TopicDetails, IggyError> {
    let (expiry, size) = (IggyExpiry::NeverExpire, MaxTopicSize::ServerDefault);
    client.create_topic(stream, name, partition_count, CompressionAlgorithm::None, None, expiry, size).await
}

pub async fn update_topic(
    client: &IggyClient,
    stream: &Identifier,
    topic: &Identifier,
    name: &str,
    expiry: IggyExpiry,
) -> Result<(), IggyError> {
    let size = MaxTopicSize::ServerDefault;
    client.update_topic(stream, topic, name, CompressionAlgorithm::None, None, expiry, size).await
}

pub async fn rename_user(client: &IggyClient, user: &str, name: &str) -> Result<(), IggyError> {
    client.update_user(&Identifier::named(user)?, Some(name), None).await
}

pub async fn create_stream(client: &IggyClient, name: &str) -> Result<StreamDetails, IggyError> {
    client.create_stream(name).await
}

pub async fn create_user(client: &IggyClient, name: &str, password: &str) -> Result<UserInfoDetails, IggyError> {
    client.create_user(name, password, UserStatus::Active, None).await
}

pub fn expiry(topic: &TopicDetails) -> IggyExpiry {
    topic.message_expiry
}

pub async fn flush(client: &IggyClient, stream: &Identifier, topic: &Identifier) -> Result<(), IggyError> {
    client.flush_unsaved_buffer(stream, topic, 0, true).await
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
    client.poll_messages(stream, topic, Some(partition), consumer, strategy, count, commit).await
}

/// All that a member of a group is given; the server chooses the partition of each poll.
pub async fn poll_group(
    client: &IggyClient,
    stream: &Identifier,
    topic: &Identifier,
    group: &Consumer,
    partition_count: u32,
) -> Result<usize, IggyError> {
    let (next, mut total) = (PollingStrategy::next(), 0);
    for _ in 0..2 * partition_count {
        total += client.poll_messages(stream, topic, None, group, &next, 10, true).await?.messages.len();
    }
    Ok(total)
}

pub async fn last_checks(_: &crate::Program, client: &IggyClient) -> Result<(), IggyError> {
    let (stream, topic) = (crate::stream(), crate::topic());
    client.purge_topic(&stream, &topic).await?;
    crate::equal(client.get_topic(&stream, &topic).await?.unwrap().messages_count, 0, "messages after the purge");
    crate::send(client, Partitioning::partition_id(0), &["after the purge"]).await?;
    let found = crate::poll(client, PollingStrategy::first(), 0, 9, false).await?;
    crate::equal(crate::payloads(&found), ["after the purge"], "first");
    client.purge_stream(&stream).await?;
    let left = client.get_stream(&stream).await?.unwrap().messages_count;
    crate::equal(left, 0, "messages after the purge of the stream");
    client.delete_segments(&stream, &topic, 0, 1).await?;
    crate::ok("purges");
    Ok(())
}
