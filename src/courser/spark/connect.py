"""Sessions on a Spark server (Spark Connect). This side has no Java and no SparkContext.

The format ``courser`` runs on the server: there Spark looks for it, plans reads and publishes writes.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from courser.errors import ClientFailure, CourserError
from courser.spark.packing import FOLDER, PYTHON, SQL_PYTHON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = "sc://"
_PORT = 15002
"""Spark's default."""
_ANSWER_TIME_MAX = 10.0
"""Seconds to wait for a connection. Spark itself tries for ten minutes without a word."""
_RETRY_COUNT = 5
"""Calls of a session whose owner starts again after a failure: their pauses add up to 17 seconds."""


class SparkUnreachable(ClientFailure):
    """No Spark server answers at an address."""


class RefusedBySparkServer(ClientFailure):
    """Something that cannot be done through a Spark server."""


class ConnectMissing(CourserError):
    """The packages are missing with which pyspark talks to a Spark server."""


class SparkMissing(CourserError):
    """There is only the part of pyspark that talks to a Spark server."""

    def __str__(self) -> str:
        return (
            "pyspark-client contains no Spark of its own; name a Spark server (sc://host:port), or use an environment "
            "with pyspark in its place"
        )


def is_remote(master: str) -> bool:
    """Whether this is the address of a Spark server."""
    return master.startswith(_SCHEME)


def is_client_only() -> bool:
    """Whether the pyspark that is installed has no Spark of its own."""
    from pyspark.util import is_remote_only  # noqa: PLC0415 -- optional

    return is_remote_only()


def runs_remotely(spark: "SparkSession") -> bool:
    """Whether a session is one on a Spark server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def remote_session(
    url: str, settings: Mapping[str, str], *, pack: str | None = None, is_supervised: bool = False
) -> "SparkSession":
    """A session on a Spark server: the one that this process has, or a new one.

    Args:
        url: ``sc://host:port``, with parameters if the server wants them.
        settings: Settings of the session.
        pack: An archive of ``courser spark pack`` for the server's workers.
        is_supervised: Always make a new session, and let its calls fail soon: its owner starts again.

    Raises:
        SparkUnreachable: there is no server.
        ConnectMissing: pyspark lacks packages for this.
        RefusedBySparkServer: a setting cannot be changed after the start of the server.
    """
    _check_packages()
    _check_reachable(url)
    from pyspark.errors import AnalysisException  # noqa: PLC0415 -- optional
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    builder = SparkSession.builder.remote(url)
    session: SparkSession = builder.create() if is_supervised else builder.getOrCreate()
    if is_supervised:
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRY_COUNT)])
    if pack is not None:
        session.addArtifact(f"{pack}#{FOLDER}", archive=True)
    for name, value in (settings if pack is None else {SQL_PYTHON: PYTHON} | dict(settings)).items():
        try:
            session.conf.set(name, value)
        except AnalysisException as error:
            raise RefusedBySparkServer(
                f"{name} cannot be set through a Spark server; set it where the server {_shown(url)} is started"
            ) from error
    return session


def check_shared(spark: "SparkSession", path: Path) -> None:
    """Raises ``RefusedBySparkServer`` if the Spark server does not see a file of this machine."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    try:
        assert spark.read.text(path.as_uri()).columns
    except AnalysisException as error:
        raise RefusedBySparkServer(
            f"the Spark server does not see {path}; checkpoints and lakes must be in folders that this machine and the "
            "server have mounted under the same path"
        ) from error


def _check_packages() -> None:
    import pyspark  # noqa: PLC0415

    try:
        import pyspark.sql.connect.session  # noqa: PLC0415
    except ImportError as error:
        said = " ".join(str(error).split())
        raise ConnectMissing(
            f"{said} To talk to a Spark server, run: pip install 'pyspark[connect]=={pyspark.__version__}'"
        ) from error


def _check_reachable(url: str) -> None:
    try:
        place = urlsplit(url)
        host, port = place.hostname, place.port or _PORT
    except ValueError:
        host, port = None, _PORT
    if not host:
        raise RefusedBySparkServer(f"{url[:80]} is not the address of a Spark server; write sc://host:port")
    try:
        socket.create_connection((host, port), _ANSWER_TIME_MAX).close()
    except OSError as error:
        raise SparkUnreachable(
            f"no Spark server answers at {_SCHEME}{host}:{port}: {error.strerror or error}; Spark starts one with "
            "sbin/start-connect-server.sh"
        ) from error


def _shown(url: str) -> str:
    """Without parameters: one of them is a token."""
    return url.split("/;", 1)[0].rstrip("/")
