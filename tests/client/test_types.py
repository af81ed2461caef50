"""What a type checker knows about the client. ``make check`` reads this file; running it shows that it is true."""

from typing import assert_type

from courser.api import replies as r
from courser.client.batches import PolledBatches
from courser.client.client import Client
from courser.client.consumer import ConsumedMessage, Consumer
from courser.client.messages import Message, PollingStrategy, SendMessage
from courser.client.producer import Producer, Receipt, Ticket
from courser.client.sync import SyncClient, SyncConsumedMessage, SyncConsumer
from courser.client.sync_producer import SyncProducer, SyncTicket
from courser.testing.broker import SyncTestBroker, TestBroker


async def test_the_async_client_is_typed() -> None:
    async with TestBroker() as broker:
        client = await broker.connect()
        assert_type(client, Client)
        assert_type(await client.create_stream(name="demo"), r.StreamInfo)
        details = await client.create_topic("demo", "orders", 2, message_expiry="7 days", durability="synced")
        assert_type(details, r.TopicDetails)
        assert_type(await client.get_streams(), list[r.StreamInfo])
        sent = await client.send_messages("demo/orders", partitioning=1, messages=["a", SendMessage({"b": 1}, key="k")])
        assert_type(sent, r.Sent)
        found = await client.poll_messages("demo/orders", partition_id=1, polling_strategy=PollingStrategy.First())
        assert_type(found, list[Message])
        assert_type(found[0].text(), str)
        assert_type(found[1].json(dict[str, int]), dict[str, int])
        assert_type(await client.poll_batches("demo/orders", partition_id=1), PolledBatches)
        async with client.producer("demo/orders", linger=0.001) as producer:
            assert_type(producer, Producer)
            ticket = await producer.send({"n": 1}, key="k", headers={"h": 1.5})
            assert_type(ticket, Ticket)
            assert_type(await ticket.acknowledged(), Receipt)
        async with client.consumer("demo/orders", group="app", commit="manual", stop_at_end=True) as consumer:
            assert_type(consumer, Consumer)
            async for message in consumer:
                assert_type(message, ConsumedMessage)
                assert_type(await message.commit(), bool)


def test_the_sync_client_is_typed() -> None:
    with SyncTestBroker() as broker:
        client = broker.connect()
        assert_type(client, SyncClient)
        assert_type(client.create_stream(name="demo"), r.StreamInfo)
        details = client.create_topic("demo", "orders", 2, message_expiry="7 days")
        assert_type(details, r.TopicDetails)
        assert_type(client.send_messages("demo/orders", partitioning=1, messages=["a"]), r.Sent)
        found = client.poll_messages("demo/orders", partition_id=1)
        assert_type(found, list[Message])
        with client.producer("demo/orders") as producer:
            assert_type(producer, SyncProducer)
            ticket = producer.send({"n": 1})
            assert_type(ticket, SyncTicket)
            assert_type(ticket.acknowledged(), Receipt)
        with client.consumer("demo/orders", group="app", stop_at_end=True) as consumer:
            assert_type(consumer, SyncConsumer)
            for message in consumer:
                assert_type(message, SyncConsumedMessage)
                assert_type(message.commit(), bool)
