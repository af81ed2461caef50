"""The update of SDK 0.10: one request for streams, topics and users, which says only what changes.

It becomes the command that older releases have for each of them. The checks are in the order of the original server:
the form, all keys, then the values.
"""

from collections.abc import Iterable, Mapping

from courser.api import commands as c
from courser.errors import ErrorCode
from courser.model.identifiers import Identifier
from courser.model.topic_options import TOPIC_OPTIONS
from courser.records.user_headers import HeaderKind
from courser.wire.reading import Malformed, Reader
from courser.wire.vsr_catalogue import STREAM, TOPIC, USER, Flag, entry_of, refuse_value
from courser.wire.vsr_options import OptionField, WrongValue, read_options, topic_options_in

UPDATE_RESOURCE, UPDATE_RESOURCE_CODE = 150, 16
"""The operation, and the code that it has elsewhere."""

_STATUSES = {b"active": True, b"inactive": False}


def update_resource(reader: Reader) -> c.Command:
    """Decode an update.

    Raises:
        Malformed: it changes nothing, an option may not be changed, or a value is invalid.
    """
    scope = reader.u8()
    if scope not in (TOPIC, STREAM, USER):
        raise Malformed(f"unknown option scope {scope}")
    resource = reader.identifier()
    topic = reader.identifier() if scope == TOPIC else None
    reset = [reader.name() for _ in range(reader.u8())]
    entries = read_options(reader, ErrorCode.OPTIONS_TOO_LARGE)
    if not reset and not entries:
        raise Malformed("an update changes nothing")
    if len({*reset, *entries}) != len(reset) + len(entries):
        raise Malformed("an update names an option twice")
    check_updatable(scope, entries, reset)
    if scope == STREAM:
        return c.UpdateStream(resource, _name(entries["name"], ErrorCode.INVALID_STREAM_NAME))
    if scope == USER:
        return _update_user(resource, entries)
    assert topic is not None
    return _update_topic(resource, topic, entries, reset)


def check_updatable(scope: int, entries: Iterable[str], reset: Iterable[str]) -> None:
    """Check that these options may be set, and those reset. Raises ``Malformed``."""
    for key in (*entries, *reset):
        if not entry_of(scope, key).flags & Flag.UPDATABLE:
            raise Malformed(f'option "{key}" can only be set on creation', ErrorCode.OPTION_NOT_UPDATABLE)
    for key in reset:
        if not entry_of(scope, key).flags & Flag.RESETTABLE:
            raise Malformed(f'option "{key}" has no default', ErrorCode.OPTION_NOT_RESETTABLE)


def _name(field: OptionField, code: ErrorCode) -> str:
    try:
        name = field.text()
    except WrongValue:
        name = None
    if not name:
        refuse_value("name", field, code)
    return name


def _update_user(user: Identifier, entries: Mapping[str, OptionField]) -> c.Command:
    name, status = entries.get("username"), entries.get("status")
    new_name = None if name is None else _name(name, ErrorCode.INVALID_USERNAME)
    is_active = None
    if status is not None:
        is_active = _STATUSES.get(status.data) if status.kind == HeaderKind.STRING else None
        if is_active is None:
            refuse_value("status", status, ErrorCode.INVALID_USER_STATUS)
    return c.UpdateUser(user, new_name, is_active, protects_root=True)


def _update_topic(
    stream: Identifier, topic: Identifier, entries: dict[str, OptionField], reset: list[str]
) -> c.Command:
    name = entries.pop("name", None)
    new_name = "" if name is None else _name(name, ErrorCode.INVALID_TOPIC_NAME)
    options = topic_options_in(entries)
    fields = frozenset(TOPIC_OPTIONS[key].field for key in reset)
    if not new_name and not fields and all(getattr(options, TOPIC_OPTIONS[key].field) is None for key in entries):
        # 0 stands for "not said".
        raise Malformed("an update changes nothing")
    return c.UpdateTopic(stream, topic, new_name, options, is_patch=True, reset=fields)
