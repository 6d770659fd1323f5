"""An object store that speaks S3, on this host alone: moto's server, in a thread of the test process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

BUCKET = "data"
_SETTINGS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1"}


def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket, that this process and those it starts can reach."""
    import boto3  # late: together they take a second of each process that collects tests
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it tells of every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**_SETTINGS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}"
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()
