"""The OpenAPI 3.1 document of the HTTP API, generated from the table of commands: it cannot be out of date."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from courser.api import commands as c
from courser.api.fields import Kind
from courser.api.replies import LoggedIn, SnapshotArchive
from courser.api.table import CommandRow, Route
from courser.model.identifiers import Consumer, Identifier
from courser.model.messaging import PollingKind
from courser.wire.rest_fields import SCOPES, U32_MAX, U64_MAX
from courser.wire.rest_messages import RAW_TYPE, SendBody
from courser.wire.rest_requests import (
    JSON_TYPE,
    CreateTopicBody,
    UpdateTopicBody,
    body_type,
    fields_outside_path,
    has_body,
    kinds_of,
)

Json = dict[str, Any]

_COMPONENTS = "#/components/schemas/{name}"
_ERROR = {
    "type": "object",
    "required": ["id", "code", "reason", "field"],
    "properties": {
        "id": {"type": "integer", "description": "The number of the error; 404 if something is simply missing."},
        "code": {"type": "string", "description": "Its name."},
        "reason": {"type": "string", "description": "What happened."},
        "field": {"type": ["string", "null"], "description": "The field that is wrong."},
    },
}
_SCHEMAS: Mapping[object, Json] = {
    Kind.U8: {"type": "string", "enum": list(SCOPES)},
    Kind.U32: {"type": "integer", "minimum": 0, "maximum": U32_MAX},
    Kind.U64: {"type": "integer", "minimum": 0, "maximum": U64_MAX},
    Kind.ID: {"type": "integer", "minimum": 0, "maximum": U32_MAX},
    Kind.OPTIONAL_PARTITION: {"type": "integer", "minimum": 0, "maximum": U32_MAX, "default": 0},
    Kind.FLAG: {"type": "boolean"},
    Kind.NAME: {"type": "string", "minLength": 1},
    Consumer: {"type": "string", "minLength": 1, "default": "1", "description": "A number or a name."},
    PollingKind: {"type": "string", "enum": [kind.name.lower() for kind in PollingKind]},
    Identifier: {"type": "string", "minLength": 1, "description": "A number or a name."},
}
_REQUIRED_IN_QUERY = (Kind.U32,)
_POLL_DEFAULTS = {"kind": "offset", "value": 0, "count": 10, "auto_commit": False}
_POLL_EXTRAS = {
    "wait": "How long to wait for messages: microseconds, or a text such as 5s; at most 20 seconds.",
    "max_bytes": "Bytes of messages in the reply: a number, or a text such as 1 MiB.",
}


def openapi_document(version: str) -> Json:
    """The whole document."""
    routes = [(row, row.route) for row in c.COMMANDS if row.route is not None]
    bodies = {row.kind: _body_type(row) for row, route in routes if has_body(route)}
    schemas = msgspec.json.schema_components(bodies.values(), ref_template=_COMPONENTS)
    references = dict(zip(bodies, schemas[0], strict=True))
    paths: dict[str, Json] = {}
    for row, route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(row, route, references.get(row.kind))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Courser", "version": version, "description": "Messages over HTTP, as in Apache Iggy."},
        "paths": paths,
        "components": {
            "schemas": schemas[1] | {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"token": []}],
    }


def _body_type(row: CommandRow) -> type[msgspec.Struct]:
    special: Mapping[type[c.Command], type[msgspec.Struct]] = {
        c.SendMessages: SendBody,
        c.CreateTopic: CreateTopicBody,
        c.UpdateTopic: UpdateTopicBody,
    }
    return special.get(row.kind) or body_type(row)


def _operation(row: CommandRow, route: Route, body: Json | None) -> Json:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", row.kind.__name__).lower()
    operation: Json = {
        "operationId": name,
        "summary": (row.kind.__doc__ or "").partition("\n")[0],
        "parameters": list(_parameters(row, route)),
        "responses": {str(route.status): _success(row), "4XX": _failure(), "5XX": _failure()},
    }
    if row.is_public:
        operation["security"] = []
    if body is not None:
        content: Json = {JSON_TYPE: {"schema": body}}
        if row.kind is c.SendMessages:
            content[RAW_TYPE] = {"schema": {"type": "string", "contentMediaType": RAW_TYPE}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(row: CommandRow, route: Route) -> Iterator[Json]:
    kinds = kinds_of(row.kind)
    for name in re.findall(r"{(\w+)}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": _SCHEMAS[kinds[name]]}
    if has_body(route):
        return
    for name, kind in fields_outside_path(row).items():
        schema = _SCHEMAS[kind]
        if row.kind is c.PollMessages and name in _POLL_DEFAULTS:
            schema = schema | {"default": _POLL_DEFAULTS[name]}
        is_required = kind in _REQUIRED_IN_QUERY and "default" not in schema
        yield {"name": route.name_of(name), "in": "query", "required": is_required, "schema": schema}
    if row.kind is c.PollMessages:
        for name, text in _POLL_EXTRAS.items():
            yield {"name": name, "in": "query", "required": False, "schema": {"type": "string"}, "description": text}


def _success(row: CommandRow) -> Json:
    if row.reply is None:
        return {"description": "Done."}
    text = (row.reply.__doc__ or "").partition("\n")[0]
    if row.reply is SnapshotArchive:
        return {"description": text, "content": {"application/zip": {}}}
    description = "An access token." if row.reply is LoggedIn else text
    return {"description": description, "content": {JSON_TYPE: {}}}


def _failure() -> Json:
    reference = {"$ref": _COMPONENTS.format(name="Error")}
    return {
        "description": "An error. A request that cannot be read at all is answered with plain text.",
        "content": {JSON_TYPE: {"schema": reference}, "text/plain": {}},
    }
