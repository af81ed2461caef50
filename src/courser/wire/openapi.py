"""The OpenAPI 3.1 document of the HTTP API, generated from the table of commands: it cannot be out of date."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from courser.api import commands as c
from courser.api import metadata_changes as f
from courser.api import replies as r
from courser.api.fields import Kind
from courser.api.table import CommandRow, Route
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import PollingKind
from courser.wire.rest_fields import SCOPES, U32_MAX, U64_MAX
from courser.wire.rest_messages import ACKNOWLEDGEMENTS, RAW_TYPE, PolledView, SendBody, SentView
from courser.wire.rest_own_routes import MAX_BYTES, STRICT, WAIT, OwnRoute, Parameter, number, own_routes, text, word
from courser.wire.rest_replies import view_of
from courser.wire.rest_requests import (
    JSON_TYPE,
    CreateTopicBody,
    ResetGroupOffsetsBody,
    UpdateTopicBody,
    body_type,
    fields_outside_path,
    has_body,
    kinds_of,
)
from courser.wire.rest_views import ErrorView, IdentityView

Json = dict[str, Any]

_COMPONENTS = "#/components/schemas/{name}"
_SCHEMAS: Mapping[object, Json] = {
    Kind.U8: {"type": "string", "enum": list(SCOPES)},
    Kind.U32: {"type": "integer", "minimum": 0, "maximum": U32_MAX},
    Kind.U64: {"type": "integer", "minimum": 0, "maximum": U64_MAX},
    Kind.ID: {"type": "integer", "minimum": 0, "maximum": U32_MAX},
    Kind.OPTIONAL_PARTITION: {"type": "integer", "minimum": 0, "maximum": U32_MAX, "default": 0},
    Kind.OPTIONAL_U64: {"type": "integer", "minimum": 0, "maximum": U64_MAX},
    Kind.FLAG: {"type": "boolean"},
    Kind.NAME: {"type": "string", "minLength": 1},
    Consumer: {"type": "string", "minLength": 1, "default": "1", "description": "A number or a name."},
    PollingKind: {"type": "string", "enum": [kind.name.lower() for kind in PollingKind]},
    Identifier: {"type": "string", "minLength": 1, "description": "A number or a name."},
}
_REQUIRED_IN_QUERY = (Kind.U32, Kind.U64)
_POLL_DEFAULTS = {"kind": "offset", "value": 0, "count": 10, "auto_commit": False}
_EXTRA_PARAMETERS: Mapping[type[c.Command], tuple[Parameter, ...]] = {
    c.PollMessages: (WAIT, MAX_BYTES, STRICT),
    c.SendMessages: (
        word(
            "ack",
            "Whether to wait until the messages are stored; with none the reply is 202.",
            ACKNOWLEDGEMENTS,
            default=ACKNOWLEDGEMENTS[0],
        ),
        number("partition_id", "Of raw bytes: the partition."),
        text("key", "Of raw bytes: the key that selects the partition.", minLength=1),
        text("id", "Of raw bytes: the id of the message, a number below 2^128 or a UUID."),
    ),
    c.GetMetadataChanges: (
        word("from", "Where to start. Instead of it: after.", ("earliest", "latest", "current")),
        text("after", "Only changes after this position: next of an earlier page."),
        text(
            "current_after",
            "Continue to read the present state: current_page_token of an earlier page. Only with from=current.",
        ),
        text("groups", "Names of groups, separated by commas. Otherwise all."),
        number("since", "Only changes from this time on, in microseconds.", U64_MAX),
        number("until", "Only changes up to this time, in microseconds.", U64_MAX),
        number("limit", "Records or items of the page.", f.LIMIT_MAX, minimum=1, default=f.LIMIT_DEFAULT),
    ),
}
"""Values in the query that are not fields of the command."""


def openapi_document(version: str, metrics_path: str | None = "/metrics", *, has_console: bool = True) -> Json:
    rows = [(row, row.route) for row in c.COMMANDS if row.route is not None]
    own = own_routes(metrics_path, has_console=has_console)
    bodies: dict[object, Any] = {row.kind: _body_type(row) for row, route in rows if has_body(route)}
    bodies |= {route.name: route.body for route in own if route.body is not None}
    replies: dict[object, Any] = {row.kind: _reply_type(row) for row, _ in rows if _reply_type(row) is not None}
    replies |= {route.name: route.reply for route in own if route.reply is not None}
    types = [*bodies.values(), *replies.values(), ErrorView]
    references, schemas = msgspec.json.schema_components(types, ref_template=_COMPONENTS)
    body_schemas = dict(zip(bodies, references, strict=False))
    reply_schemas = dict(zip(replies, references[len(bodies) :], strict=False))
    paths: dict[str, Json] = {}
    for row, route in rows:
        operation = _operation(row, route, body_schemas.get(row.kind), reply_schemas.get(row.kind), references[-1])
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for own_route in own:
        name = own_route.name
        operation = _own_operation(own_route, body_schemas.get(name), reply_schemas.get(name), references[-1])
        paths.setdefault(own_route.path, {})[own_route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Courser", "version": version, "description": "Messages over HTTP, as in Apache Iggy."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"token": []}],
    }


def _reply_type(row: CommandRow) -> Any:
    """The type of the JSON reply; None if it is not JSON."""
    special: Mapping[object, Any] = {r.Polled: PolledView, r.Sent: SentView, r.LoggedIn: IdentityView}
    if row.reply is None or row.reply is r.SnapshotArchive:
        return None
    return special[row.reply] if row.reply in special else view_of(row.reply)


def _body_type(row: CommandRow) -> type[msgspec.Struct]:
    special: Mapping[type[c.Command], type[msgspec.Struct]] = {
        c.SendMessages: SendBody,
        c.CreateTopic: CreateTopicBody,
        c.UpdateTopic: UpdateTopicBody,
        c.ResetGroupOffsets: ResetGroupOffsetsBody,
    }
    return special.get(row.kind) or body_type(row)


def _operation(row: CommandRow, route: Route, body: Json | None, reply: Json | None, error: Json) -> Json:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", row.kind.__name__).lower()
    responses = {str(route.status): _success(row, reply), **_failures(error)}
    if row.kind is c.SendMessages:
        responses["202"] = {"description": "Accepted: ack=none does not wait."}
    operation: Json = {
        "operationId": name,
        "summary": _summary(row.kind),
        "parameters": list(_parameters(row, route)),
        "responses": responses,
    }
    if row.is_public:
        operation["security"] = []
    if body is not None:
        content: Json = {JSON_TYPE: {"schema": body}}
        if row.kind is c.SendMessages:
            content[RAW_TYPE] = {"schema": {"type": "string", "contentMediaType": RAW_TYPE}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _own_operation(route: OwnRoute, body: Json | None, reply: Json | None, error: Json) -> Json:
    success: Json = {"description": "Done."}
    if route.media_type is not None:
        schema = reply if reply is not None else {"type": "string"}
        success = {"description": route.summary, "content": {route.media_type: {"schema": schema}}}
    parameters = [_path_parameter(name, Identifier) for name in _names_in(route.path)]
    operation: Json = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": parameters + [_parameter(parameter) for parameter in route.parameters],
        "responses": {str(route.status): success, **_failures(error)},
    }
    if route.is_public:
        operation["security"] = []
    if body is not None:
        operation["requestBody"] = {"required": route.is_body_required, "content": {JSON_TYPE: {"schema": body}}}
    return operation


def _parameters(row: CommandRow, route: Route) -> Iterator[Json]:
    kinds = kinds_of(row.kind)
    for name in _names_in(route.path):
        yield _path_parameter(name, kinds[name])
    for parameter in _EXTRA_PARAMETERS.get(row.kind, ()):
        yield _parameter(parameter)
    if has_body(route):
        return
    for name, kind in fields_outside_path(row).items():
        schema = _SCHEMAS[kind]
        if row.kind is c.PollMessages and name in _POLL_DEFAULTS:
            schema = schema | {"default": _POLL_DEFAULTS[name]}
        is_required = kind in _REQUIRED_IN_QUERY and "default" not in schema
        yield {"name": route.name_of(name), "in": "query", "required": is_required, "schema": schema}


def _names_in(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def _path_parameter(name: str, kind: object) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _SCHEMAS[kind]}


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.is_required,
        "schema": parameter.schema,
        "description": parameter.description,
    }


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


def _success(row: CommandRow, reply: Json | None) -> Json:
    if row.reply is None:
        return {"description": "Done."}
    if reply is None:
        return {"description": _summary(row.reply), "content": {"application/zip": {}}}
    description = "An access token." if row.reply is r.LoggedIn else _summary(row.reply)
    return {"description": description, "content": {JSON_TYPE: {"schema": reply}}}


def _failures(error: Json) -> Json:
    refused = {JSON_TYPE: {"schema": error}}
    # Health checks answer with sentences.
    failed = {**refused, "text/plain": {"schema": {"type": "string"}}}
    return {
        "4XX": {"description": "The request is refused.", "content": refused},
        "5XX": {
            "description": "The server cannot carry it out. With 503, Retry-After says when to try again.",
            "content": failed,
        },
    }
