// Everything a Go program does with Apache Iggy, done with Courser. Usage: program ADDRESS
//
// Prints one line per check, "ok" and its name, and ends at the first thing that is not as it should be. The test
// that starts it has put messages of the Python SDK into partition 0 of exchange/messages, and reads partition 1 afterwards.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/apache/iggy/foreign/go/client"
	"github.com/apache/iggy/foreign/go/client/tcp"
	iggcon "github.com/apache/iggy/foreign/go/contracts"
)

const root, rootPassword = "iggy", "iggy"

var address string
var stream, topic = name("go"), name("orders")

func main() {
	log.SetOutput(io.Discard) // The SDK tells of every connection.
	address = os.Args[1]
	readsOnANewConnection()
	root := login(root, rootPassword)
	wrongPassword()
	system(root)
	streamsAndTopics(root)
	partitions(root)
	missing(root)
	sending(root)
	polling(root)
	offsets(root)
	groups(root)
	users(root)
	permissions(root)
	tokens(root)
	writesForPython(root)
	deletes(root)
	must(root.LogoutUser())
	ok("logout")
}

// A consumer that does nothing but poll says less about itself than any other client.
func readsOnANewConnection() {
	consumer := login(root, rootPassword)
	defer func() { must(consumer.Close()) }()
	polled := notAtFirst(func() *iggcon.PolledMessage {
		return got(consumer.PollMessages(name("exchange"), name("messages"), single("go-reader"),
			iggcon.FirstPollingStrategy(), 10, false, number(0)))
	})
	equal(len(polled.Messages), 3, "messages of the Python SDK")
	for index, expected := range []string{"plain", "with a header", "with two"} {
		equal(string(polled.Messages[index].Payload), expected, "payload")
		equal(polled.Messages[index].Header.Offset, uint64(index), "offset")
	}
	equal(polled.Messages[0].Header.Id[0], 7, "id")
	equal(headersOf(polled.Messages[1]), "key=value ", "headers")
	equal(headersOf(polled.Messages[2]), "first=ü second=2 ", "headers")
	ok("reads on a new connection")
}

// The first poll of a new connection may get nothing: its messages could have the headers of another release. See
// "Clients that do not say who they are" in docs/compatibility.md.
func notAtFirst(poll func() *iggcon.PolledMessage) *iggcon.PolledMessage {
	polled := poll()
	if len(polled.Messages) == 0 {
		polled = poll()
	}
	return polled
}

func wrongPassword() {
	stranger := connect()
	defer func() { must(stranger.Close()) }()
	_, err := stranger.LoginUser(root, "not the password")
	refused(err, "a wrong password")
	_, err = stranger.GetStreams()
	refused(err, "a request without a login")
	ok("wrong password")
}

func system(c iggcon.Client) {
	must(c.Ping())
	stats := got(c.GetStats())
	equal(stats.StreamsCount, 1, "streams in the statistics")
	expect(stats.Hostname != "", "a host name in the statistics")
	clients := got(c.GetClients())
	expect(len(clients) >= 1, "clients")
	one := got(c.GetClient(clients[0].ID))
	equal(one.Address, clients[0].Address, "address of the client")
	metadata := got(c.GetClusterMetadata())
	equal(len(metadata.Nodes), 1, "nodes")
	ok("system")
}

func streamsAndTopics(c iggcon.Client) {
	made := got(c.CreateStream("go-first"))
	must(c.UpdateStream(numbered(made.Id), "go"))
	equal(got(c.GetStream(stream)).Id, made.Id, "id of the renamed stream")
	equal(len(got(c.GetStreams())), 2, "streams")
	topicMade := got(c.CreateTopic(stream, "first", 2, iggcon.CompressionAlgorithmNone, iggcon.IggyExpiryNeverExpire, 0, nil))
	equal(topicMade.PartitionsCount, 2, "partitions")
	must(c.UpdateTopic(stream, numbered(topicMade.Id), "orders", iggcon.CompressionAlgorithmNone, iggcon.Hour, 0, nil))
	read := got(c.GetTopic(stream, topic))
	equal(read.Id, topicMade.Id, "id of the renamed topic")
	equal(read.MessageExpiry, iggcon.Hour, "expiry")
	equal(len(got(c.GetTopics(stream))), 1, "topics")
	ok("streams and topics")
}

