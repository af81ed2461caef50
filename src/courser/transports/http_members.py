"""Consumer groups over HTTP: a member is a resource that is created, used and deleted, or expires.

Its requests are the commands that other transports send, on a session that the member keeps between its requests.
"""

from collections.abc import Mapping

import msgspec

from courser.api import commands as c
from courser.api import replies as r
from courser.broker.access.access_tokens import Access
from courser.broker.access.connectionless import (
    TIME_TO_LIVE_DEFAULT,
    TIME_TO_LIVE_MAX,
    TIME_TO_LIVE_MIN,
    ConnectionlessMember,
    ConnectionlessMembers,
)
from courser.transports.http_commands import HttpCommands
from courser.transports.http_exchange import Answer, Exchange
from courser.wire.rest_members import (
    decode_member_offset,
    decode_member_poll,
    decode_time_to_live,
    group_of,
    member_id_of,
    member_view,
)
from courser.wire.rest_requests import JSON_TYPE, RestRequest

_OK, _CREATED, _NO_CONTENT = 200, 201, 204
_BODY_SIZE_MAX = 16 * 1024


class MemberRoutes:
    """Answers requests about members."""

    def __init__(self, commands: HttpCommands, members: ConnectionlessMembers) -> None:
        self._commands = commands
        self._members = members

    async def create(self, exchange: Exchange, values: Mapping[str, str], access: Access | None) -> Answer:
        """Have a new member join a group."""
        assert access is not None, "the route is not public"
        request = await self._request(exchange, values)
        time_to_live = decode_time_to_live(request, TIME_TO_LIVE_DEFAULT, TIME_TO_LIVE_MIN, TIME_TO_LIVE_MAX)
        group = group_of(request)
        member = self._members.create(access, exchange.address, time_to_live)
        try:
            await self._commands.carry_out(exchange, member.session, c.JoinConsumerGroup(*group))
        except BaseException:
            self._members.remove(member)
            raise
        return await self._described(exchange, member, request, _CREATED)

    async def get(self, exchange: Exchange, values: Mapping[str, str], access: Access | None) -> Answer:
        """Which partitions it reads. Like every request, this keeps it in the group."""
        request = _without_body(exchange, values)
        member = await self._enter(exchange, request, access)
        return await self._described(exchange, member, request, _OK)

    async def poll(self, exchange: Exchange, values: Mapping[str, str], access: Access | None) -> Answer:
        """Read the next messages."""
        request = _without_body(exchange, values)
        command = decode_member_poll(request)
        member = await self._enter(exchange, request, access)
        reply = await self._commands.carry_out(exchange, member.session, command)
        assert isinstance(reply, r.Polled), "that is the reply to a poll"
        body = await self._commands.encode_polled(member.session, reply)
        return Answer(_OK, body[0], JSON_TYPE, rest=body[1:])

    async def commit(self, exchange: Exchange, values: Mapping[str, str], access: Access | None) -> Answer:
        """Store how far it got."""
        request = await self._request(exchange, values)
        command = decode_member_offset(request)
        member = await self._enter(exchange, request, access)
        await self._commands.carry_out(exchange, member.session, command)
        return Answer(_NO_CONTENT)

    async def delete(self, exchange: Exchange, values: Mapping[str, str], access: Access | None) -> Answer:
        """Have a member leave its group."""
        request = _without_body(exchange, values)
        member = await self._enter(exchange, request, access)
        await self._commands.carry_out(exchange, member.session, c.LeaveConsumerGroup(*group_of(request)))
        self._members.remove(member)
        return Answer(_NO_CONTENT)

    async def _request(self, exchange: Exchange, values: Mapping[str, str]) -> RestRequest:
        body = await self._commands.read_body(exchange, _BODY_SIZE_MAX)
        return RestRequest(values, exchange.query, exchange.header(b"content-type"), body)

    async def _enter(self, exchange: Exchange, request: RestRequest, access: Access | None) -> ConnectionlessMember:
        """Take the member's turn, until the answer is sent."""
        assert access is not None, "the route is not public"
        member = await exchange.held.enter_async_context(self._members.use(member_id_of(request), access.user.user_id))
        exchange.session = member.session
        member.session.request_id, member.session.trace = exchange.request_id, exchange.trace
        return member

    async def _described(
        self, exchange: Exchange, member: ConnectionlessMember, request: RestRequest, status: int
    ) -> Answer:
        reply = await self._commands.carry_out(exchange, member.session, c.SyncConsumerGroup(*group_of(request)))
        assert isinstance(reply, r.Assignment), "that is the reply to it"
        view = member_view(member.member_id, member.time_to_live, reply)
        return Answer(status, msgspec.json.encode(view), JSON_TYPE)


def _without_body(exchange: Exchange, values: Mapping[str, str]) -> RestRequest:
    return RestRequest(values, exchange.query, "", b"")
