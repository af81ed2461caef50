"""Whatever a commit to a table may meet: lost answers, repetitions, and others that write right before it."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServiceUnavailableError
from requests import ConnectionError as ConnectionLost

from courser.lake.iceberg_table import IcebergTable
from tests.lake.topic_tables import Runner

ANSWERS = (
    ConnectionLost("dropped"),
    CommitStateUnknownException("500"),
    ServiceUnavailableError("503"),
    CommitFailedException("409"),
)


class Meddling:
    """Stands before the catalog of a table, or before the handle of a Delta log, and decides what a commit meets."""

    def __init__(self, runner: Runner, dice: random.Random, deeds: Mapping[str, Callable[[], object]]) -> None:
        self._dice, self._deeds, self._is_inside = dice, deeds, False
        self.done: list[str] = []
        self.failures: list[Exception] = []
        """What others could not do: the table would take it for an answer to its own commit."""
        target, name = _committing(runner)
        self._commit = getattr(target, name)
        setattr(target, name, self)

    def __call__(self, *values: Any, **named: Any) -> Any:
        if self._is_inside:
            return self._commit(*values, **named)
        self._is_inside = True
        try:
            return self._meet(values, named)
        finally:
            self._is_inside = False

    def _meet(self, values: Any, named: Any) -> Any:
        choice = self._dice.choice(["nothing", "lost before", "lost after", "twice", *self._deeds])
        self.done.append(choice)
        match choice:
            case "lost before":
                raise self._dice.choice(ANSWERS)
            case "lost after":
                self._commit(*values, **named)
                raise self._dice.choice(ANSWERS)
            case "twice":
                self._commit(*values, **named)
            case "nothing":
                pass
            case _:
                try:
                    self._deeds[choice]()
                except Exception as error:  # noqa: BLE001 - shown at the end
                    self.failures.append(error)
        return self._commit(*values, **named)


def _committing(runner: Runner) -> tuple[Any, str]:
    if isinstance(runner.table, IcebergTable):
        return runner.table._catalog, "commit_table"
    return runner.table._table, "create_write_transaction"  # type: ignore[attr-defined]
