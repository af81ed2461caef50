"""HTTP requests to commands. What each command needs, and where it comes from, follows from its row and its fields.

Four commands have a form of their own in JSON: a send and a poll (``rest_messages``), and the options of a topic, which
stand beside its name.
"""

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from courser.api import commands as c
from courser.api.fields import Kind
from courser.api.table import CommandRow, Route
from courser.errors import CommandRejected, ErrorCode
from courser.model.buffers import Buffer
from courser.model.identifiers import Consumer, Identifier
from courser.model.permissions import Permissions
from courser.model.topic_options import COMPRESSIONS, TOPIC_OPTIONS, TopicOptions
from courser.model.trace_context import TraceContext
from courser.wire.reading import Malformed
from courser.wire.rest_changes import read_changes_query
from courser.wire.rest_fields import (
    BAD_REQUEST,
    CONSUMER_DEFAULT,
    JSON_KINDS,
    NAME_SIZE_MAX,
    PARTITION_DEFAULT,
    U64_MAX,
    UNPROCESSABLE,
    UNSUPPORTED_MEDIA_TYPE,
    RestRefused,
    text_reader,
)
from courser.wire.vsr_catalogue import TOPIC
from courser.wire.vsr_options import topic_options_of_texts
from courser.wire.vsr_updates import check_updatable

JSON_TYPE = "application/json"


class RestRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose route is known. Not a dataclass, because one is created for each request."""

    values: Mapping[str, str]
    """From the path, by field."""
    query: Mapping[str, str]
    content_type: str
    body: Buffer
    room_size: int = 0
    """Free bytes in front of the body of a raw send, for the header of its message."""
    trace: TraceContext | None = None
    """The trace that the request belongs to."""


Decoder = Callable[[RestRequest], c.Command]


def decoder_of(row: CommandRow) -> Decoder:
    """What makes commands of one kind. It raises ``RestRefused`` or ``CommandRejected``."""
    special = _SPECIAL.get(row.kind)
    return special if special is not None else _derived(row)


def has_body(route: Route) -> bool:
    """Whether its requests have a JSON body."""
    return route.method in ("POST", "PUT")


# --- derived ------------------------------------------------------------------------------------------


def kinds_of(kind: type[c.Command]) -> dict[str, object]:
    """The kind of each field that HTTP can give, by name."""
    hints = get_type_hints(kind, include_extras=True)
    kinds = {name: _kind_of(hints[name]) for name in kind.__struct_fields__}
    return {name: found for name, found in kinds.items() if found is not None}


def _kind_of(hint: Any) -> object | None:
    """The declared kind, or the type that stands for one; None for what only the binary protocols send."""
    if get_origin(hint) is Annotated:
        kind: object = hint.__metadata__[0]
        return None if kind is Kind.ABSENT else kind
    if hint == Identifier:
        return Identifier
    if isinstance(hint, UnionType):
        return Permissions if Permissions in get_args(hint) else None
    found: object = hint
    return found


def body_type(row: CommandRow) -> type[msgspec.Struct]:
    """The JSON body of a command: the fields that its path does not name."""
    assert row.route is not None, "only commands with a route have a body"
    fields = []
    for name, kind in fields_outside_path(row).items():
        json_type, _, default = JSON_KINDS[kind]
        fields.append((row.route.name_of(name), json_type, msgspec.field(default=default)))
    if row.kind in _WITHOUT_OPTIONS:
        fields.append(("options", dict[str, str], msgspec.field(default_factory=dict)))
    # Fields with a default come last; JSON has no order.
    fields.sort(key=lambda field: field[2].default is not msgspec.NODEFAULT)
    return msgspec.defstruct(f"{row.kind.__name__}Body", fields)


def fields_outside_path(row: CommandRow) -> dict[str, object]:
    """The kinds of the fields that come from the query or the body, by name."""
    assert row.route is not None, "only commands with a route have such fields"
    return {name: kind for name, kind in kinds_of(row.kind).items() if f"{{{name}}}" not in row.route.path}


def _derived(row: CommandRow) -> Decoder:
    route = row.route
    assert route is not None, "the command has a route"
    kinds, elsewhere = kinds_of(row.kind), fields_outside_path(row)
    in_path = {name: text_reader(kind) for name, kind in kinds.items() if name not in elsewhere}
    if not has_body(route):
        in_query = {
            name: QueryField(route.name_of(name), kind, _default_of(row, name)) for name, kind in elsewhere.items()
        }
        return lambda request: row.kind(
            **_from_path(request, in_path),
            **{name: field.of(request.query) for name, field in in_query.items()},
        )
    decoder = msgspec.json.Decoder(body_type(row))
    in_body = [(name, route.name_of(name), JSON_KINDS[kind][1]) for name, kind in elsewhere.items()]
    name_error = _NAME_ERRORS.get(row.kind)

    def decode(request: RestRequest) -> c.Command:
        body = from_json(request, decoder)
        if row.kind in _WITHOUT_OPTIONS:
            _refuse_options(body.options)
        fields = {name: convert(getattr(body, given)) for name, given, convert in in_body}
        if name_error is not None:
            _check_name(str(fields["name"]), name_error)
        return row.kind(**_from_path(request, in_path), **fields)

    return decode


def _default_of(row: CommandRow, name: str) -> str | None:
    """What a value of the query is if it is left out; None: it must be there."""
    default = next(field.default for field in msgspec.structs.fields(row.kind) if field.name == name)
    if default is msgspec.NODEFAULT:
        return None
    return "" if default is None else str(default)


_WITHOUT_OPTIONS = (c.UpdateStream, c.UpdateUser)
"""SDK 0.9 sends options with them, and there are none to change."""


def _refuse_options(options: Mapping[str, str]) -> None:
    for name in options:
        raise CommandRejected(ErrorCode.UNSUPPORTED_OPTION_KEY, f"unknown option {name[:40]!r}")


_NAME_ERRORS = {
    c.CreateStream: ErrorCode.INVALID_STREAM_NAME,
    c.UpdateStream: ErrorCode.INVALID_STREAM_NAME,
    c.CreateConsumerGroup: ErrorCode.INVALID_GROUP_NAME,
}


def _check_name(name: str, code: ErrorCode) -> None:
    if not 1 <= len(name.encode()) <= NAME_SIZE_MAX:
        raise CommandRejected(code, f"a name must have 1 to {NAME_SIZE_MAX} bytes, not {len(name.encode())}")


def _from_path(request: RestRequest, readers: Mapping[str, Callable[[str], object]]) -> dict[str, Any]:
    fields = {}
    for name, read in readers.items():
        try:
            fields[name] = read(request.values[name])
        except ValueError as error:
            raise RestRefused(BAD_REQUEST, f"invalid path: {error}") from None
    return fields


_DEFAULTS: Mapping[object, str] = {
    Consumer: str(CONSUMER_DEFAULT),
    Kind.OPTIONAL_PARTITION: str(PARTITION_DEFAULT),
}


class QueryField:
    """A value of the query, prepared once for all requests."""

    __slots__ = ("_default", "_name", "_read")

    def __init__(self, name: str, kind: object, default: str | None = None) -> None:
        """Without a ``default``, and if there is none for the kind, the query must have the value."""
        self._name = name
        self._read = text_reader(kind)
        text = _DEFAULTS.get(kind, default)
        self._default = msgspec.NODEFAULT if text is None else self._read(text)

    def of(self, query: Mapping[str, str]) -> Any:
        """The value. Raises ``RestRefused`` if it is invalid, or missing without a default."""
        text = query.get(self._name)
        if text is None:
            if self._default is msgspec.NODEFAULT:
                raise RestRefused(BAD_REQUEST, f"invalid query: {self._name} is missing")
            return self._default
        try:
            return self._read(text)
        except (ValueError, CommandRejected) as error:
            raise RestRefused(BAD_REQUEST, f"invalid query: {self._name}: {error}") from None


def from_query(query: Mapping[str, str], name: str, kind: object, default: str | None = None) -> Any:
    """One value of the query, for requests that are rare."""
    return QueryField(name, kind, default).of(query)


Body = Any


def from_json(request: RestRequest, decoder: "msgspec.json.Decoder[Any]") -> Body:
    """The body of a request. Raises ``RestRefused``."""
    media_type = request.content_type.partition(";")[0].strip().lower()
    if media_type != JSON_TYPE and not (media_type.startswith("application/") and media_type.endswith("+json")):
        raise RestRefused(UNSUPPORTED_MEDIA_TYPE, f"the body must have the content type {JSON_TYPE}")
    try:
        return decoder.decode(request.body)
    except msgspec.ValidationError as error:
        raise RestRefused(UNPROCESSABLE, f"invalid body: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RestRefused(BAD_REQUEST, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise RestRefused(BAD_REQUEST, "the body is nested too deeply") from None


# --- topics -------------------------------------------------------------------------------------------

_U8 = Annotated[int, msgspec.Meta(ge=0, le=255)]
_U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]


class CreateTopicBody(msgspec.Struct, kw_only=True):
    """A new topic. The values 0 stand for the server's defaults.

    Compression, expiry and size stand beside the name, or, as SDK 0.10 sends them, in the map of options.
    """

    name: str
    partitions_count: _U32
    compression_algorithm: _Compression | None = None
    message_expiry: _Natural | None = None
    max_topic_size: _Natural | None = None
    replication_factor: _U8 | None = None
    options: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not self.options:
            for name in ("compression_algorithm", "message_expiry", "max_topic_size"):
                if getattr(self, name) is None:
                    raise ValueError(f"{name} is missing, and there are no options")


class UpdateTopicBody(msgspec.Struct, kw_only=True):
    """Changes to a topic. With all three options, as 0.8 sends it, they replace the old ones, otherwise add to them."""

    name: str | None = None
    """None, as only SDK 0.10 sends it: it is not changed."""
    compression_algorithm: _Compression | None = None
    message_expiry: _Natural | str | None = None
    max_topic_size: _Natural | str | None = None
    replication_factor: _U8 | None = None
    options: dict[str, str] = {}
    reset: list[str] = []
    """Options that get the server's default again."""

    def __post_init__(self) -> None:
        values = (self.name, self.compression_algorithm, self.message_expiry, self.max_topic_size)
        if not (self.options or self.reset or any(value is not None for value in values)):
            raise ValueError("it changes nothing")
        # With a unit, as SDK 0.10 may send it: the same as in the map.
        for name in ("message_expiry", "max_topic_size"):
            value = getattr(self, name)
            if isinstance(value, str):
                self.options = {**self.options, name: value}
                setattr(self, name, None)

    @property
    def is_patch(self) -> bool:
        """Whether what it does not say stays as it is."""
        classic = (self.compression_algorithm, self.message_expiry, self.max_topic_size)
        return None in classic or bool(self.options) or bool(self.reset)


