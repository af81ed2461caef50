"""Reads a pipeline's TOML file. Checks every key and reports all problems at once."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from courser.configuration.key import AnyKey
from courser.errors import ConfigurationRefused
from courser.pipelines.definition import BY_TABLE, REQUIRED, TABLES, Definition, alike
from courser.pipelines.query_assembly import Assembly, Values

FILE_SIZE_MAX = 1024 * 1024
"""Bytes. A larger file is not a pipeline."""


def load_definition(path: Path) -> Definition:
    """Read a file.

    Raises:
        ConfigurationRefused: lists every problem, each with the file's name.
    """
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise ConfigurationRefused([f"{path}: larger than {FILE_SIZE_MAX:,} bytes; this is not a pipeline file"])
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigurationRefused([f"could not read {path}: {reason}"]) from error
    return parse_definition(text, path)


def parse_definition(text: str, path: Path) -> Definition:
    """Parse the text of a file. Raises ``ConfigurationRefused``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationRefused([f"{path}: invalid TOML: {error}"]) from error
    problems: list[str] = []
    values = _read_values(document, problems)
    definition = None if problems else Assembly(path.resolve(), problems).build(values)
    if definition is None:
        raise ConfigurationRefused([f"{path}: {problem}" for problem in problems])
    return definition


def _read_values(document: Mapping[str, object], problems: list[str]) -> Values:
    """The value or default of every key."""
    for table in document:
        if table not in TABLES:
            problems.append(f"unknown table [{table}]{alike(table, TABLES)}")
        elif not isinstance(document[table], dict):
            problems.append(f"{table} must be a table; write [{table}]")
    values: dict[str, dict[str, Any]] = {}
    for table in TABLES:
        found = document.get(table, {})
        contents = found if isinstance(found, dict) else {}
        if table == "spark":
            values[table] = _read_spark(contents, problems)
        else:
            values[table] = _read_table(table, contents, problems)
    return values


def _read_table(table: str, contents: Mapping[str, object], problems: list[str]) -> dict[str, Any]:
    keys = BY_TABLE[table]
    unknown = [name for name in contents if name not in keys]
    problems += [f"unknown key {table}.{name}{alike(name, keys, table)}" for name in unknown]
    return {name: _read_value(key, name, contents, problems) for name, key in keys.items()}


def _read_value(key: AnyKey, name: str, contents: Mapping[str, object], problems: list[str]) -> Any:
    if name not in contents:
        if key in REQUIRED:
            problems.append(f"{key.path} is missing: {key.description}")
        return key.default
    try:
        return key.kind.from_toml(contents[name])
    except ValueError:
        shown = json.dumps(contents[name], default=str)[:80]
        problems.append(f"{key.path} must be {key.kind.expected}, not {shown}")
        return key.default


def _read_spark(contents: Mapping[str, object], problems: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in _flattened(contents):
        if not name.startswith("spark."):
            problems.append(f'[spark] accepts only Spark settings, whose names begin with "spark.", not "{name}"')
        elif name == "spark.master":
            problems.append("spark.master cannot be set here; use courser pipeline run --master")
        elif isinstance(value, bool):
            settings[name] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            settings[name] = str(value)
        else:
            problems.append(f'[spark] "{name}" must be a text, a number or a boolean')
    return settings


def _flattened(contents: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Flatten nested tables: in TOML, ``spark.sql.x = 1`` without quotes is one. Both spellings are accepted."""
    found: list[tuple[str, object]] = []
    for name, value in contents.items():
        if isinstance(value, dict):
            found += _flattened(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, value))
    return found
