"""Whether the other processes answer: the first one asks each of them twice a second.

A process can be there and do nothing: somebody has stopped it (SIGSTOP), or its event loop waits for a disk that hangs.
Whoever has asked it for something would wait for ever. So a process that is silent for too long is ended, which ends
all these waits, and started again. Health checks and metrics do not wait that long: they name it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from courser.processes.links import RESTART_PATIENCE
from courser.processes.peer import Peer

HEARTBEAT = "heartbeat"
"""What a process is asked. It answers at once, if its event loop runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a process may be silent, by what waits for it. The defaults are those of production."""

    interval: float = 0.5
    """Between two questions."""
    figures: float = 0.75
    """Health and metrics answer without it, and within a second."""
    hint: float = 0.2
    """A process that is late with its figures and with the answer to a question is not waited for. The last question
    is then at least so old, because ``interval`` and this are less than ``figures``."""
    silence: float = RESTART_PATIENCE
    """It is ended. So requests fail after at most twice the time that they wait for a process that is restarted."""
    blocking: float = 5.0
    """It is ended while the metadata waits for it: then nobody else can change any, or be started again."""
    stopping: float = 3.0
    """It is ended while the server stops, which takes ten seconds at most."""
    starting: float = 120.0
    """It is ended without ever having answered. It loads its modules first, which takes long on a busy machine."""
    leaving: float = 1.0
    """It has not ended although it was killed, as the kernel waits for the disk. What it was asked fails anyway."""


USUAL_PATIENCE = Patience()


class _Pulse:
    """What is known about one process."""

    __slots__ = ("asked_at", "has_answered", "question", "silence")

    def __init__(self, question: "asyncio.Future[Any]", asked_at: float) -> None:
        self.question = question
        self.asked_at = asked_at
        self.silence = 0.0
        self.has_answered = False


class PeerSupervisor(Protocol):
    """Knows what the processes are needed for, and ends them."""

    def patience_with(self, peer: Peer, has_answered: bool) -> float:
        """For how many seconds a process may be silent, which may have answered before or not."""

    def end_silent(self, peer: Peer, silence: float) -> None:
        """One was silent for longer. Called once."""


class PeerHeartbeats:
    """Asks all other processes whether they live."""

    def __init__(self, interval: float, supervisor: PeerSupervisor) -> None:
        self._interval = interval
        self._supervisor = supervisor
        self._pulses: dict[Peer, _Pulse] = {}

    def watch(self, peer: Peer) -> None:
        """A process was just started."""
        self._pulses[peer] = _Pulse(peer.call(HEARTBEAT), asyncio.get_running_loop().time())

    def age_of_question(self, peer: Peer) -> float:
        """For how many seconds a process has not answered the last question."""
        pulse = self._pulses.get(peer)
        return 0.0 if pulse is None or pulse.question.done() else asyncio.get_running_loop().time() - pulse.asked_at

    async def run(self) -> None:
        """Ask all of them, again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._interval)
            now = loop.time()
            # Not more: if this process stood still itself, it has not heard the others.
            self._ask_all(now, min(now - last, 2 * self._interval))
            last = now

    def _ask_all(self, now: float, elapsed: float) -> None:
        for peer, pulse in tuple(self._pulses.items()):
            if not peer.is_open:
                del self._pulses[peer]
            elif pulse.question.done():
                pulse.has_answered, pulse.silence = True, 0.0
                pulse.question, pulse.asked_at = peer.call(HEARTBEAT), now
            else:
                pulse.silence += elapsed
                if pulse.silence >= self._supervisor.patience_with(peer, pulse.has_answered):
                    del self._pulses[peer]
                    self._supervisor.end_silent(peer, pulse.silence)
