"""``courser config``: show the configuration that a server would use. Does not start a server."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import click

from courser.cli.configuration_options import config_option, configuration_of, refused, set_option
from courser.cli.fields import Record, fields
from courser.cli.options import local_command
from courser.cli.output import emit_list, emit_thing
from courser.cli.terminal import say, write
from courser.configuration.loading import FROM_DEFAULT, Configuration
from courser.errors import ConfigurationRefused
from courser.server.configuration.checks import check
from courser.server.configuration.effective import list_settings, to_toml
from courser.server.configuration.loading import all_keys
from courser.server.configuration.reference import reference_markdown

PROFILES = {
    "production": "fsync in batches of 100 messages, a week of retention, checks on",
    "balanced": "fsync in batches of 100 messages: for most applications",
    "throughput": "no fsync: metrics and logs",
    "durable": "fsync before each acknowledgement: nothing acknowledged is lost",
}

_SETTING_FIELDS = fields("key, value, source")
_KEY_FIELDS = fields("key, default, kind, status, description")


@local_command(
    "show",
    "courser config show",
    "courser config show --config server.toml",
    "courser config show -o csv",
    exits="Exit codes: 0 a server would start with it, 1 the file cannot be read, 2 invalid configuration or wrong "
    "usage.",
)
@config_option
@set_option
def show_command(*, path: Path | None, settings: tuple[str, ...], output: str) -> None:
    """Print the effective configuration as TOML: defaults, file, environment and --set together, secrets masked.

    A comment names the source of each value that is not the default. Warnings go to stderr.
    """
    configuration = configuration_of(path, settings)
    try:
        if output == "table":
            write(to_toml(configuration, with_sources=True))
        else:
            emit_list(_SETTING_FIELDS, _settings_of(configuration), output)
        for warning in configuration.warnings:
            say(f"warning: {warning}")
        check(configuration)
    except ConfigurationRefused as refusal:
        raise refused(refusal) from refusal


def _settings_of(configuration: Configuration) -> Iterator[Record]:
    for entry in list_settings(configuration):
        source = None if entry.source == FROM_DEFAULT else entry.source
        yield {"key": entry.key, "value": entry.value or None, "source": source}


@local_command(
    "keys", "courser config keys", "courser config keys -o jsonl", exits="Exit codes: 0 printed, 2 wrong usage."
)
def keys_command(*, output: str) -> None:
    """Print the reference of all keys as Markdown: default, grammar, environment variable, other spellings."""
    if output == "table":
        write(reference_markdown())
        return
    emit_list(
        _KEY_FIELDS,
        (
            {
                "key": key.path,
                "default": key.kind.to_toml(key.default) if key.default is not None else None,
                "kind": key.kind.name,
                "status": key.status.value,
                "description": key.description,
                "spellings": list(key.spellings),
            }
            for key in all_keys().keys
        ),
        output,
    )


@local_command(
    "example",
    "courser config example production > server.toml",
    "courser config example durable -o json",
    exits="Exit codes: 0 printed, 2 wrong usage.",
    before="\b\nProfiles:\n" + "".join(f"  {name:<11} {text}\n" for name, text in PROFILES.items()) + "\n",
)
@click.argument("profile", metavar="PROFILE", type=click.Choice(tuple(PROFILES)))
def example_command(*, profile: str, output: str) -> None:
    """Print an example configuration file for a purpose: a profile of settings that belong together."""
    text = resources.files("courser.cli").joinpath("examples", f"{profile}.toml").read_text("utf-8")
    if output == "table":
        write(text)
        return
    emit_thing(fields("profile, toml"), {"profile": profile, "toml": text}, output)
