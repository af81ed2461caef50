"""``courser archive``: look at an archive, check it, restore from it. Needs the configuration, but no server."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from courser.archive.care import Verification, newest_intact_root, plan_removals, remove
from courser.archive.errors import ArchiveDamaged, ArchiveFailure, ArchiveTooNew
from courser.archive.reader import ArchiveReader, choose_cluster, open_archive_store
from courser.archive.restore_plan import RestorePlan, RestoreSelection, plan_restore
from courser.archive.restoring import RestoreProgress, Restorer
from courser.archive.settings import usable_store
from courser.cli.configuration_options import config_option, configuration_of, refused, set_option
from courser.cli.failures import ExitCode, Failure
from courser.cli.fields import Record, as_time, fields, size_text
from courser.cli.options import local_command, option, yes_option
from courser.cli.output import emit_deed, emit_list
from courser.cli.quantity_words import DURATION, parse_time
from courser.cli.terminal import confirm, progress, say
from courser.errors import ConfigurationRefused, StartRefused, StorageFailure
from courser.storage.local_files import LocalFileSystem, lock_directory

_EXITS = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."
_LIST_FIELDS = fields(
    "topic, partition_id=partition#, first_offset=first#, end_offset=end#, message_count=messages#, size#, "
    "object_count=objects#/2, first_timestamp=from/3, last_timestamp=to/1"
)
_FINDING_FIELDS = fields("key, kind, reason")
_REMOVAL_FIELDS = fields("key, size#")
_Function = TypeVar("_Function", bound=Callable[..., object])


def _archive_options(function: _Function) -> _Function:
    """The options that say which archive."""
    cluster = option(
        "--cluster ID", "The archive, by the beginning of its id, if there are several.", default="", show_default=False
    )
    return config_option(set_option(cluster(function)))


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors into failures with a hint."""
    try:
        yield
    except ConfigurationRefused as refusal:
        raise refused(refusal) from refusal
    except StartRefused as refusal:
        raise Failure(f"{refusal.path}: {refusal.reason}", refusal.remedy) from refusal
    except ArchiveDamaged as damage:
        hint = "courser archive verify lists all damage; courser archive restore --accept-older uses an older run"
        raise Failure(str(damage), hint) from damage
    except ArchiveTooNew as refusal:
        raise Failure(str(refusal), "nothing was done") from refusal
    except ArchiveFailure as failure:
        raise Failure(str(failure), "check [data_maintenance.archiver]: courser config show") from failure
    except StorageFailure as failure:
        raise Failure(str(failure), "run the command again: it continues where it stopped") from failure


def _reader(path: Path | None, settings: tuple[str, ...], cluster: str) -> ArchiveReader:
    store = open_archive_store(usable_store(configuration_of(path, settings)), LocalFileSystem(), os.urandom(16))
    return ArchiveReader(store, choose_cluster(store, cluster))


# --- looking ---


@local_command("ls", "courser archive ls --config server.toml", "courser archive ls 'shop/*' -o json", exits=_EXITS)
@click.argument("topics", metavar="[STREAM/TOPIC]...", nargs=-1)
@_archive_options
def ls_command(
    *, topics: tuple[str, ...], path: Path | None, settings: tuple[str, ...], cluster: str, output: str
) -> None:
    """List what the archive has of each partition, as of its last run."""
    with _explained():
        reader = _reader(path, settings, cluster)
        plan = plan_restore(reader, RestoreSelection(topics=topics))
        if output == "table":
            root = plan.root
            say(f"{reader.store.name}: archive {plan.cluster.hex()}, epoch {root.epoch}, {as_time(root.root.time)}")
            say(f"restores are possible from {as_time(reader.oldest_time())} on")
        emit_list(_LIST_FIELDS, _rows(plan), output, empty="the archive has no topics")