func partitions(c iggcon.Client) {
	must(c.CreatePartitions(stream, topic, 2))
	equal(len(got(c.GetTopic(stream, topic)).Partitions), 4, "partitions after two more")
	must(c.DeletePartitions(stream, topic, 1))
	equal(len(got(c.GetTopic(stream, topic)).Partitions), 3, "partitions after one less")
	ok("partitions")
}

func missing(c iggcon.Client) {
	_, err := c.GetStream(name("nowhere"))
	refused(err, "a stream that is not there")
	_, err = c.GetTopic(stream, name("nowhere"))
	refused(err, "a topic that is not there")
	refused(c.DeleteStream(name("nowhere")), "deleting a stream that is not there")
	refused(c.SendMessages(name("nowhere"), topic, iggcon.None(), messages("lost")), "a send to nowhere")
	_, err = c.PollMessages(stream, topic, single("go"), iggcon.FirstPollingStrategy(), 1, false, number(99))
	refused(err, "a poll of a partition that is not there")
	_, err = c.CreateStream("go")
	refused(err, "a name that is taken")
	must(c.Ping())
	ok("missing")
}

func sending(c iggcon.Client) {
	must(c.SendMessages(stream, topic, iggcon.PartitionId(0), messages("one", "two", "three")))
	must(c.SendMessages(stream, topic, iggcon.None(), messages("balanced")))
	key := got(iggcon.EntityIdString("customer-7"))
	must(c.SendMessages(stream, topic, key, messages("keyed 1")))
	must(c.SendMessages(stream, topic, key, messages("keyed 2")))
	equal(got(c.GetTopic(stream, topic)).MessagesCount, 6, "messages")
	together := 0
	for partition := uint32(0); partition < 3; partition++ {
		polled := poll(c, iggcon.FirstPollingStrategy(), partition, 10, false)
		if bytes.Contains(bytes.Join(payloads(polled), nil), []byte("keyed 1keyed 2")) {
			together++
		}
	}
	equal(together, 1, "partitions with both messages of the key")
	ok("sending")
}

func polling(c iggcon.Client) {
	first := poll(c, iggcon.FirstPollingStrategy(), 0, 2, false)
	equal(string(bytes.Join(payloads(first), []byte(" "))), "one two", "first")
	equal(string(payloads(poll(c, iggcon.OffsetPollingStrategy(1), 0, 1, false))[0]), "two", "offset 1")
	count := uint32(got(c.GetTopic(stream, topic)).Partitions[0].MessagesCount)
	last := poll(c, iggcon.LastPollingStrategy(), 0, 1, false)
	equal(last.Messages[0].Header.Offset, uint64(count-1), "last")
	since := poll(c, iggcon.TimestampPollingStrategy(first.Messages[0].Header.Timestamp), 0, 100, false)
	equal(uint32(len(since.Messages)), count, "since the first")
	equal(string(payloads(poll(c, iggcon.NextPollingStrategy(), 0, 2, true))[1]), "two", "next")
	equal(string(payloads(poll(c, iggcon.NextPollingStrategy(), 0, 1, true))[0]), "three", "next again")
	ok("polling")
}

