//! What SDK 0.9 calls otherwise than 0.8.

use iggy::prelude::*;

pub async fn rename_stream(client: &IggyClient, stream: &Identifier, name: &str) -> Result<(), IggyError> {
    client.update_stream(stream, name, &StreamUpdateOptions::default()).await
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
    let options = TopicUpdateOptions { message_expiry: Some(expiry), ..Default::default() };
    client.update_topic(stream, topic, name, &options).await
}

pub async fn rename_user(client: &IggyClient, user: &str, name: &str) -> Result<(), IggyError> {
    client.update_user(&Identifier::named(user)?, Some(name), None, &UserUpdateOptions::default()).await
}
