"""Draw tables, charts and progress bars on a terminal. The only module that imports rich."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.bar import Bar
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from courser.cli.fields import Fields


def draw_table(columns: Fields, lines: Sequence[tuple[str, ...]], alarms: Sequence[bool]) -> None:
    """Draw a table on stdout. Rich itself honors NO_COLOR and dumb terminals."""
    _stdout().print(_table(columns, lines, alarms))


def live_table() -> tuple[
    AbstractContextManager[object],
    Callable[[Fields, Sequence[tuple[str, ...]], Sequence[bool]], None],
    Callable[[str], None],
]:
    """A table on stdout that is redrawn: its context manager, a function to draw it, and one to print above it."""
    console = _stdout()
    live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def draw(columns: Fields, lines: Sequence[tuple[str, ...]], alarms: Sequence[bool]) -> None:
        live.update(_table(columns, lines, alarms), refresh=True)

    return live, draw, console.print


def _stdout() -> Console:
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def _table(columns: Fields, lines: Sequence[tuple[str, ...]], alarms: Sequence[bool]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title.upper(), justify="right" if column.is_number else "left", overflow="fold")
    # The last column holds sentences, which wrap between words. The other columns do not wrap, except for paths.
    for drawn in table.columns[:-1]:
        drawn.no_wrap = drawn.header != "FILE"
    for line, is_alarming in zip(lines, alarms, strict=True):
        # Text, not strings: square brackets in a payload are not markup.
        table.add_row(*map(Text, line), style="red" if is_alarming else None)
    return table


def draw_bars(title: str, bars: Sequence[tuple[str, float, str]]) -> None:
    """Draw a bar chart on stdout. Each bar has a name, a length and a label after it."""
    longest = max((length for _, length, _ in bars), default=0.0) or 1.0
    table = Table(box=None, pad_edge=False, show_header=False, title=title, title_justify="left", title_style="bold")
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, length, remark in bars:
        table.add_row(Text(name), Bar(longest, 0, length, color="cyan"), Text(remark))
    table.expand = True
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def progress_bar(text: str, size: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr that counts bytes. It disappears when the work is done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # Rich must not touch stdout: it may be a pipe with data.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(text, total=max(size, 1))
        yield lambda count: progress.advance(task, count)


@contextmanager
def status_bar(text: str) -> Iterator[Callable[[str, float | None, str], None]]:
    """A progress bar on stderr for work in steps: takes the step, its progress from 0 to 1 (or None) and a remark."""
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.fields[remark]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(text, total=None, remark="")
        shown = text

        def show(step: str, share: float | None, remark: str) -> None:
            nonlocal shown
            total = None if share is None else 1.0
            # Draw at once, so that a short step is visible too.
            is_new, shown = step != shown, step
            progress.update(task, description=step, total=total, completed=share or 0.0, remark=remark, refresh=is_new)

        yield show
