"""The modules below the views: payloads, times and texts, run in the browser."""

from typing import Any

from tests.console.browsing import Tab

BIG = 2**127 + 1


async def run(tab: Tab, module: str, body: str, *arguments: Any) -> Any:
    """The result of some JavaScript, with the names of a module in ``m`` and arguments in ``a``."""
    script = f"async (a) => {{ const m = await import(new URL('{module}', document.baseURI)); {body} }}"
    return await tab.page.evaluate(script, list(arguments))


DETECT = (
    "const bytes = Uint8Array.from(a[0]); const form = m.detect(bytes); return [form, await m.present(bytes, form)];"
)


async def test_payloads_are_recognised(tab: Tab) -> None:
    cases: list[tuple[bytes, str, str]] = [
        (
            f'{{"id": {BIG}, "price": 1.10, "a":[]}}'.encode(),
            "json",
            f'{{\n  "id": {BIG},\n  "price": 1.10,\n  "a": []\n}}',
        ),
        ("Grüße\nan alle".encode(), "text", "Grüße\nan alle"),
        (b"17", "json", "17"),
        (
            b"\x82\xa1a\x01\xa1b\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
            "msgpack",
            f'{{\n  "a": 1,\n  "b": {2**64 - 1}\n}}',
        ),
        (b"\x93\xc0\xc3\xcb\x3f\xf8" + bytes(6), "msgpack", "[\n  null,\n  true,\n  1.5\n]"),
        (b"\xff\xfe\x00hello", "hex", "00000000  ff fe 00 68 65 6c 6c 6f                          ...hello"),
        (b"<script>alert(1)</script>", "text", "<script>alert(1)</script>"),
    ]
    for payload, form, text in cases:
        assert await run(tab, "payload.js", DETECT, list(payload)) == [form, text], payload


def _avro_long(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    data = b""
    while number > 0x7F:
        data += bytes([number & 0x7F | 0x80])
        number >>= 7
    return data + bytes([number])


def _avro_text(text: bytes) -> bytes:
    return _avro_long(len(text)) + text


async def test_avro_container_files_are_decoded_by_their_own_schema(tab: Tab) -> None:
    schema = (
        b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"},'
        b' {"name": "n", "type": "long"}, {"name": "note", "type": ["null", "string"]},'
        b' {"name": "tags", "type": {"type": "array", "items": "string"}},'
        b' {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}}]}'
    )
    mark = bytes(range(16))
    row = _avro_text(b"A-17") + _avro_long(-(2**62)) + _avro_long(1) + _avro_text(b"hi")
    row += _avro_long(2) + _avro_text(b"x") + _avro_text(b"y") + _avro_long(0) + _avro_long(1)
    file = b"Obj\x01" + _avro_long(1) + _avro_text(b"avro.schema") + _avro_text(schema) + _avro_long(0) + mark
    file += _avro_long(1) + _avro_text(row) + mark
    form, text = await run(tab, "payload.js", DETECT, list(file))
    assert form == "avro"
    assert text.replace(" ", "").replace("\n", "") == (
        f'{{"id":"A-17","n":{-(2**62)},"note":"hi","tags":["x","y"],"kind":"B"}}'
    )
    problem = "try { await m.present(Uint8Array.from(a[0]), 'avro'); } catch (error) { return error.message; }"
    single = b"\xc3\x01" + bytes(range(8)) + b"rest"
    assert "0706050403020100" in await run(tab, "payload.js", problem, list(single))


NOON = 1_794_916_800_000
"""Milliseconds: noon of 17 November 2026, in UTC."""


PHRASES = {
    "now": NOON,
    "20 minutes ago": NOON - 20 * 60_000,
    "an hour ago": NOON - 3_600_000,
    "1 h 30 min ago": NOON - 90 * 60_000,
    "11:05": NOON - 55 * 60_000,
    # It has not been today yet.
    "14:05": NOON + 125 * 60_000 - 86_400_000,
    "today 14:05": NOON + 125 * 60_000,
    "yesterday 9:30": NOON - 86_400_000 - 150 * 60_000,
    "yesterday": NOON - 36 * 3_600_000,
    "2026-11-17 12:00:00.5": NOON + 500,
    "2026-11-17T13:00+01:00": NOON,
    "2026-11-17": NOON - 12 * 3_600_000,
}


async def test_times_as_people_write_them(tab: Tab) -> None:
    body = "const [now, ...phrases] = a; return phrases.map((text) => Number(m.parseTime(text, now, true)) / 1000);"
    found = await run(tab, "time_phrases.js", body, NOON, *PHRASES)
    assert dict(zip(PHRASES, found, strict=True)) == PHRASES


async def test_what_is_no_time_says_what_is(tab: Tab) -> None:
    attempt = "try { return String(m.parseTime(text, 0, true)); } catch (error) { return error.message; }"
    body = f"return a.map((text) => {{ {attempt} }});"
    for message in await run(tab, "time_phrases.js", body, "soon", "25:00", "2026-02-30", "", "12:61"):
        assert "write" in message
    starts = (
        "return a.map((text) => m.parseStart(text, 0, true)).map((start) => [start.kind, String(start.offset ?? '')]);"
    )
    found = await run(tab, "time_phrases.js", starts, "", "oldest", "18446744073709551615", "offset 7")
    assert found == [["newest", ""], ["oldest", ""], ["offset", str(2**64 - 1)], ["offset", "7"]]


async def test_headers_of_all_kinds_are_shown(tab: Tab) -> None:
    body = "return a.map(([kind, bytes]) => m.headerText(kind, Uint8Array.from(bytes)));"
    cases = [
        ["uint64", [255] * 8],
        ["int64", [255] * 8],
        ["int128", [0] * 15 + [128]],
        ["bool", [1]],
        ["float32", [0, 0, 192, 63]],
        ["string", [104, 105]],
        ["raw", [255]],
    ]
    expected = [str(2**64 - 1), "-1", str(-(2**127)), "true", "1.5", "hi", "0xff"]
    assert await run(tab, "message.js", body, *cases) == expected