def _rows(plan: RestorePlan) -> Iterator[Record]:
    for found in plan.partitions:
        pieces = found.manifest.pieces
        yield {
            "topic": f"{found.stream.name}/{found.topic.name}",
            "partition_id": found.partition.partition_id,
            "first_offset": pieces[0].first_offset if pieces else None,
            "end_offset": pieces[-1].end_offset if pieces else None,
            "message_count": sum(piece.message_count for piece in pieces),
            "size": sum(piece.size for piece in pieces),
            "object_count": len(pieces),
            "first_timestamp": pieces[0].first_timestamp if pieces else None,
            "last_timestamp": pieces[-1].last_timestamp if pieces else None,
        }


@local_command(
    "verify",
    "courser archive verify --config server.toml",
    "courser archive verify --quick",
    exits="Exit codes: 0 everything is right, 1 failed, 2 damage found, or wrong usage or configuration.",
)
@option("--quick", "Compare only the sizes of objects, and do not read them.")
@_archive_options
def verify_command(*, quick: bool, path: Path | None, settings: tuple[str, ...], cluster: str, output: str) -> int:
    """Read every object of the last run, and check that it is what was archived. A server may be running."""
    with _explained():
        reader = _reader(path, settings, cluster)
        root, findings = newest_intact_root(reader)
        if root is None and not findings:
            raise Failure("the archive is empty: no run has been completed yet", "wait for the archiver")
        object_count, size = len(findings), 0
        if root is not None:
            verification = Verification(reader, root, not quick)
            with progress("verifying", verification.begin()) as verification.on_progress:
                # Show the table after the progress bar has disappeared.
                findings += verification.findings()
            object_count, size = object_count + verification.object_count, verification.size
        records: list[Record] = [
            {"key": found.key, "kind": found.kind.value, "reason": found.reason} for found in findings
        ]
        emit_list(_FINDING_FIELDS, records, output)
    say(f"{object_count} objects, {size_text(size)}, {len(findings)} damaged or missing")
    return ExitCode.DAMAGE if findings else ExitCode.OK


# --- restoring ---


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = parse_time(text)
    if found is None:
        raise click.BadParameter(f'"{text}" is not a time such as 2026-11-18T04:00:00Z or 2h ago')
    return found


@local_command(
    "restore",
    "courser archive restore new_data --config server.toml",
    "courser archive restore rescued --topic 'shop/*' --until '2h ago'",
    "courser archive restore standby --follow",
    exits=_EXITS,
)
@click.argument("directory", type=click.Path(path_type=Path))
@option(
    "--topic STREAM/TOPIC",
    "Only these topics; * stands for any text. May be repeated. The result starts an archive of its own.",
    "topics",
    multiple=True,
)
@option("--until TIME", "Leave out what was stored or changed after this time.", callback=_time)
@option("--accept-older", "If the last run is damaged, use the one before it.")
@option("--force", "Move existing data to a subdirectory named replaced.")
@option("--follow", "Keep the directory current until Ctrl-C: a cold standby.")
@option("--interval DURATION", "With --follow: time between two looks at the archive.", type=DURATION, default="10s")
@_archive_options
def restore_command(
    *,
    directory: Path,
    topics: tuple[str, ...],
    until: int | None,
    accept_older: bool,
    force: bool,
    follow: bool,
    interval: int,
    path: Path | None,
    settings: tuple[str, ...],
    cluster: str,
    output: str,
) -> None:
    """Make a data directory from the archive: metadata, messages and stored offsets as of its last run.

    Everything is checked while it is written. An interrupted restore continues where it stopped. Until it is complete,
    no server starts on the directory.
    """
    if follow and until is not None:
        raise click.UsageError("--follow keeps the directory current, so it cannot be used with --until")
    selection = RestoreSelection(topics=topics, until=until)
    with _explained():
        reader = _reader(path, settings, cluster)
        directory.mkdir(0o700, parents=True, exist_ok=True)
        lock = lock_directory(directory)
        try:
            restorer = Restorer(reader.store, LocalFileSystem(), directory)
            plan = _plan(reader, selection, accepts_older=accept_older)
            done = _restore(restorer, plan, is_forced=force)
            _say_restored(directory, plan, done, output)
            if follow:
                _follow(restorer, plan, partial(_plan, reader, selection, accepts_older=accept_older), interval, output)
        finally:
            lock.close()


