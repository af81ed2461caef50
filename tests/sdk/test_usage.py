"""The record of what was used: it must notice what was not."""

import types

from tests.sdk.programs.usage import RecordedModule


def example() -> types.ModuleType:
    class Client:
        def connect(self) -> str:
            return "connected"

        @staticmethod
        def make() -> "Client":
            return Client()

        @property
        def name(self) -> str:
            return "client"

    class Strategy:
        class First:
            pass

        class Last:
            pass

    module = types.ModuleType("example")
    module.__dict__.update(Client=Client, Strategy=Strategy)
    return module


def test_at_first_everything_is_unused() -> None:
    module = RecordedModule(example())
    names = ["Client", "Client.connect", "Client.make", "Client.name", "Strategy", "Strategy.First", "Strategy.Last"]
    assert module.unused() == names


def test_what_is_called_read_or_made_is_used_and_works_as_before() -> None:
    module = RecordedModule(example())
    client = module.Client.make()
    assert (client.connect(), client.name) == ("connected", "client")
    assert isinstance(module.Strategy.First(), module.Strategy.First)
    assert module.unused() == ["Strategy.Last"]
