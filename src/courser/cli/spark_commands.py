"""``courser spark``: what the workers of Spark need."""

from dataclasses import asdict
from pathlib import Path

import click

from courser.cli.failures import Failure
from courser.cli.fields import size_text
from courser.cli.job_support import LocalPath, prepare_spark
from courser.cli.options import local_command, option
from courser.cli.output import emit_deed
from courser.spark.packing import PackFailed, instructions, make_pack


@local_command(
    "pack",
    "courser spark pack",
    "courser spark pack orders.tar.gz --add requests --add 'courser[lake]'",
    exits="Exit codes: 0 done, 1 failed, 2 wrong usage.",
)
@click.argument("file", default="courser.tar.gz", type=LocalPath(path_type=Path, dir_okay=False))
@option("--add PACKAGE", "Pack another installed package too, with what it needs.", "added", multiple=True)
def pack_command(*, file: Path, added: tuple[str, ...], output: str) -> None:
    """Pack this Python with Courser into an archive for workers on which nothing is installed.

    FILE, by default courser.tar.gz, contains the interpreter, its libraries, Courser and what it needs, but no Spark
    and no Java. It suits workers with the same kind of processor, and a C library that is not older than the one here.
    What was packed is started once before it is written. The command then prints how to use the archive.
    """
    prepare_spark(may_install=False)
    try:
        pack = make_pack(file, added)
    except PackFailed as error:
        raise Failure(str(error), "pip list shows what is installed") from error
    needs = f", for workers with glibc {pack.glibc} or newer" if pack.glibc else ""
    sentence = f"packed {len(pack.packages)} packages into {pack.path} ({size_text(pack.size)}){needs}"
    emit_deed(f"{sentence}\n\n{instructions(pack.path)}", asdict(pack), output)
