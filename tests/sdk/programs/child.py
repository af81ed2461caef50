"""A program that uses the SDK, led by a test: one JSON request a line on standard input, one answer a line back.

Requests: ``{"id": 1, "do": "send", "with": {...}}`` for an act of ``Steps``, ``"run"`` for a scenario, ``"unused"`` for
what of the SDK nobody has touched yet. Answers: ``{"id": 1, "result": ...}`` or ``{"id": 1, "error": "traceback"}``.
Requests may overlap. Lines with ``"event"`` in them are answers to nothing.
"""

import asyncio
import importlib
import json
import sys
import traceback
from typing import Any

from tests.sdk.programs.catalogue import scenario_named, scenarios_of
from tests.sdk.programs.sdk import Sdk
from tests.sdk.programs.steps import Steps

SCENARIO_PATIENCE = 200.0
"""Seconds of a scenario. Left alone, an SDK waits five seconds before it connects again, and some do so often.
On a busy machine a scenario of ten parts takes ten times as long as on an idle one."""


class Child:
    """The loop over requests."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self._steps = Steps(sdk, self._say)
        self._has_run: set[str] = set()

    async def serve(self) -> None:
        """Until standard input ends."""
        reader = asyncio.StreamReader(limit=1 << 26)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        answering: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = asyncio.create_task(self._answer(json.loads(line)))
            answering.add(task)
            task.add_done_callback(answering.discard)

    async def _answer(self, request: dict[str, Any]) -> None:
        try:
            result = await self._do(request["do"], request["with"])
        except BaseException as error:  # noqa: BLE001 - a panic of the SDK is no Exception, and the test wants to know
            self._say(id=request["id"], error="".join(traceback.format_exception(error)), text=str(error))
        else:
            self._say(id=request["id"], result=result)

    async def _do(self, what: str, arguments: dict[str, Any]) -> Any:
        if what == "run":
            return await self._run(arguments["scenario"])
        if what == "unused":
            for scenario in scenarios_of(self._sdk.release):
                if scenario.name not in self._has_run:
                    await self._run(scenario.name)
            return self._sdk.iggy.unused()
        return await getattr(self._steps, what)(**arguments)

    async def _run(self, name: str) -> None:
        self._has_run.add(name)
        await asyncio.wait_for(scenario_named(name).body(self._sdk), SCENARIO_PATIENCE)

    @staticmethod
    def _say(**line: Any) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main(release: str, address: str, token: str) -> None:
    asyncio.run(Child(Sdk(release, address, importlib.import_module("apache_iggy"), token)).serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