func offsets(c iggcon.Client) {
	equal(got(c.GetConsumerOffset(single("go"), stream, topic, number(0))).StoredOffset, 2, "automatic commit")
	must(c.StoreConsumerOffset(single("go"), stream, topic, 0, number(0)))
	equal(got(c.GetConsumerOffset(single("go"), stream, topic, number(0))).StoredOffset, 0, "stored offset")
	equal(string(payloads(poll(c, iggcon.NextPollingStrategy(), 0, 1, false))[0]), "two", "next")
	must(c.DeleteConsumerOffset(single("go"), stream, topic, number(0)))
	equal(string(payloads(poll(c, iggcon.NextPollingStrategy(), 0, 1, false))[0]), "one", "next without an offset")
	ok("offsets")
}

func groups(c iggcon.Client) {
	made := got(c.CreateConsumerGroup(stream, topic, "workers"))
	equal(made.PartitionsCount, 3, "partitions of the group")
	must(c.JoinConsumerGroup(stream, topic, name("workers")))
	joined := got(c.GetConsumerGroup(stream, topic, name("workers")))
	equal(joined.MembersCount, 1, "members")
	equal(len(joined.Members[0].Partitions), 3, "partitions of the member")
	equal(len(got(c.GetConsumerGroups(stream, topic))), 1, "groups")
	total := 0
	for turn := 0; turn < 6; turn++ {
		polled := got(c.PollMessages(stream, topic, iggcon.NewGroupConsumer(name("workers")),
			iggcon.NextPollingStrategy(), 10, true, nil))
		total += len(polled.Messages)
	}
	equal(total, 6, "messages of the group")
	must(c.LeaveConsumerGroup(stream, topic, name("workers")))
	equal(got(c.GetConsumerGroup(stream, topic, name("workers"))).MembersCount, 0, "members after the leave")
	must(c.DeleteConsumerGroup(stream, topic, name("workers")))
	equal(len(got(c.GetConsumerGroups(stream, topic))), 0, "groups after the deletion")
	ok("groups")
}

func users(c iggcon.Client) {
	made := got(c.CreateUser("reader", "a password", iggcon.Active, nil))
	equal(got(c.GetUser(name("reader"))).Id, made.Id, "id of the user")
	equal(len(got(c.GetUsers())), 2, "users")
	renamed := "gopher"
	must(c.UpdateUser(name("reader"), &renamed, nil))
	must(c.ChangePassword(name("gopher"), "a password", "another one"))
	user := login("gopher", "another one")
	_, err := user.GetStreams()
	refused(err, "a user without permissions")
	must(user.Close())
	ok("users")
}

func permissions(c iggcon.Client) {
	id, topicID := int(got(c.GetStream(stream)).Id), int(got(c.GetTopic(stream, topic)).Id)
	of := map[int]*iggcon.TopicPermissions{topicID: {ReadTopic: true, PollMessages: true}}
	must(c.UpdatePermissions(name("gopher"), &iggcon.Permissions{
		Streams: map[int]*iggcon.StreamPermissions{id: {Topics: of}},
	}))
	read := got(c.GetUser(name("gopher"))).Permissions
	expect(read.Streams[id].Topics[topicID].PollMessages, "permission to poll")
	expect(!read.Global.ReadStreams, "no permission for all streams")
	user := login("gopher", "another one")
	polled := notAtFirst(func() *iggcon.PolledMessage { return poll(user, iggcon.FirstPollingStrategy(), 0, 1, false) })
	equal(string(payloads(polled)[0]), "one", "message of the user")
	refused(user.SendMessages(stream, topic, iggcon.None(), messages("not allowed")), "a send without permission")
	must(user.Close())
	must(c.DeleteUser(name("gopher")))
	equal(len(got(c.GetUsers())), 1, "users after the deletion")
	ok("permissions")
}

func tokens(c iggcon.Client) {
	raw := got(c.CreatePersonalAccessToken("for-go", 1))
	equal(got(c.GetPersonalAccessTokens())[0].Name, "for-go", "name of the token")
	bearer := connect()
	got(bearer.LoginWithPersonalAccessToken(raw.Token))
	equal(string(payloads(poll(bearer, iggcon.FirstPollingStrategy(), 0, 1, false))[0]), "one", "message by token")
	must(bearer.Close())
	must(c.DeletePersonalAccessToken("for-go"))
	stranger := connect()
	_, err := stranger.LoginWithPersonalAccessToken(raw.Token)
	refused(err, "a deleted token")
	must(stranger.Close())
	ok("tokens")
}

