"""docs/reference: written from the client, complete; its examples run."""

import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator

import msgspec
import pytest

import courser
from courser import errors
from courser.client.client import Client
from courser.errors import NotFound
from courser.testing.broker import SyncTestBroker, TestBroker
from tests.servers import RunningServer
from tools.client_pages import REPLIES, Reference
from tools.public_names import ClassName, FunctionName, PublicName

REFERENCE = Reference()
NAMES = {name.path: name for name in REFERENCE.names()}
OWN = {path: name for path, name in NAMES.items() if name not in REFERENCE.pages[REPLIES]}
"""Without replies, which are only values."""
FUNCTIONS = [name for name in OWN.values() if isinstance(name, FunctionName)]
CLASSES = [name for name in OWN.values() if isinstance(name, ClassName)]
SYNC = {name.path for entry in REFERENCE.pages["sync"] for name in (entry,)} | {"connect_sync", "SyncTestBroker"}
EXAMPLES = [name for name in OWN.values() if name.docstring.example]

_PLAIN_TYPES = frozenset(
    {"Any", "Callable", "Iterable", "Iterator", "Mapping", "NDArray", "None", "Path", "Sequence"}
    # What only tests and tools use, and what stands for any type.
    | {"Batch", "Command", "Connection", "Decoded", "Dial", "UserHeader"}
    # Of OpenTelemetry.
    | {"Context"}
    # What `Partitioning` returns; it is passed on as it is.
    | {"Balanced", "ByKey", "ToPartition"}
)
_ADDRESS = "127.0.0.1:8090"
_PERMISSIONS = ("Permissions", "GlobalPermissions", "StreamPermissions", "TopicPermissions")


# --- complete -----------------------------------------------------------------------------------------


def test_every_name_of_the_package_has_an_entry() -> None:
    exported = {
        name for name in dir(courser) if getattr(getattr(courser, name), "__module__", "").startswith("courser.")
    }
    assert "connect" in exported
    assert exported <= NAMES.keys()


def test_every_method_of_the_client_has_an_entry() -> None:
    methods = {f"Client.{name}" for name, _ in inspect.getmembers(Client, callable) if not name.startswith("_")}
    assert methods <= NAMES.keys()


def test_every_error_that_the_client_raises_has_an_entry() -> None:
    bases = (errors.RequestFailed, errors.ClientFailure)
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, bases)}
    assert kinds - {"ClientFailure"} <= NAMES.keys()


def test_every_name_has_a_meaning() -> None:
    assert [path for path, name in NAMES.items() if not name.docstring.meaning] == []
    fields = [
        f"{entry.path}.{value.name}"
        for entry in CLASSES
        if entry.path not in _PERMISSIONS
        for value in entry.values
        if not value.meaning
    ]
    assert fields == []


def test_every_class_and_every_function_with_arguments_to_explain_has_an_example() -> None:
    """The errors share one. A type that is only an alias needs none."""
    with_arguments = [function for function in FUNCTIONS if function.docstring.entries("Args")]
    missing = [name.path for name in (*with_arguments, *CLASSES) if not any(examples_of(name))]
    assert missing == []


def examples_of(name: PublicName) -> Iterator[str]:
    yield name.docstring.example
    if name in REFERENCE.pages["errors"]:
        yield OWN["CourserError"].docstring.example
    if name.path in _PERMISSIONS:
        yield OWN["Permissions"].docstring.example


def test_errors_are_listed_where_the_reference_looks_for_them() -> None:
    for name in OWN.values():
        assert "Raises ``" not in name.docstring.meaning, name.path
        for error in name.docstring.entries("Raises"):
            known = [getattr(place, error.removeprefix("msgspec."), None) for place in (errors, builtins, msgspec)]
            assert any(inspect.isclass(kind) and issubclass(kind, Exception) for kind in known), (name.path, error)


def test_types_in_signatures_have_entries() -> None:
    known = {*NAMES, *_PLAIN_TYPES}
    unknown = {
        (name.path, word)
        for name in FUNCTIONS
        for word in re.findall(r"\b[A-Z]\w+", f"{name.returns} {' '.join(kind for _, kind in name.parameters)}")
        if word not in known
    }
    assert unknown == set()


# --- true ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.path not in SYNC], ids=lambda name: name.path)
async def test_an_example_runs(name: PublicName, request: pytest.FixtureRequest) -> None:
    code = name.docstring.example
    if "courser.connect(" in code and "dial" not in code:
        running: RunningServer = request.getfixturevalue("server")
        url = f"iggy://iggy:iggy@{running.address}"
        code = code.replace("courser.connect()", f'courser.connect("{url}")').replace(_ADDRESS, running.address)
    async with TestBroker() as broker:
        client = await broker.connect()
        await client.create_stream("shop")
        await client.create_topic("shop/orders", partitions_count=2)
        await client.send_messages("shop/orders", partitioning=0, messages=[{"n": n} for n in range(3)])
        names = {"client": client, "courser": courser}
        exec("async def example():\n" + textwrap.indent(code, "    "), names)
        await names["example"]()  # type: ignore[operator]  # the code defines it


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.path in SYNC], ids=lambda name: name.path)
def test_a_sync_example_runs(name: PublicName, request: pytest.FixtureRequest) -> None:
    code = name.docstring.example
    if "courser.connect_sync(" in code:
        code = code.replace(_ADDRESS, request.getfixturevalue("server").address)
    with SyncTestBroker() as broker:
        client = broker.connect()
        client.create_stream("shop")
        client.create_topic("shop/orders", partitions_count=2)
        client.send_messages("shop/orders", partitioning=0, messages=[{"n": n} for n in range(3)])
        exec(code, {"client": client, "courser": courser})


async def test_what_does_not_exist_is_an_error_as_documented() -> None:
    """Every method that is given the name of something raises the error that the class and the index speak of."""
    assert "``NotFound``" in OWN["Client"].docstring.meaning
    values: dict[str, object] = dict.fromkeys(("batch", "part", "attempt", "chunk", "timestamp", "first_offset"), 0)
    values |= {"stream": "nowhere/nothing", "user": "nobody", "consumer_group": "billing", "sink": "loader"}
    values |= {"current_password": "a-password", "new_password": "a-password", "permissions": None}
    values |= {"messages": ["hello"], "positions": {0: 0}, "to": "earliest"}
    async with TestBroker() as broker:
        client = await broker.connect()
        methods = [name for name in FUNCTIONS if name.path.startswith("Client.") and name.is_request]
        for method in methods:
            parameters = dict(method.parameters)
            if not {"stream", "user"} & parameters.keys():
                continue
            function = getattr(client, method.path.removeprefix("Client."))
            given = {key: values[key] for key in inspect.signature(function).parameters if key in values}
            if "topic" not in parameters and "stream" in given and "create_topic" not in method.path:
                given["stream"] = "nowhere"
            if "name" in parameters and "topic" not in method.path:
                given["name"] = "new"
            with pytest.raises(NotFound):
                await function(**given)
