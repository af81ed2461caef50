"""The reference of all keys as Markdown, generated from the table of keys so that it is never out of date."""

from collections.abc import Iterable, Iterator

from courser.configuration.key import AnyKey, KeyStatus
from courser.server.configuration.loading import all_keys


def reference_markdown() -> str:
    """One table of the keys that take effect, and lists of the others."""
    return "\n".join(_lines(all_keys().keys))


def _lines(keys: tuple[AnyKey, ...]) -> Iterator[str]:
    yield "| key | default | kind | meaning |"
    yield "| --- | --- | --- | --- |"
    for key in keys:
        if key.status is KeyStatus.LIVE:
            yield f"| `{key.path}` | {_default(key)} | {key.kind.name} | {key.description}{_aliases(key)} |"
    yield ""
    yield "Keys of Iggy's stock files that Courser does not use; accepted with one warning:"
    yield ""
    for table, names in _by_table(_of(keys, KeyStatus.IGNORED)).items():
        yield f"- `{table}`: {', '.join(names)}"
    yield ""


def _of(keys: Iterable[AnyKey], status: KeyStatus) -> list[AnyKey]:
    return [key for key in keys if key.status is status]


def _default(key: AnyKey) -> str:
    text = key.kind.to_toml(key.default) if key.default is not None else ""
    return f"`{text}`" if text not in ("", '""') else "-"


def _aliases(key: AnyKey) -> str:
    flat = {path for path in key.spellings if f"system.{path}" in key.spellings}
    others = [path for path in key.spellings[1:] if path not in flat]
    return f". Also `{'`, `'.join(others)}`" if others else ""


def _by_table(keys: Iterable[AnyKey]) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    for key in keys:
        table, _, name = key.path.rpartition(".")
        if key.has_any_below:
            tables[key.path] = ["everything in it"]
        else:
            tables.setdefault(table, []).append(name)
    return dict(sorted(tables.items()))
