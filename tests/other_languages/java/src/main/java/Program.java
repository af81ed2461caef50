import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.iggy.client.blocking.IggyBaseClient;
import org.apache.iggy.client.blocking.http.IggyHttpClient;
import org.apache.iggy.client.blocking.tcp.IggyTcpClient;
import org.apache.iggy.consumergroup.Consumer;
import org.apache.iggy.identifier.ConsumerId;
import org.apache.iggy.identifier.StreamId;
import org.apache.iggy.identifier.TopicId;
import org.apache.iggy.identifier.UserId;
import org.apache.iggy.message.HeaderKey;
import org.apache.iggy.message.HeaderKind;
import org.apache.iggy.message.HeaderValue;
import org.apache.iggy.message.Message;
import org.apache.iggy.message.MessageHeader;
import org.apache.iggy.message.MessageId;
import org.apache.iggy.message.Partitioning;
import org.apache.iggy.message.PolledMessages;
import org.apache.iggy.message.PollingStrategy;
import org.apache.iggy.topic.CompressionAlgorithm;
import org.apache.iggy.user.GlobalPermissions;
import org.apache.iggy.user.Permissions;
import org.apache.iggy.user.StreamPermissions;
import org.apache.iggy.user.TopicPermissions;
import org.apache.iggy.user.UserStatus;

/**
 * Everything a Java program does with Apache Iggy, done with Courser. Usage: program ADDRESS TRANSPORT
 *
 * <p>Prints one line per check, "ok" and its name, and ends at the first thing that is not as it should be. The test
 * that starts it has put messages of the Python SDK into partition 0 of exchange/messages, and reads partition 1 then.
 */
public final class Program {
    private static final String ROOT = "iggy";
    private static final String ROOT_PASSWORD = "iggy";
    private static final StreamId STREAM = StreamId.of("java");
    private static final TopicId TOPIC = TopicId.of("orders");
    private static final StreamId EXCHANGE = StreamId.of("exchange");
    private static final TopicId MESSAGES = TopicId.of("messages");
    private static final Consumer CONSUMER = Consumer.of(ConsumerId.of("java"));
    private static final ConsumerId WORKERS = ConsumerId.of("workers");
    private static final BigInteger HOUR = BigInteger.valueOf(3_600_000_000L);

    private final String host;
    private final int port;

    private final boolean isHttp;

    private Program(String address, String transport) {
        var parts = address.split(":");
        host = parts[0];
        port = Integer.parseInt(parts[1]);
        isHttp = transport.equals("http");
    }

