"""A real S3 server for the tests: SeaweedFS, on loopback, in a directory of its own."""

import contextlib
import json
import subprocess
import sys
import time
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]

from courser.archive.settings import StoreKind, StoreSettings
from tests.servers import PATIENCE, free_port

ACCESS_KEY, SECRET_KEY = "tester", "a secret of the tests"
READER_KEY, READER_SECRET = "reader", "another secret"


class SeaweedServer:
    """One server. As a context manager it runs from begin to end of the block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._ports: list[int] = []
        while len(self._ports) < 8:
            port = free_port()
            self._ports += [port] if port not in self._ports else []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports[6]}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        users = self._directory / "users.json"
        users.write_text(json.dumps({"identities": [_user(ACCESS_KEY, SECRET_KEY), _user(READER_KEY, READER_SECRET)]}))
        names = ("master", "volume", "filer", "s3")
        ports = [
            f"-{name}.port{suffix}={self._ports[2 * number + place]}"
            for number, name in enumerate(names)
            for place, suffix in enumerate(("", ".grpc"))
        ]
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        with (self._directory / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    Path(sys.executable).parent / "weed",
                    "server",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-dir={data}",
                    # Usage reports would go to an outside address.
                    "-master.telemetry=false",
                    "-master.electionTimeout=1s",
                    "-master.volumeSizeLimitMB=64",
                    "-volume.max=0",
                    "-filer",
                    "-s3",
                    f"-s3.config={users}",
                    "-s3.autoCreateBucket=false",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    *ports,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, (self._directory / "output.txt").read_text()[-2000:]
            try:
                names = [found["Name"] for found in self.client.list_buckets()["Buckets"]]
                if "ready" not in names:
                    self.client.create_bucket(Bucket="ready")
                self.client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            except Exception:  # noqa: BLE001 - whatever it is: it is not ready
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)
            else:
                return
        raise AssertionError("the server is not ready")

    def stop(self) -> None:
        """Kill it: nobody needs what it has."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @cached_property
    def client(self) -> Any:
        """A second opinion on what is in a bucket."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}, connect_timeout=5),
        )

    def objects(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Keys and sizes."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", ())}

    def settings(self, bucket: str, **values: Any) -> StoreSettings:
        given = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }
        return StoreSettings(kind=StoreKind.S3, bucket=bucket, **given | values)


def _user(key: str, secret: str) -> dict[str, object]:
    actions = ["Admin", "Read", "Write", "List"] if key == ACCESS_KEY else ["Read", "List"]
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
