// Everything a Node.js program does with Apache Iggy, done with Courser. Usage: node program.js ADDRESS
//
// Prints one line per check, "ok" and its name, and ends at the first thing that is not as it should be. The test
// that starts it has put messages of the Python SDK into partition 0 of exchange/messages, and reads partition 1 then.

import assert from "node:assert/strict";
import { Consumer, HeaderKeyFactory, HeaderValue, Partitioning, PollingStrategy, SingleClient } from "apache-iggy";

const [host, port] = process.argv[2].split(":");
const ROOT = { username: "iggy", password: "iggy" };
const HOUR = 3_600_000_000n; // microseconds
const STREAM = { streamId: "node" };
const TOPIC = { ...STREAM, topicId: "orders" };
const EXCHANGE = { streamId: "exchange", topicId: "messages" };
const CONSUMER = { kind: 1, id: "node" };

const client = (credentials) =>
  new SingleClient({ transport: "TCP", options: { host, port: Number(port) }, credentials });
const messages = (...texts) => texts.map((payload) => ({ payload }));
const payloads = (polled) => polled.messages.map((message) => message.payload.toString());
const poll = (c, pollingStrategy, count, options = {}) =>
  c.message.poll({ ...TOPIC, consumer: CONSUMER, partitionId: 0, pollingStrategy, count, autocommit: false, ...options });
const stored = async (c) => (await c.offset.get({ ...TOPIC, consumer: CONSUMER, partitionId: 0 }))?.storedOffset;
const refused = (promise, what) => assert.rejects(promise, undefined, `${what} was not refused`);
const headersOf = (message) => Object.fromEntries(message.userHeaders.map(({ key, value }) => [key.value, value.value]));