func writesForPython(c iggcon.Client) {
	headers := []iggcon.HeaderEntry{
		header("key", "value"),
		{Key: iggcon.HeaderKey{Kind: iggcon.String, Value: []byte("count")},
			Value: iggcon.HeaderValue{Kind: iggcon.Uint32, Value: []byte{42, 0, 0, 0}}},
	}
	sent := []iggcon.IggyMessage{
		got(iggcon.NewIggyMessage([]byte("plain"), iggcon.WithID([16]byte{7}))),
		got(iggcon.NewIggyMessage([]byte("with headers"), iggcon.WithUserHeaders(headers))),
		got(iggcon.NewIggyMessage(bytes.Repeat([]byte("x"), 1_000_000))),
	}
	must(c.SendMessages(name("exchange"), name("messages"), iggcon.PartitionId(1), sent))
	ok("writes for Python")
}

func deletes(c iggcon.Client) {
	must(c.DeleteTopic(stream, topic))
	equal(len(got(c.GetTopics(stream))), 0, "topics after the deletion")
	must(c.DeleteStream(stream))
	equal(len(got(c.GetStreams())), 1, "streams after the deletion")
	ok("deletes")
}

// --- the means -------------------------------------------------------------------------------------------

func connect() iggcon.Client {
	return got(client.NewIggyClient(client.WithTcp(tcp.WithServerAddress(address))))
}

func login(name string, password string) iggcon.Client {
	c := connect()
	got(c.LoginUser(name, password))
	return c
}

func poll(c iggcon.Client, strategy iggcon.PollingStrategy, partition uint32, count uint32, commit bool) *iggcon.PolledMessage {
	return got(c.PollMessages(stream, topic, single("go"), strategy, count, commit, &partition))
}

func messages(texts ...string) []iggcon.IggyMessage {
	made := make([]iggcon.IggyMessage, 0, len(texts))
	for _, text := range texts {
		made = append(made, got(iggcon.NewIggyMessage([]byte(text))))
	}
	return made
}

func payloads(polled *iggcon.PolledMessage) [][]byte {
	found := make([][]byte, 0, len(polled.Messages))
	for _, message := range polled.Messages {
		found = append(found, message.Payload)
	}
	return found
}

func header(key string, value string) iggcon.HeaderEntry {
	return iggcon.HeaderEntry{Key: got(iggcon.NewHeaderKeyString(key)),
		Value: iggcon.HeaderValue{Kind: iggcon.String, Value: []byte(value)}}
}

func headersOf(message iggcon.IggyMessage) string {
	text := ""
	for _, entry := range got(iggcon.DeserializeHeaders(message.UserHeaders)) {
		text += fmt.Sprintf("%s=%s ", entry.Key.Value, entry.Value.Value)
	}
	return text
}

func name(text string) iggcon.Identifier   { return got(iggcon.NewIdentifier(text)) }
func numbered(id uint32) iggcon.Identifier { return got(iggcon.NewIdentifier(id)) }
func single(text string) iggcon.Consumer   { return iggcon.NewSingleConsumer(name(text)) }
func number(value uint32) *uint32          { return &value }
func ok(check string)                      { fmt.Println("ok", check) }
func refused(err error, what string)       { expect(err != nil, what+" was not refused") }
func equal[T comparable](is, want T, what string) {
	expect(is == want, "%s: %v, not %v", what, is, want)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func got[T any](value T, err error) T {
	must(err)
	return value
}

func expect(holds bool, format string, arguments ...any) {
	if !holds {
		panic(fmt.Sprintf(format, arguments...))
	}
}
