"""The OpenAPI document: it describes every route of the table, and nothing else."""

import base64
import hashlib
import json
import re
from typing import Any

from courser.api import commands as c
from courser.wire.api_page import api_page
from courser.wire.openapi import openapi_document
from courser.wire.rest_own_routes import own_routes
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
    own = {(route.method, route.path) for route in own_routes("/metrics")}
    assert set(operations()) == routes | own
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


def test_only_logins_and_facts_about_the_server_need_no_token() -> None:
    public = {path for (_, path), operation in operations().items() if operation.get("security") == []}
    logins = {"/users/login", "/personal-access-tokens/login", "/users/refresh-token"}
    facts = {"/", "/ping", "/health/live", "/health/ready", "/metrics", "/openapi.json", "/docs"}
    console = {"/ui", "/ui/", "/ui/{file}", "/ui/{version}/{file}", "/ui/session"}
    assert public == logins | facts | console


def test_every_reply_in_json_has_a_schema() -> None:
    for place, operation in operations().items():
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                assert media_type == "application/zip" or content["schema"], (place, status)
        assert {"4XX", "5XX"} < set(operation["responses"])


def test_metrics_are_described_only_where_they_are_served() -> None:
    assert "/metrics" not in openapi_document("1", None)["paths"]
    assert "/figures" in openapi_document("1", "/figures")["paths"]


async def test_the_document_is_served(server: HttpServer) -> None:
    reply = await server.client.ask("GET", "/openapi.json")
    assert reply.json["openapi"] == "3.1.0"
    assert reply.json["paths"] == DOCUMENT["paths"]


# --- the page ---


async def test_the_page_loads_nothing_and_runs_nothing(server: HttpServer) -> None:
    reply = await server.client.ask("GET", "/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    text = reply.body.decode()
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1
    assert base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode() in policy
    assert not re.findall(r"<script|<link|<img|<iframe|\bsrc=|@import|url\(|\bon\w+=|https?://", text)
    assert {link for link in re.findall(r'href="([^"]*)"', text) if not link.startswith("#")} == {"/openapi.json"}


def test_the_page_has_every_operation_and_every_type() -> None:
    page = api_page(DOCUMENT).decode()
    anchors = re.findall(r'id="([^"]*)"', page)
    assert len(set(anchors)) == len(anchors)
    assert set(anchors) == {operation["operationId"] for operation in operations().values()} | {
        f"type-{name}" for name in DOCUMENT["components"]["schemas"]
    }
    assert {link[1:] for link in re.findall(r'href="(#[^"]*)"', page)} <= set(anchors)


def test_the_page_escapes_what_it_shows() -> None:
    document = json.loads(json.dumps(DOCUMENT).replace("Messages over HTTP", "<script>&"))
    assert "&lt;script&gt;&amp;" in api_page(document).decode()
