"""The dispatcher: from a command to its handler, past the one gate that every transport shares."""

from courser.api import commands as c
from courser.api.replies import Reply
from courser.api.table import ENTRY_OF
from courser.broker.broker import Broker
from courser.broker.sessions import Session
from courser.handlers import groups, login, messages, offsets, own, staging, streams, system, tokens, topics, users
from courser.handlers.audit import AUDITED, Answer, Handler, audited

HANDLERS: dict[type[c.Command], Handler] = {
    c.Ping: system.ping,
    c.GetStats: system.get_stats,
    c.GetSnapshot: system.get_snapshot,
    c.GetClusterMetadata: system.get_cluster_metadata,
    c.DescribeOptions: system.describe_options,
    c.GetMe: system.get_me,
    c.GetClient: system.get_client,
    c.GetClients: system.get_clients,
    c.GetUser: users.get_user,
    c.GetUsers: users.get_users,
    c.CreateUser: users.create_user,
    c.DeleteUser: users.delete_user,
    c.UpdateUser: users.update_user,
    c.UpdatePermissions: users.update_permissions,
    c.ChangePassword: users.change_password,
    c.LoginUser: login.login_user,
    c.LogoutUser: login.logout_user,
    c.GetTokens: tokens.get_tokens,
    c.CreateToken: tokens.create_token,
    c.DeleteToken: tokens.delete_token,
    c.LoginWithToken: login.login_with_token,
    c.PollMessages: messages.poll_messages,
    c.SendMessages: messages.send_messages,
    c.FlushMessages: messages.flush_messages,
    c.GetConsumerOffset: offsets.get_consumer_offset,
    c.StoreConsumerOffset: offsets.store_consumer_offset,
    c.DeleteConsumerOffset: offsets.delete_consumer_offset,
    c.GetStream: streams.get_stream,
    c.GetStreams: streams.get_streams,
    c.CreateStream: streams.create_stream,
    c.DeleteStream: streams.delete_stream,
    c.UpdateStream: streams.update_stream,
    c.PurgeStream: streams.purge_stream,
    c.GetTopic: topics.get_topic,
    c.GetTopics: topics.get_topics,
    c.CreateTopic: topics.create_topic,
    c.DeleteTopic: topics.delete_topic,
    c.UpdateTopic: topics.update_topic,
    c.PurgeTopic: topics.purge_topic,
    c.CreatePartitions: topics.create_partitions,
    c.DeletePartitions: topics.delete_partitions,
    c.DeleteSegments: topics.delete_segments,
    c.GetConsumerGroup: groups.get_consumer_group,
    c.GetConsumerGroups: groups.get_consumer_groups,
    c.CreateConsumerGroup: groups.create_consumer_group,
    c.DeleteConsumerGroup: groups.delete_consumer_group,
    c.JoinConsumerGroup: groups.join_consumer_group,
    c.LeaveConsumerGroup: groups.leave_consumer_group,
    c.SyncConsumerGroup: groups.sync_consumer_group,
    c.WaitForMessages: own.wait_for_messages,
    c.GetPartitionBounds: own.get_partition_bounds,
    c.GetSegments: own.get_segments,
    c.WaitForArrivals: own.wait_for_arrivals,
    c.StageMessages: staging.stage_messages,
    c.FinishStage: staging.finish_stage,
    c.PublishStaged: staging.publish_staged,
    c.DiscardStaged: staging.discard_staged,
    c.GetSink: staging.get_sink,
    c.GetSinks: staging.get_sinks,
    c.GetStagedParts: staging.get_staged_parts,
}


class Dispatcher:
    """One for all connections of all transports."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._check_login = broker.access.user
        assert HANDLERS.keys() == ENTRY_OF.keys(), "every command has one handler"
        self._routes = {
            kind: (audited(handler) if kind in AUDITED else handler, ENTRY_OF[kind].is_public)
            for kind, handler in HANDLERS.items()
        }

    async def dispatch(self, session: Session, command: c.Command) -> Reply | None:
        """Carry out a command.

        Raises:
            CourserError: the answer that the client gets.
        """
        begun = self.begin(session, command)
        return begun if isinstance(begun, Reply) else await begun

    def begin(self, session: Session, command: c.Command) -> Answer | Reply:
        """Begin to carry out a command. The reply, if there is one at once; else it comes from the coroutine.

        Raises:
            CourserError: here or in the coroutine, the answer that the client gets.
        """
        if session.ended is not None:
            # Without the traceback of the last time: each raise would make it longer.
            raise session.ended.with_traceback(None)
        handler, is_public = self._routes[type(command)]
        if not is_public:
            # Taken out first, as in the session loop: it is called for every request.
            check_login = self._check_login
            check_login(session)
        return handler(self._broker, session, command)