_create_topic_decoder = msgspec.json.Decoder(CreateTopicBody)
_update_topic_decoder = msgspec.json.Decoder(UpdateTopicBody)


def _decode_create_topic(request: RestRequest) -> c.Command:
    body: CreateTopicBody = from_json(request, _create_topic_decoder)
    _check_name(body.name, ErrorCode.INVALID_TOPIC_NAME)
    path = _from_path(request, {"stream": text_reader(Identifier)})
    return c.CreateTopic(path["stream"], body.name, body.partitions_count, _options(body, is_update=False))


def _decode_update_topic(request: RestRequest) -> c.Command:
    body: UpdateTopicBody = from_json(request, _update_topic_decoder)
    if body.name is not None:
        _check_name(body.name, ErrorCode.INVALID_TOPIC_NAME)
    path = _from_path(request, {"stream": text_reader(Identifier), "topic": text_reader(Identifier)})
    options = _options(body, is_update=True)
    reset = _fields_to_reset(body, options)
    name = body.name or ""
    return c.UpdateTopic(path["stream"], path["topic"], name, options, is_patch=body.is_patch, reset=reset)


def _fields_to_reset(body: UpdateTopicBody, options: TopicOptions) -> frozenset[str]:
    try:
        check_updatable(TOPIC, (), body.reset)
    except Malformed as error:
        raise CommandRejected(error.code, error.reason) from None
    fields = frozenset(TOPIC_OPTIONS[name].field for name in body.reset)
    if any(getattr(options, name) is not None for name in fields):
        raise CommandRejected(ErrorCode.INVALID_COMMAND, "an update sets an option and resets it")
    return fields


def _options(body: CreateTopicBody | UpdateTopicBody, *, is_update: bool) -> TopicOptions:
    """The options beside the name count more than the same ones in the map."""
    if body.replication_factor == 0:
        raise CommandRejected(ErrorCode.INVALID_REPLICATION_FACTOR, "a replication factor must be 1 to 255, not 0")
    try:
        texts = topic_options_of_texts(body.options, is_update=is_update)
    except Malformed as error:
        raise CommandRejected(error.code, error.reason) from None
    beside: dict[str, int | None] = {}
    compression = body.compression_algorithm
    if compression is not None and (compression != "none" or (isinstance(body, UpdateTopicBody) and body.is_patch)):
        beside["compression"] = COMPRESSIONS[compression]
    for name in ("message_expiry", "max_topic_size", "replication_factor"):
        value = getattr(body, name)
        if value:
            if value > U64_MAX:
                raise RestRefused(UNPROCESSABLE, f"{name} {value} is larger than {U64_MAX}")
            beside[name] = value
    return msgspec.structs.replace(texts, **beside)


# --- consumer groups ----------------------------------------------------------------------------------


class PartitionOffsetBody(msgspec.Struct):
    """Where a consumer group continues to read a partition."""

    partition_id: _U32
    offset: _Natural


class ResetGroupOffsetsBody(msgspec.Struct, kw_only=True):
    """Where a consumer group continues to read. Partitions that are not named stay as they are."""

    offsets: Annotated[list[PartitionOffsetBody], msgspec.Meta(max_length=c.POSITION_COUNT_MAX)]
    force: bool = False
    """Whether to remove the members first. Otherwise a group with members is refused."""


_reset_decoder = msgspec.json.Decoder(ResetGroupOffsetsBody)


def _decode_reset(request: RestRequest) -> c.Command:
    body: ResetGroupOffsetsBody = from_json(request, _reset_decoder)
    for row in body.offsets:
        if row.offset > U64_MAX:
            raise RestRefused(UNPROCESSABLE, f"offset {row.offset} is larger than {U64_MAX}")
    readers = {name: text_reader(Identifier) for name in ("stream", "topic", "group")}
    offsets = tuple((row.partition_id, row.offset) for row in body.offsets)
    return c.ResetGroupOffsets(**_from_path(request, readers), is_forced=body.force, offsets=offsets)


_SPECIAL: Mapping[type[c.Command], Decoder] = {
    c.ResetGroupOffsets: _decode_reset,
    c.GetMetadataChanges: lambda request: read_changes_query(request.query),
    c.CreateTopic: _decode_create_topic,
    c.UpdateTopic: _decode_update_topic,
}
