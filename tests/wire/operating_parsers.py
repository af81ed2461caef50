"""The replies for operators and the console, decoded in plain code by the tests' own client.

Their commands are Courser's own: ids count from 0 in every dialect.
"""

from collections.abc import Callable
from typing import TypeVar

from courser.api import operating_replies as o
from courser.api.replies import Reply
from tests.wire.reply_cursor import Cursor

Row = TypeVar("Row")


def _counted(cursor: Cursor, row: Callable[[Cursor], Row]) -> list[Row]:
    return [row(cursor) for _ in range(cursor.number("I"))]


def _session(cursor: Cursor) -> o.SessionInfo:
    client_id, user_id = cursor.number("I"), cursor.optional()
    username, transport, address, sdk = (cursor.text8() for _ in range(4))
    return o.SessionInfo(client_id, user_id, username, transport, address, sdk, *cursor.unpack("QQQI"))


def _numbers(cursor: Cursor) -> tuple[int, ...]:
    return cursor.unpack(f"{cursor.number('I')}Q")


def _series(cursor: Cursor) -> o.HistorySeries:
    name, (is_counter,) = cursor.text8(), cursor.unpack("?")
    return o.HistorySeries(name, is_counter, _numbers(cursor))


def _history(cursor: Cursor) -> o.History:
    return o.History(cursor.number("Q"), _numbers(cursor), _counted(cursor, _series))


def _log_line(cursor: Cursor) -> o.LogLine:
    number, time = cursor.unpack("QQ")
    return o.LogLine(number, time, cursor.text8(), cursor.text8(), cursor.text32())


def _setting(cursor: Cursor) -> o.Setting:
    return o.Setting(cursor.text8(), *(cursor.text32() for _ in range(4)))


def _topic_figures(cursor: Cursor) -> o.TopicFigures:
    stream_id, stream = cursor.number("I"), cursor.text8()
    topic_id, topic = cursor.number("I"), cursor.text8()
    figures = cursor.unpack("IQQQQQ")
    durability, group_count, lag = cursor.text8(), cursor.number("I"), cursor.optional()
    return o.TopicFigures(stream_id, stream, topic_id, topic, *(*figures, durability, group_count, lag))


def _pipeline(cursor: Cursor) -> o.PipelineInfo:
    name, username, reported_at = cursor.text8(), cursor.text8(), cursor.number("Q")
    state, consumer, host = (cursor.text8() for _ in range(3))
    figures = cursor.unpack("QQQQQQQI")
    texts = [cursor.text32() for _ in range(4)]
    return o.PipelineInfo(name, username, reported_at, state, consumer, host, *(*figures, *texts))


def _grants(cursor: Cursor) -> list[o.Grant]:
    return _counted(cursor, lambda at: o.Grant(at.text8(), at.text8()))


def _verdict(cursor: Cursor) -> o.UserVerdict:
    action, (is_allowed,) = cursor.text8(), cursor.unpack("?")
    return o.UserVerdict(action, is_allowed, cursor.text32(), _grants(cursor))


def _user_access(cursor: Cursor) -> o.UserAccess:
    user_id, username = cursor.number("I"), cursor.text8()
    is_active, is_root = cursor.unpack("??")
    return o.UserAccess(user_id, username, is_active, is_root, _counted(cursor, _verdict))


def _access(cursor: Cursor) -> o.AccessReport:
    actions = _counted(cursor, lambda at: o.ActionInfo(at.text8(), at.text8(), _grants(at)))
    permissions = _counted(cursor, lambda at: o.PermissionInfo(at.text8(), at.text8(), at.text8()))
    return o.AccessReport(actions, permissions, _counted(cursor, _user_access))


OPERATING_PARSERS: dict[type[Reply], Callable[[Cursor], Reply]] = {
    o.OneTimeToken: lambda cursor: o.OneTimeToken(cursor.text8(), cursor.number("Q")),
    o.SessionList: lambda cursor: o.SessionList(_counted(cursor, _session)),
    o.History: _history,
    o.AccessReport: _access,
    o.LogLines: lambda cursor: o.LogLines(_counted(cursor, _log_line)),
    o.SettingList: lambda cursor: o.SettingList(_counted(cursor, _setting)),
    o.TopicFigureList: lambda cursor: o.TopicFigureList(_counted(cursor, _topic_figures)),
    o.PipelineList: lambda cursor: o.PipelineList(_counted(cursor, _pipeline)),
}
