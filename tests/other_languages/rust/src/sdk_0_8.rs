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
