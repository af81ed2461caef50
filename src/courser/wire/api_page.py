"""The HTTP API as a page to read: one HTML document, made from the OpenAPI document, that loads nothing else."""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

HTML_TYPE = "text/html; charset=utf-8"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #0b6bcb }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .9em }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer }
.method { display: inline-block; min-width: 4.5em; font-weight: 600; color: var(--accent) }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-top: 1px solid var(--soft) }
.soft { opacity: .7 }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
"""The page has no script, and may load nothing, be framed by nobody and send nothing."""

Json = Mapping[str, Any]


def api_page(document: Json) -> bytes:
    return "\n".join(_page(document)).encode()


def _page(document: Json) -> Iterator[str]:
    info, schemas = document["info"], document["components"]["schemas"]
    title = escape(f"{info['title']} {info['version']}")
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>'
    yield f'<h1>{title}</h1><p>{escape(info["description"])} The same as <a href="/openapi.json">OpenAPI 3.1</a>.</p>'
    group = ""
    for path in sorted(document["paths"]):
        first = path.split("/")[1] or "server"
        if first != group:
            group = first
            yield f"<h2>{escape(group)}</h2>"
        for method, operation in document["paths"][path].items():
            yield from _operation(method.upper(), path, operation)
    yield "<h2>Types</h2>"
    for name in sorted(schemas):
        yield from _type(name, schemas[name])
    yield "</body></html>"


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary><span class="method">{method}</span>'
    yield f'<code>{escape(path)}</code> <span class="soft">{escape(operation["summary"])}</span></summary>'
    if operation.get("security") == []:
        yield "<p>Needs no access token.</p>"
    if operation["parameters"]:
        yield "<table><tr><th>parameter</th><th>in</th><th>type</th><th></th></tr>"
        for parameter in operation["parameters"]:
            words = parameter.get("description", "") + (" Required." if parameter["required"] else "")
            yield _row(_code(parameter["name"]), parameter["in"], _shape(parameter["schema"]), escape(words.strip()))
        yield "</table>"
    yield "<table><tr><th></th><th>content type</th><th>type</th><th></th></tr>"
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield _row("body", escape(media_type), _shape(content["schema"]), "")
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {"": {}}).items():
            shape = _shape(content["schema"]) if "schema" in content else ""
            yield _row(escape(status), escape(media_type), shape, escape(response["description"]))
    yield "</table></details>"


def _type(name: str, schema: Json) -> Iterator[str]:
    yield f'<details id="type-{escape(name)}"><summary><code>{escape(name)}</code> '
    yield f'<span class="soft">{escape(schema.get("description", ""))}</span></summary>'
    yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
    required = schema.get("required", ())
    for field, of_field in schema.get("properties", {}).items():
        yield _row(_code(field), _shape(of_field), "required" if field in required else "")
    yield "</table></details>"


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _shape(schema: Json) -> str:
    """A type in a few words, with links to others."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#type-{escape(name)}">{escape(name)}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_shape, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(_code(str(word)) for word in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_shape(schema.get('items', {}))}"
    bounds = [f"{sign} {schema[name]}" for name, sign in (("minimum", "≥"), ("maximum", "≤")) if name in schema]
    if "contentEncoding" in schema:
        bounds.append(schema["contentEncoding"])
    default = [f"default {_code(str(schema['default']))}"] if "default" in schema else []
    return " ".join([escape(str(kind)), ", ".join([*map(escape, bounds), *default])]).strip()