def _plan(reader: ArchiveReader, selection: RestoreSelection, *, accepts_older: bool) -> RestorePlan:
    """What to restore. Says which runs are passed over."""
    passed_over: list[ArchiveFailure] = []
    plan = plan_restore(reader, selection, passed_over=passed_over if accepts_older else None)
    for failure in passed_over:
        say(f"warning: {failure}; using the run before it")
    return plan


def _restore(restorer: Restorer, plan: RestorePlan, *, is_forced: bool = False, is_update: bool = False) -> int:
    """Carry out a plan; returns how many bytes were downloaded."""
    with progress("restoring", plan.size) as step:
        reported = 0

        def report(progress: RestoreProgress) -> None:
            nonlocal reported
            step(progress.done_size - reported)
            reported = progress.done_size

        restorer.report = report
        return restorer.restore(plan, is_forced=is_forced, is_update=is_update).downloaded_size


def _say_restored(directory: Path, plan: RestorePlan, downloaded_size: int, output: str) -> None:
    record: Record = {
        "directory": str(directory),
        "cluster": plan.cluster.hex(),
        "epoch": plan.root.epoch,
        "number": plan.root.number,
        "time": plan.root.root.time,
        "partition_count": len(plan.partitions),
        "message_count": plan.message_count,
        "size": plan.size,
        "downloaded_size": downloaded_size,
    }
    counts = f"{plan.message_count} messages of {len(plan.partitions)} partitions"
    when = as_time(plan.root.root.time)
    emit_deed(
        f"restored {counts} to {directory}, as of {when} ({size_text(downloaded_size)} downloaded)", record, output
    )


def _follow(
    restorer: Restorer, last: RestorePlan, find_plan: Callable[[], RestorePlan], interval: int, output: str
) -> None:
    """Restore each new run. A store that does not answer is asked again."""
    while True:
        time.sleep(interval / 1_000_000)
        try:
            plan = find_plan()
            if plan.name == last.name:
                continue
            if plan.root.place < last.root.place:
                say(f"warning: the last run that was restored is not in the archive any more: {last.name}")
                continue
            _say_restored(restorer.directory, plan, _restore(restorer, plan, is_update=True), output)
            last = plan
        except ArchiveFailure as failure:
            say(f"warning: {failure}; trying again")


# --- removing ---


@local_command("prune", "courser archive prune --keep 30d --yes", "courser archive prune --dry-run", exits=_EXITS)
@option("--keep DURATION", "How far back a restore with --until stays possible.", type=DURATION, default="7d")
@option("--dry-run", "Only list what would be removed.")
@yes_option
@_archive_options
def prune_command(
    *,
    keep: int,
    dry_run: bool,
    is_confirmed: bool,
    path: Path | None,
    settings: tuple[str, ...],
    cluster: str,
    output: str,
) -> None:
    """Remove objects that no restore needs: merged pieces, purged messages, deleted topics, old metadata.

    Messages that a topic still has in the archive are never removed. A server may be running.
    """
    with _explained():
        reader = _reader(path, settings, cluster)
        removals = plan_removals(reader, time.time_ns() // 1000 - keep)
        size = sum(removal.size for removal in removals)
        if dry_run:
            emit_list(
                _REMOVAL_FIELDS,
                ({"key": removal.key, "size": removal.size} for removal in removals),
                output,
                empty="nothing to remove",
            )
            return
        if removals:
            confirm(f"remove {len(removals)} objects ({size_text(size)}) from the archive", is_confirmed=is_confirmed)
        with progress("removing", size) as step:
            remove(reader, removals, lambda removal: step(removal.size))
        record: Record = {"object_count": len(removals), "size": size}
        emit_deed(f"removed {len(removals)} objects ({size_text(size)})", record, output)