    public static void main(String[] arguments) {
        try {
            new Program(arguments[0], arguments[1]).run();
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void run() {
        readsOnANewConnection();
        var root = login(ROOT, ROOT_PASSWORD);
        wrongPassword();
        system(root);
        streamsAndTopics(root);
        partitions(root);
        missing(root);
        sending(root);
        polling(root);
        offsets(root);
        if (!isHttp) {
            // Over HTTP each request stands alone: nobody is a member of a group, and there is no "me".
            groups(root);
        }
        users(root);
        permissions(root);
        tokens(root);
        writesForPython(root);
        deletes(root);
        root.users().logout();
        ok("logout");
    }

    /** A consumer that does nothing but poll says less about itself than any other client. */
    private void readsOnANewConnection() {
        var reader = login(ROOT, ROOT_PASSWORD);
        var polled = reader.messages()
                .pollMessages(EXCHANGE, MESSAGES, Optional.of(0L), CONSUMER, PollingStrategy.first(), 10L, false);
        equal(payloads(polled), List.of("plain", "with a header", "with two"), "messages of the Python SDK");
        equal(polled.messages().get(0).header().id().toBigInteger(), BigInteger.valueOf(7), "id");
        equal(headers(polled.messages().get(1)), Map.of("key", "value"), "headers");
        equal(headers(polled.messages().get(2)), Map.of("first", "ü", "second", "2"), "headers");
        close(reader);
        ok("reads on a new connection");
    }

    private void wrongPassword() {
        var stranger = connect();
        refused(() -> stranger.users().login(ROOT, "not the password"), "a wrong password");
        refused(() -> stranger.streams().getStreams(), "a request without a login");
        close(stranger);
        ok("wrong password");
    }

    private void system(IggyBaseClient client) {
        client.system().ping();
        var stats = client.system().getStats();
        equal(stats.streamsCount(), 1L, "streams in the statistics");
        expect(!stats.hostname().isEmpty(), "a host name in the statistics");
        if (!isHttp) {
            var me = client.system().getMe();
            equal(client.system().getClient(me.clientId()).address(), me.address(), "address of the client");
        }
        expect(client.system().getClients().size() >= 1, "clients");
        ok("system");
    }

    private void streamsAndTopics(IggyBaseClient client) {
        var made = client.streams().createStream("java-first");
        client.streams().updateStream(StreamId.of(made.id()), "java");
        equal(client.streams().getStream(STREAM).orElseThrow().id(), made.id(), "id of the renamed stream");
        equal(client.streams().getStreams().size(), 2, "streams");
        var topic = client.topics().createTopic(STREAM, 2L, CompressionAlgorithm.None, BigInteger.ZERO, BigInteger.ZERO,
                Optional.empty(), "first");
        equal(topic.partitionsCount(), 2L, "partitions");
        client.topics().updateTopic(STREAM, TopicId.of(topic.id()), CompressionAlgorithm.None, HOUR, BigInteger.ZERO,
                Optional.empty(), "orders");
        var read = client.topics().getTopic(STREAM, TOPIC).orElseThrow();
        equal(read.id(), topic.id(), "id of the renamed topic");
        equal(read.messageExpiry(), HOUR, "expiry");
        equal(client.topics().getTopics(STREAM).size(), 1, "topics");
        ok("streams and topics");
    }

    private void partitions(IggyBaseClient client) {
        client.partitions().createPartitions(STREAM, TOPIC, 2L);
        equal(client.topics().getTopic(STREAM, TOPIC).orElseThrow().partitions().size(), 4, "partitions after two more");
        client.partitions().deletePartitions(STREAM, TOPIC, 1L);
        equal(client.topics().getTopic(STREAM, TOPIC).orElseThrow().partitions().size(), 3, "partitions after one less");
        ok("partitions");
    }

    private void missing(IggyBaseClient client) {
        var nowhere = StreamId.of("nowhere");
        equal(client.streams().getStream(nowhere).isPresent(), false, "a stream that is not there");
        equal(client.topics().getTopic(STREAM, TopicId.of("nowhere")).isPresent(), false, "a topic that is not there");
        refused(() -> client.streams().deleteStream(nowhere), "deleting a stream that is not there");
        refused(() -> client.messages().sendMessages(nowhere, TOPIC, Partitioning.balanced(), messages("lost")), "a send");
        refused(() -> poll(client, PollingStrategy.first(), 99, 1, false), "a poll of a partition that is not there");
        refused(() -> client.streams().createStream("java"), "a name that is taken");
        client.system().ping();
        ok("missing");
    }

    private void sending(IggyBaseClient client) {
        client.messages().sendMessages(STREAM, TOPIC, Partitioning.partitionId(0L), messages("one", "two", "three"));
        client.messages().sendMessages(STREAM, TOPIC, Partitioning.balanced(), messages("balanced"));
        client.messages().sendMessages(STREAM, TOPIC, Partitioning.messagesKey("customer-7"), messages("keyed 1"));
        client.messages().sendMessages(STREAM, TOPIC, Partitioning.messagesKey("customer-7"), messages("keyed 2"));
        equal(client.topics().getTopic(STREAM, TOPIC).orElseThrow().messagesCount(), BigInteger.valueOf(6), "messages");
        int together = 0;
        for (int partition = 0; partition < 3; partition++) {
            var found = payloads(poll(client, PollingStrategy.first(), partition, 10, false));
            together += found.containsAll(List.of("keyed 1", "keyed 2")) ? 1 : 0;
        }
        equal(together, 1, "partitions with both messages of the key");
        ok("sending");
    }

    private void polling(IggyBaseClient client) {
        var first = poll(client, PollingStrategy.first(), 0, 2, false);
        equal(payloads(first), List.of("one", "two"), "first");
        equal(payloads(poll(client, PollingStrategy.offset(BigInteger.ONE), 0, 1, false)), List.of("two"), "offset 1");
        var count = client.topics().getTopic(STREAM, TOPIC).orElseThrow().partitions().get(0).messagesCount();
        var last = poll(client, PollingStrategy.last(), 0, 1, false).messages().get(0).header();
        equal(last.offset(), count.subtract(BigInteger.ONE), "last");
        var since = PollingStrategy.timestamp(first.messages().get(0).header().timestamp());
        equal(poll(client, since, 0, 100, false).messages().size(), count.intValue(), "since the first");
        equal(payloads(poll(client, PollingStrategy.next(), 0, 2, true)), List.of("one", "two"), "next");
        equal(payloads(poll(client, PollingStrategy.next(), 0, 1, true)), List.of("three"), "next again");
        ok("polling");
    }

    private void offsets(IggyBaseClient client) {
        equal(stored(client), BigInteger.TWO, "automatic commit");
        client.consumerOffsets().storeConsumerOffset(STREAM, TOPIC, Optional.of(0L), CONSUMER, BigInteger.ZERO);
        equal(stored(client), BigInteger.ZERO, "stored offset");
        equal(payloads(poll(client, PollingStrategy.next(), 0, 1, false)), List.of("two"), "next");
        ok("offsets");
    }

    private void groups(IggyBaseClient client) {
        var made = client.consumerGroups().createConsumerGroup(STREAM, TOPIC, "workers");
        equal(made.partitionsCount(), 3L, "partitions of the group");
        client.consumerGroups().joinConsumerGroup(STREAM, TOPIC, WORKERS);
        var joined = client.consumerGroups().getConsumerGroup(STREAM, TOPIC, WORKERS).orElseThrow();
        equal(joined.membersCount(), 1L, "members");
        equal(joined.members().get(0).partitions().size(), 3, "partitions of the member");
        equal(client.consumerGroups().getConsumerGroups(STREAM, TOPIC).size(), 1, "groups");
        int total = 0;
        for (int turn = 0; turn < 6; turn++) {
            total += client.messages()
                    .pollMessages(STREAM, TOPIC, Optional.empty(), Consumer.group(WORKERS), PollingStrategy.next(), 10L, true)
                    .messages()
                    .size();
        }
        equal(total, 6, "messages of the group");
        client.consumerGroups().leaveConsumerGroup(STREAM, TOPIC, WORKERS);
        var left = client.consumerGroups().getConsumerGroup(STREAM, TOPIC, WORKERS).orElseThrow();
        equal(left.membersCount(), 0L, "members after the leave");
        client.consumerGroups().deleteConsumerGroup(STREAM, TOPIC, WORKERS);
        equal(client.consumerGroups().getConsumerGroups(STREAM, TOPIC).size(), 0, "groups after the deletion");
        ok("groups");
    }

    private void users(IggyBaseClient client) {
        var made = client.users().createUser("reader", "a password", UserStatus.Active, Optional.empty());
        equal(client.users().getUser(UserId.of("reader")).orElseThrow().id(), made.id(), "id of the user");
        equal(client.users().getUsers().size(), 2, "users");
        client.users().updateUser(UserId.of("reader"), Optional.of("duke"), Optional.empty());
        client.users().changePassword(UserId.of("duke"), "a password", "another one");
        var user = login("duke", "another one");
        refused(() -> user.streams().getStreams(), "a user without permissions");
        close(user);
        ok("users");
    }

    private void permissions(IggyBaseClient client) {
        var stream = client.streams().getStream(STREAM).orElseThrow().id();
        var topic = client.topics().getTopic(STREAM, TOPIC).orElseThrow().id();
        var none = new GlobalPermissions(false, false, false, false, false, false, false, false, false, false);
        var topics = Map.of(topic, new TopicPermissions(false, true, true, false));
        var streams = Map.of(stream, new StreamPermissions(false, false, false, false, false, false, topics));
        client.users().updatePermissions(UserId.of("duke"), Optional.of(new Permissions(none, streams)));
        var read = client.users().getUser(UserId.of("duke")).orElseThrow().permissions().orElseThrow();
        expect(read.streams().get(stream).topics().get(topic).pollMessages(), "permission to poll");
        expect(!read.global().readStreams(), "no permission for all streams");
        var user = login("duke", "another one");
        equal(payloads(poll(user, PollingStrategy.first(), 0, 1, false)), List.of("one"), "message of the user");
        refused(() -> user.messages().sendMessages(STREAM, TOPIC, Partitioning.balanced(), messages("no")), "a send");
        close(user);
        client.users().deleteUser(UserId.of("duke"));
        equal(client.users().getUsers().size(), 1, "users after the deletion");
        ok("permissions");
    }

    private void tokens(IggyBaseClient client) {
        var raw = client.personalAccessTokens().createPersonalAccessToken("for-java", HOUR);
        equal(client.personalAccessTokens().getPersonalAccessTokens().get(0).name(), "for-java", "name of the token");
        var bearer = connect();
        bearer.personalAccessTokens().loginWithPersonalAccessToken(raw.token());
        equal(payloads(poll(bearer, PollingStrategy.first(), 0, 1, false)), List.of("one"), "message by token");
        close(bearer);
        client.personalAccessTokens().deletePersonalAccessToken("for-java");
        var stranger = connect();
        refused(() -> stranger.personalAccessTokens().loginWithPersonalAccessToken(raw.token()), "a deleted token");
        close(stranger);
        ok("tokens");
    }

    private void writesForPython(IggyBaseClient client) {
        var headers = new LinkedHashMap<HeaderKey, HeaderValue>();
        headers.put(HeaderKey.fromString("key"), HeaderValue.fromString("value"));
        headers.put(HeaderKey.fromString("count"), HeaderValue.fromUint32(42));
        var sent = List.of(numbered(7, "plain"), Message.of("with headers", headers), Message.of("x".repeat(1_000_000)));
        client.messages().sendMessages(EXCHANGE, MESSAGES, Partitioning.partitionId(1L), sent);
        ok("writes for Python");
    }

    private void deletes(IggyBaseClient client) {
        client.topics().deleteTopic(STREAM, TOPIC);
        equal(client.topics().getTopics(STREAM).size(), 0, "topics after the deletion");
        client.streams().deleteStream(STREAM);
        equal(client.streams().getStreams().size(), 1, "streams after the deletion");
        ok("deletes");
    }

    // --- the means ---------------------------------------------------------------------------------------

    private IggyBaseClient connect() {
        if (isHttp) {
            return new IggyHttpClient("http://" + host + ":" + port);
        }
        var client = new IggyTcpClient(host, port);
        client.connect();
        return client;
    }

    private static void close(IggyBaseClient client) {
        try {
            ((Closeable) client).close();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private IggyBaseClient login(String name, String password) {
        var client = connect();
        client.users().login(name, password);
        return client;
    }

    private static PolledMessages poll(
            IggyBaseClient client, PollingStrategy strategy, long partition, long count, boolean commit) {
        return client.messages().pollMessages(STREAM, TOPIC, Optional.of(partition), CONSUMER, strategy, count, commit);
    }

    private static BigInteger stored(IggyBaseClient client) {
        var found = client.consumerOffsets().getConsumerOffset(STREAM, TOPIC, Optional.of(0L), CONSUMER);
        return found.orElseThrow().storedOffset();
    }

    private static List<Message> messages(String... texts) {
        return List.of(texts).stream().map(Message::of).toList();
    }

    private static Message numbered(long id, String text) {
        var payload = text.getBytes(StandardCharsets.UTF_8);
        var zero = BigInteger.ZERO;
        var header = new MessageHeader(
                zero, MessageId.from(BigInteger.valueOf(id)), zero, zero, zero, 0L, (long) payload.length, zero);
        return new Message(header, payload, Map.of());
    }

    private static List<String> payloads(PolledMessages polled) {
        return polled.messages().stream().map(message -> text(message.payload())).toList();
    }

    private static Map<String, String> headers(Message message) {
        return message.userHeaders().entrySet().stream()
                .peek(entry -> equal(entry.getValue().kind(), HeaderKind.String, "kind of a header"))
                .collect(Collectors.toMap(
                        entry -> text(entry.getKey().value()), entry -> entry.getValue().asString(), (a, b) -> a, TreeMap::new));
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void ok(String check) {
        System.out.println("ok " + check);
    }

    private static void equal(Object is, Object wanted, String what) {
        expect(Objects.equals(is, wanted), what + ": " + is + ", not " + wanted);
    }

    private static void refused(Runnable act, String what) {
        try {
            act.run();
        } catch (RuntimeException refusal) {
            return;
        }
        throw new AssertionError(what + " was not refused");
    }

    private static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
