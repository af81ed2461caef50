"""The sync twin of the client: the same methods, without ``await``. One implementation, on a private event loop."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from courser.api.commands import Command
from courser.api.replies import Reply
from courser.client.blocking import LoopThread, blocking
from courser.client.client import Client, ConsumerOptions, ProcessOptions, ProducerOptions
from courser.client.connection import open_connection
from courser.client.consumed import PartitionsCallback
from courser.client.consumer import Consumer
from courser.client.contexts import resolve_target
from courser.client.handling import Handler
from courser.client.link import Dial
from courser.client.messages import AnyPartitioning
from courser.client.processing import Processor
from courser.client.producer import Producer
from courser.client.starting import Start
from courser.client.sync_consumer import SyncConsumer, in_thread
from courser.client.sync_processor import SyncProcessor
from courser.client.sync_producer import SyncProducer
from courser.client.targets import Target
from courser.model.identifiers import Identifier


class SyncClient:
    """A connection to a server that reconnects automatically. Create it with ``connect_sync``; see ``Client``.

    May be used by several threads at once.

    Example:
        for stream in client.get_streams():
            print(stream.name)
    """

    def __init__(self, original: Client, thread: LoopThread, *, owns_thread: bool = True) -> None:
        self._original = original
        self._thread = thread
        self._owns_thread = owns_thread
        """Whether closing the client stops the event loop."""
        self._consumers: list[SyncConsumer] = []

    @property
    def target(self) -> Target:
        """The server and login."""
        return self._original.target

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected now. Requests reconnect if it is not."""
        return self._original.is_connected

    @property
    def user_id(self) -> int | None:
        """The id of the user who is logged in."""
        return self._original.user_id

    def request(self, command: Command) -> Reply | None:
        """Send any command of ``courser.api.commands`` and return its reply unchanged."""
        return self._thread.call(self._original.request(command))

    def close(self, *, failed: bool = False) -> None:
        """Close the connection and all producers and consumers. See ``Client.close``."""
        if self._thread.loop.is_closed():
            return
        try:
            for consumer in self._consumers:
                consumer.close(failed=failed)
            self._thread.call(self._original.close(failed=failed))
        finally:
            if self._owns_thread:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    def producer(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        *,
        partitioning: AnyPartitioning = None,
        **options: Unpack[ProducerOptions],
    ) -> SyncProducer:
        """A producer for one topic; use it in ``with``. See ``Client.producer``."""

        async def make() -> Producer:
            return self._original.producer(stream, topic, partitioning=partitioning, **options)

        return SyncProducer(self._thread.call(make()), self._thread)

    def consumer(
        self,
        stream: Identifier,
        topic: Identifier | None = None,
        *,
        group: Identifier | None = None,
        name: Identifier | None = None,
        partitions: Sequence[int] | None = None,
        start: Start | None = None,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> SyncConsumer:
        """A consumer of one topic, with its own connection. See ``Client.consumer``.

        Callbacks run on a thread of their own while the consumer's thread waits.
        """

        async def make() -> Consumer:
            return self._original.consumer(
                stream,
                topic,
                group=group,
                name=name,
                partitions=partitions,
                start=start,
                on_assigned=in_thread(on_assigned),
                on_revoked=in_thread(on_revoked),
                **options,
            )

        consumer = SyncConsumer(self._thread.call(make()), self._thread)
        self._consumers.append(consumer)
        return consumer

    def process(
        self,
        stream: Identifier,
        handler: Handler,
        *,
        group: Identifier,
        topic: Identifier | None = None,
        payload_type: Any = None,
        dead_letter: str | None = None,
        start: Start | None = None,
        **options: Unpack[ProcessOptions],
    ) -> SyncProcessor:
        """Run a handler over the messages of a topic: call ``run``, or use it in ``with``. See ``Client.process``.

        A plain handler runs on threads, and may use this client. An async one runs on the client's event loop.
        """

        async def make() -> Processor:
            return self._original.process(
                stream,
                handler,
                group=group,
                topic=topic,
                payload_type=payload_type,
                dead_letter=dead_letter,
                start=start,
                **options,
            )

        return SyncProcessor(self._thread.call(make()), self._thread)

    # --- streams, topics, groups ---------------------------------------------------------------------

    create_stream = blocking(Client.create_stream)
    get_stream = blocking(Client.get_stream)
    get_streams = blocking(Client.get_streams)
    update_stream = blocking(Client.update_stream)
    delete_stream = blocking(Client.delete_stream)
    purge_stream = blocking(Client.purge_stream)
    create_topic = blocking(Client.create_topic)
    get_topic = blocking(Client.get_topic)
    get_topics = blocking(Client.get_topics)
    update_topic = blocking(Client.update_topic)
    delete_topic = blocking(Client.delete_topic)
    purge_topic = blocking(Client.purge_topic)
    create_partitions = blocking(Client.create_partitions)
    delete_partitions = blocking(Client.delete_partitions)
    delete_segments = blocking(Client.delete_segments)
    get_segments = blocking(Client.get_segments)
    get_offsets_at_time = blocking(Client.get_offsets_at_time)
    get_retention_plan = blocking(Client.get_retention_plan)
    verify_segment = blocking(Client.verify_segment)
    get_start_report = blocking(Client.get_start_report)
    get_topic_maintenance = blocking(Client.get_topic_maintenance)
    get_topic_durability = blocking(Client.get_topic_durability)
    get_partition_bounds = blocking(Client.get_partition_bounds)
    flush_messages = blocking(Client.flush_messages)
    create_consumer_group = blocking(Client.create_consumer_group)
    get_consumer_group = blocking(Client.get_consumer_group)
    get_consumer_groups = blocking(Client.get_consumer_groups)
    get_consumer_group_lag = blocking(Client.get_consumer_group_lag)
    delete_consumer_group = blocking(Client.delete_consumer_group)
    join_consumer_group = blocking(Client.join_consumer_group)
    leave_consumer_group = blocking(Client.leave_consumer_group)
    sync_consumer_group = blocking(Client.sync_consumer_group)
    reset_consumer_group = blocking(Client.reset_consumer_group)

    # --- users, tokens, the server -------------------------------------------------------------------

    login_user = blocking(Client.login_user)
    login_with_personal_access_token = blocking(Client.login_with_personal_access_token)
    logout_user = blocking(Client.logout_user)
    create_user = blocking(Client.create_user)
    get_user = blocking(Client.get_user)
    get_users = blocking(Client.get_users)
    update_user = blocking(Client.update_user)
    update_permissions = blocking(Client.update_permissions)
    change_password = blocking(Client.change_password)
    delete_user = blocking(Client.delete_user)
    create_one_time_token = blocking(Client.create_one_time_token)
    create_personal_access_token = blocking(Client.create_personal_access_token)
    get_personal_access_tokens = blocking(Client.get_personal_access_tokens)
    delete_personal_access_token = blocking(Client.delete_personal_access_token)
    get_me = blocking(Client.get_me)
    get_client = blocking(Client.get_client)
    get_clients = blocking(Client.get_clients)
    ping = blocking(Client.ping)
    get_metrics = blocking(Client.get_metrics)
    get_stats = blocking(Client.get_stats)
    get_cluster_metadata = blocking(Client.get_cluster_metadata)
    describe_options = blocking(Client.describe_options)
    get_snapshot = blocking(Client.get_snapshot)

    # --- operating -----------------------------------------------------------------------------------

    get_sessions = blocking(Client.get_sessions)
    end_session = blocking(Client.end_session)
    get_history = blocking(Client.get_history)
    get_log_lines = blocking(Client.get_log_lines)
    get_configuration = blocking(Client.get_configuration)
    get_topic_figures = blocking(Client.get_topic_figures)
    get_access = blocking(Client.get_access)
    get_pipelines = blocking(Client.get_pipelines)
    report_pipeline = blocking(Client.report_pipeline)

    # --- messages ------------------------------------------------------------------------------------

    send_messages = blocking(Client.send_messages)
    poll_messages = blocking(Client.poll_messages)
    poll_batches = blocking(Client.poll_batches)
    find_messages = blocking(Client.find_messages)
    wait_for_arrivals = blocking(Client.wait_for_arrivals)
    wait_for_topics = blocking(Client.wait_for_topics)
    get_consumer_offset = blocking(Client.get_consumer_offset)
    store_consumer_offset = blocking(Client.store_consumer_offset)
    delete_consumer_offset = blocking(Client.delete_consumer_offset)

    # --- staged writes -------------------------------------------------------------------------------

    stage = blocking(Client.stage)
    finish_stage = blocking(Client.finish_stage)
    publish_staged = blocking(Client.publish_staged)
    discard_staged = blocking(Client.discard_staged)
    get_sink = blocking(Client.get_sink)
    get_sinks = blocking(Client.get_sinks)
    get_staged_parts = blocking(Client.get_staged_parts)


def connect_sync(
    target: str | Target | None = None, *, context: str | None = None, dial: Dial = open_connection, **options: object
) -> SyncClient:
    """Connect to a server. Use the client in ``with``, or close it. The arguments are those of ``connect``.

    Raises:
        TargetRefused: the target is invalid, the context does not exist, or the password of the user is missing.
        ConnectionFailed: no server listens at the address.
        AuthenticationFailed: the login failed.

    Example:
        with courser.connect_sync("iggy://iggy:iggy@127.0.0.1:8090") as client:
            client.ping()
    """
    chosen = resolve_target(target, context=context, options=options).target
    thread = LoopThread()

    async def make() -> Client:
        return await Client(chosen, dial).__aenter__()

    try:
        return SyncClient(thread.call(make()), thread)
    except BaseException:
        thread.stop()
        raise
