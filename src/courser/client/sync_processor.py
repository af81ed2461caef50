"""The sync twin of the processor."""

from concurrent.futures import wait
from types import TracebackType
from typing import Self

from courser.client.blocking import LoopThread, blocking
from courser.client.processing import Processor


class SyncProcessor:
    """Runs a handler over the messages of a topic. Made by ``SyncClient.process``; see ``Processor``.

    ``run`` returns after ``stop``, which another thread, a handler or a signal handler calls, or at the end of the
    topic with ``stop_at_end``. In ``with`` it runs in the background until the end of the block.

    Example:
        processor = client.process("shop/orders", print, group="printing", stop_at_end=True)
        processor.run()
        processor.stop()
        print(processor.handled_count)
    """

    def __init__(self, original: Processor, thread: LoopThread) -> None:
        self._original = original
        self._thread = thread

    @property
    def handled_count(self) -> int:
        """Messages for which the handler succeeded."""
        return self._original.handled_count

    @property
    def retry_count(self) -> int:
        """How often a handler was called again after an error."""
        return self._original.retry_count

    @property
    def dead_letter_count(self) -> int:
        """Messages that were sent to the dead-letter topic."""
        return self._original.dead_letter_count

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are assigned to this processor."""
        return self._original.partitions

    @property
    def is_ended(self) -> bool:
        """Whether it has run to its end."""
        return self._original.is_ended

    close = blocking(Processor.close)

    def run(self) -> None:
        """Process messages until the end; see ``Processor.run``. An interrupt stops it in order."""
        running = self._thread.begin(self._original.run())
        try:
            wait((running,))
        except BaseException:
            self.stop()
            wait((running,))
            raise
        running.result()

    def stop(self) -> None:
        """End when the running handlers are done; see ``Processor.stop``. May be called more than once."""
        if not self._thread.loop.is_closed():
            self._thread.loop.call_soon_threadsafe(self._original.stop)

    def __enter__(self) -> Self:
        opened = self._thread.call(self._original.__aenter__())
        assert opened is self._original
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._original.__aexit__(kind, error, trace))
