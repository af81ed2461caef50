"""Saved contexts: names for servers and logins, in one TOML file that only its owner can read.

Also defines the precedence of targets: argument, environment, saved context, default.
"""

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import msgspec

from courser.client.targets import Target, parse_target, with_options
from courser.errors import TargetRefused
from courser.model.setting_kinds import value_to_toml

_FILE_NAME = "contexts.toml"
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700

URL_VARIABLES = ("COURSER_URL", "IGGY_CONNECTION_STRING", "IGGY_URL")
CONTEXT_VARIABLE = "COURSER_CONTEXT"
HOME_VARIABLE = "COURSER_CONFIG_HOME"
_LOGIN_VARIABLES = {
    "username": ("COURSER_USERNAME", "IGGY_USERNAME"),
    "password": ("COURSER_PASSWORD", "IGGY_PASSWORD"),
    "token": ("COURSER_TOKEN", "IGGY_TOKEN"),
}
DEFAULT_SOURCE = "the default"


@dataclass(frozen=True, slots=True)
class Context:
    """A saved target: an address, a login, options."""

    url: str = "iggy://127.0.0.1:8090"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Options as in the query of a connection string."""

    def target(self) -> Target:
        """The target. Raises ``TargetRefused``."""
        target = with_options(parse_target(self.url), self.options)
        login = {name: value for name in _LOGIN_VARIABLES if (value := getattr(self, name)) is not None}
        return with_options(target, login)


_KEYS = {entry.name for entry in fields(Context)}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All saved contexts. Immutable: ``with_...`` return changed copies, ``save`` writes them."""

    path: Path
    saved: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None
    """The selected context, used by default."""

    def get(self, name: str) -> Context:
        """A context by name. Raises ``TargetRefused``."""
        if name not in self.saved:
            known = ", ".join(sorted(self.saved)) or "none"
            raise TargetRefused(f'context "{name}" not found in {self.path}; saved: {known}')
        return self.saved[name]

    def with_context(self, name: str, context: Context, *, select: bool = False) -> "Contexts":
        """A copy with the context added or replaced."""
        current = name if select or self.current is None else self.current
        return Contexts(self.path, {**self.saved, name: context}, current)

    def without(self, name: str) -> "Contexts":
        """A copy without the context. Raises ``TargetRefused`` if it does not exist."""
        self.get(name)
        saved = {other: context for other, context in self.saved.items() if other != name}
        return Contexts(self.path, saved, None if self.current == name else self.current)

    def selecting(self, name: str) -> "Contexts":
        """A copy with the context selected. Raises ``TargetRefused`` if it does not exist."""
        self.get(name)
        return Contexts(self.path, self.saved, name)

    def save(self) -> None:
        """Write the file atomically, readable only by its owner. Raises ``TargetRefused``."""
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                unfinished.unlink()
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(_as_toml(self))
            unfinished.replace(self.path)
        except OSError as error:
            raise TargetRefused(f"cannot write {self.path}: {error.strerror or error}") from error


