"""The OpenAPI document: it describes every route of the table, and nothing else."""

import json
import re
from typing import Any

from courser.api import commands as c
from courser.wire.openapi import openapi_document
from tests.http.serving import HttpServer

DOCUMENT: dict[str, Any] = json.loads(json.dumps(openapi_document("1.2.3")))


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_is_described_once() -> None:
    routes = {(row.route.method, row.route.path) for row in c.COMMANDS if row.route is not None}
    assert set(operations()) == routes
    names = [operation["operationId"] for operation in operations().values()]
    assert len(set(names)) == len(names)


def test_every_field_of_a_path_is_a_parameter() -> None:
    for (_, path), operation in operations().items():
        declared = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert declared == re.findall(r"{(\w+)}", path)


def test_every_reference_leads_somewhere() -> None:
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT))
    assert names
    assert set(names) <= set(DOCUMENT["components"]["schemas"])


def test_a_body_says_what_it_needs() -> None:
    schema = DOCUMENT["components"]["schemas"]["CreateUserBody"]
    assert schema["required"] == ["username", "password", "status"]
    assert set(schema["properties"]) == {"username", "password", "status", "permissions"}


def test_only_logins_need_no_token() -> None:
    public = {path for (_, path), operation in operations().items() if operation.get("security") == []}
    assert public == {"/users/login", "/personal-access-tokens/login"}


async def test_the_document_is_served(server: HttpServer) -> None:
    reply = await server.client.ask("GET", "/openapi.json")
    assert reply.json["openapi"] == "3.1.0"
    assert reply.json["paths"] == DOCUMENT["paths"]