const checks = {
  // A consumer that does nothing but poll says less about itself than any other client.
  async "reads on a new connection"() {
    const reader = client(ROOT);
    const polled = await poll(reader, PollingStrategy.First, 10, EXCHANGE);
    assert.deepEqual(payloads(polled), ["plain", "with a header", "with two"]);
    assert.equal(polled.messages[0].headers.id, 7n);
    assert.deepEqual(headersOf(polled.messages[1]), { key: "value" });
    assert.deepEqual(headersOf(polled.messages[2]), { first: "ü", second: "2" });
  },

  async "wrong password"() {
    await refused(client({ ...ROOT, password: "not the password" }).stream.list(), "a wrong password");
  },

  async system(c) {
    assert.ok(await c.system.ping());
    const stats = await c.system.getStats();
    assert.equal(stats.streamsCount, 1);
    assert.notEqual(stats.hostname, "");
    const me = await c.client.getMe();
    assert.equal((await c.client.get({ clientId: me.clientId })).address, me.address);
    assert.ok((await c.client.list()).some((other) => other.clientId === me.clientId));
    assert.equal((await c.cluster.getClusterMetadata()).nodes.length, 1);
  },

  async "streams and topics"(c) {
    const made = await c.stream.create({ name: "node-first" });
    await c.stream.update({ streamId: made.id, name: "node" });
    assert.equal((await c.stream.get(STREAM)).id, made.id);
    assert.equal((await c.stream.list()).length, 2);
    const topic = await c.topic.create({ ...STREAM, name: "first", partitionCount: 2, compressionAlgorithm: 1 });
    assert.equal(topic.partitionsCount, 2);
    await c.topic.update({ ...STREAM, topicId: topic.id, name: "orders", messageExpiry: HOUR });
    // Not the expiry: the SDK looks for it one byte too far on.
    assert.equal((await c.topic.get(TOPIC)).id, topic.id);
    assert.equal((await c.topic.list(STREAM)).length, 1);
  },

  async partitions(c) {
    await c.partition.create({ ...TOPIC, partitionCount: 2 });
    assert.equal((await c.topic.get(TOPIC)).partitions.length, 4);
    await c.partition.delete({ ...TOPIC, partitionCount: 1 });
    assert.equal((await c.topic.get(TOPIC)).partitions.length, 3);
  },

  async missing(c) {
    assert.equal(await c.stream.get({ streamId: "nowhere" }), null);
    assert.equal(await c.topic.get({ ...STREAM, topicId: "nowhere" }), null);
    await refused(c.stream.delete({ streamId: "nowhere" }), "deleting a stream that is not there");
    await refused(c.message.send({ ...TOPIC, streamId: "nowhere", messages: messages("lost") }), "a send to nowhere");
    await refused(poll(c, PollingStrategy.First, 1, { partitionId: 99 }), "a poll of a partition that is not there");
    await refused(c.stream.create({ name: "node" }), "a name that is taken");
    assert.ok(await c.system.ping());
  },

  async sending(c) {
    const first = Partitioning.PartitionId(0);
    const key = Partitioning.MessageKey("customer-7");
    await c.message.send({ ...TOPIC, messages: messages("one", "two", "three"), partition: first });
    await c.message.send({ ...TOPIC, messages: messages("balanced"), partition: Partitioning.Balanced });
    await c.message.send({ ...TOPIC, messages: messages("keyed 1"), partition: key });
    await c.message.send({ ...TOPIC, messages: messages("keyed 2"), partition: key });
    assert.equal((await c.topic.get(TOPIC)).messagesCount, 6n);
    const found = await Promise.all([0, 1, 2].map((partitionId) => poll(c, PollingStrategy.First, 10, { partitionId })));
    assert.equal(found.filter((polled) => payloads(polled).join(" ").includes("keyed 1 keyed 2")).length, 1);
    await c.message.flushUnsavedBuffers({ ...TOPIC, partitionId: 0, fsync: true });
  },

  async polling(c) {
    const first = await poll(c, PollingStrategy.First, 2);
    assert.deepEqual(payloads(first), ["one", "two"]);
    assert.deepEqual(payloads(await poll(c, PollingStrategy.Offset(1n), 1)), ["two"]);
    const count = (await c.topic.get(TOPIC)).partitions[0].messagesCount;
    const last = (await poll(c, PollingStrategy.Last, 1)).messages[0];
    assert.equal(last.headers.offset, count - 1n);
    // The SDK tells times as dates: milliseconds, rounded down.
    const since = BigInt(first.messages[0].headers.timestamp.getTime()) * 1000n;
    assert.equal(BigInt((await poll(c, PollingStrategy.Timestamp(since), 100)).count), count);
    assert.deepEqual(payloads(await poll(c, PollingStrategy.Next, 2, { autocommit: true })), ["one", "two"]);
    assert.deepEqual(payloads(await poll(c, PollingStrategy.Next, 1, { autocommit: true })), ["three"]);
  },

  async offsets(c) {
    assert.equal(await stored(c), 2n);
    await c.offset.store({ ...TOPIC, consumer: CONSUMER, partitionId: 0, offset: 0n });
    assert.equal(await stored(c), 0n);
    assert.deepEqual(payloads(await poll(c, PollingStrategy.Next, 1)), ["two"]);
    await c.offset.delete({ ...TOPIC, consumer: CONSUMER, partitionId: 0 });
    assert.equal(await stored(c), undefined);
  },

  async groups(c) {
    const group = { ...TOPIC, groupId: "workers" };
    assert.equal((await c.group.create({ ...TOPIC, name: "workers" })).partitionsCount, 3);
    await c.group.join(group);
    const joined = await c.group.get(group);
    assert.equal(joined.membersCount, 1);
    assert.equal((await c.group.list(TOPIC)).length, 1);
    let total = 0;
    const options = { consumer: Consumer.Group("workers"), partitionId: null, autocommit: true };
    for (let turn = 0; turn < 6; turn++) total += (await poll(c, PollingStrategy.Next, 10, options)).count;
    assert.equal(total, 6);
    await c.group.leave(group);
    assert.equal((await c.group.get(group)).membersCount, 0);
    await c.group.delete(group);
    assert.equal((await c.group.list(TOPIC)).length, 0);
  },

  async users(c) {
    const made = await c.user.create({ username: "reader", password: "a password", status: 1 });
    assert.equal((await c.user.get({ userId: "reader" })).id, made.id);
    assert.equal((await c.user.list()).length, 2);
    await c.user.update({ userId: "reader", username: "noddy" });
    await c.user.changePassword({ userId: made.id, currentPassword: "a password", newPassword: "another one" });
    const user = client({ username: "noddy", password: "another one" });
    await refused(user.stream.list(), "a user without permissions");
  },

  async permissions(c) {
    // For all streams: the SDK does not finish the list of permissions for single ones.
    const forbidden = ["ManageServers", "ReadServers", "ManageUsers", "ReadUsers", "ManageStreams", "ReadStreams",
      "ManageTopics", "ReadTopics", "SendMessages"];
    const global = { ...Object.fromEntries(forbidden.map((what) => [what, false])), PollMessages: true };
    const permissions = { global, streams: [] };
    await c.user.updatePermissions({ userId: "noddy", permissions });
    assert.deepEqual((await c.user.get({ userId: "noddy" })).permissions, permissions);
    const user = client({ username: "noddy", password: "another one" });
    assert.deepEqual(payloads(await poll(user, PollingStrategy.First, 1)), ["one"]);
    await refused(user.message.send({ ...TOPIC, messages: messages("no") }), "a send without permission");
    await c.user.delete({ userId: "noddy" });
    assert.equal((await c.user.list()).length, 1);
  },

  async tokens(c) {
    const { token } = await c.token.create({ name: "for-node", expiry: HOUR });
    assert.equal((await c.token.list())[0].name, "for-node");
    assert.deepEqual(payloads(await poll(client({ token }), PollingStrategy.First, 1)), ["one"]);
    await c.token.delete({ name: "for-node" });
    await refused(client({ token }).stream.list(), "a deleted token");
  },

  async "writes for Python"(c) {
    const headers = [
      { key: HeaderKeyFactory.String("key"), value: HeaderValue.String("value") },
      { key: HeaderKeyFactory.String("count"), value: HeaderValue.Uint32(42) },
    ];
    const sent = [{ id: 7, payload: "plain" }, { payload: "with headers", headers }, { payload: "x".repeat(1_000_000) }];
    await c.message.send({ ...EXCHANGE, messages: sent, partition: Partitioning.PartitionId(1) });
  },

  async purges(c) {
    await c.topic.purge(TOPIC);
    assert.equal((await c.topic.get(TOPIC)).messagesCount, 0n);
    await c.message.send({ ...TOPIC, messages: messages("after the purge"), partition: Partitioning.PartitionId(0) });
    assert.deepEqual(payloads(await poll(c, PollingStrategy.First, 9)), ["after the purge"]);
    await c.stream.purge(STREAM);
    assert.equal((await c.stream.get(STREAM)).messagesCount, 0n);
    await c.segment.delete({ ...TOPIC, partitionId: 0, segmentsCount: 1 });
  },

  async deletes(c) {
    await c.topic.delete(TOPIC);
    assert.equal((await c.topic.list(STREAM)).length, 0);
    await c.stream.delete(STREAM);
    assert.equal((await c.stream.list()).length, 1);
  },

  async logout(c) {
    await c.session.logout();
  },
};

let root;
for (const [name, check] of Object.entries(checks)) {
  // Not made earlier: a client of SDK 0.8 that is connected before its first command never sends it.
  if (check.length > 0) root ??= client(ROOT);
  await check(root);
  console.log("ok", name);
}
process.exit(0); // Clients that were refused try again for a minute.