def contexts_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The path of the file with saved contexts."""
    if home := environment.get(HOME_VARIABLE):
        return Path(home) / _FILE_NAME
    if home := environment.get("XDG_CONFIG_HOME"):
        return Path(home) / "courser" / _FILE_NAME
    return Path(environment.get("HOME") or Path.home()) / ".config" / "courser" / _FILE_NAME


def load_contexts(environment: Mapping[str, str] = os.environ) -> Contexts:
    """Load the saved contexts; empty if the file does not exist.

    Raises:
        TargetRefused: the file cannot be read.
    """
    path = contexts_path(environment)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Contexts(path)
    except (OSError, UnicodeDecodeError) as error:
        raise TargetRefused(f"cannot read {path}: {error}") from error
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
        saved = {name: msgspec.convert(table, Context) for name, table in file.contexts.items()}
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TargetRefused(f"{path} is not a valid contexts file: {error}") from error
    for name, table in file.contexts.items():
        if unknown := table.keys() - _KEYS:
            raise TargetRefused(f'{path}: context "{name}" has the unknown key "{min(unknown)}"')
    return Contexts(path, saved, file.current)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    current: str | None = None
    contexts: dict[str, dict[str, object]] = {}


def _as_toml(contexts: Contexts) -> str:
    lines = ["# Servers and logins saved by courser. Contains secrets: do not share this file.", ""]
    if contexts.current is not None:
        lines += [f"current = {value_to_toml(contexts.current)}", ""]
    for name, context in sorted(contexts.saved.items()):
        lines.append(f"[contexts.{value_to_toml(name)}]")
        for key in ("url", "username", "password", "token"):
            value = getattr(context, key)
            if value is not None:
                lines.append(f"{key} = {value_to_toml(value)}")
        if context.options:
            pairs = ", ".join(f"{key} = {value_to_toml(value)}" for key, value in sorted(context.options.items()))
            lines.append(f"options = {{ {pairs} }}")
        lines.append("")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target and its source."""

    target: Target
    source: str
    """Where the address comes from: a text such as "the argument", "COURSER_URL", 'context "dev"', "the default"."""
    login_source: str = DEFAULT_SOURCE
    """Where the password or the token comes from, in the same words; or "the options"."""


def resolve_target(
    target: str | Target | None = None,
    *,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
    options: Mapping[str, object] | None = None,
) -> Resolved:
    """Find the target: argument, else environment, else saved context, else default.

    Options override it. The login of the environment is used if none of these contains a login, and its password if
    they contain only the user.

    Raises:
        TargetRefused: a value is invalid, or a context does not exist.
    """
    found = _base(target, context, environment)
    chosen = with_options(_without_other_login(found.target, options or {}), options or {})
    login_source = found.source if _has_secret(chosen) else DEFAULT_SOURCE
    if _has_secret(with_options(Target(), options or {})):
        login_source = "the options"
    if chosen.token is None:
        added = _missing_login(chosen, _login_of(environment))
        chosen = with_options(chosen, added)
        if "password" in added or "token" in added:
            login_source = "the environment"
    return Resolved(chosen.with_default_login(), found.source, login_source)


def _has_secret(target: Target) -> bool:
    return target.token is not None or target.password is not None


def _without_other_login(target: Target, options: Mapping[str, object]) -> Target:
    """The target without a login that the options replace: a token, or the password of another user."""
    given = with_options(Target(), options)
    if given.token is not None:
        return replace(target, username=None, password=None)
    if given.username is not None:
        password = target.password if target.username == given.username else None
        return replace(target, token=None, username=None, password=password)
    return target


def _missing_login(target: Target, found: Mapping[str, str]) -> Mapping[str, str]:
    """What the environment adds to the login of a target: all of it, or the password of the same user."""
    if target.username is None and target.password is None:
        return {"token": found["token"]} if "token" in found else found
    missing = {name: value for name, value in found.items() if name != "token" and getattr(target, name) is None}
    is_other_user = target.username is not None and found.get("username", target.username) != target.username
    return {} if is_other_user else missing


def _base(target: str | Target | None, context: str | None, environment: Mapping[str, str]) -> Resolved:
    if isinstance(target, Target):
        return Resolved(target, "the argument")
    if target is not None and not isinstance(target, str):
        raise TypeError(f"the target must be a connection string or a Target, not {target!r}")
    if target:
        return Resolved(parse_target(target), "the argument")
    if context:
        return Resolved(load_contexts(environment).get(context).target(), f'context "{context}"')
    for variable in URL_VARIABLES:
        if url := environment.get(variable):
            return Resolved(parse_target(url), variable)
    if name := environment.get(CONTEXT_VARIABLE):
        return Resolved(load_contexts(environment).get(name).target(), f'context "{name}" of {CONTEXT_VARIABLE}')
    contexts = load_contexts(environment)
    if contexts.current is not None:
        return Resolved(contexts.get(contexts.current).target(), f'context "{contexts.current}"')
    return Resolved(Target(), DEFAULT_SOURCE)


def _login_of(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, variables in _LOGIN_VARIABLES.items():
        for variable in variables:
            if name not in found and (value := environment.get(variable)):
                found[name] = value
    return found
