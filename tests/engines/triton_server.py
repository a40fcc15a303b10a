"""The real Triton Inference Server, as scripts/engines/triton installs it, with the model
repository beside this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import ServerProcess, free_port

PROGRAM = Path(__file__).resolve().parents[2] / ".cache" / "engines" / "triton" / "tritonserver"
MODELS = Path(__file__).resolve().parent / "triton" / "models"
COMMAND = (
    "tritonserver --model-repository={models} --exit-timeout-secs=2 "
    "--http-address=127.0.0.1 --http-port={http} --grpc-address=127.0.0.1 --grpc-port={grpc} "
    "--metrics-address=127.0.0.1 --metrics-port={metrics}"
)
"""As docs/engines.md shows it. The Python process of the model finds its parent gone within a
second; the server itself need not wait longer than two."""
_READY_TIMEOUT_S = 60.0


class TritonServer(NamedTuple):
    """A running server: URLs of its HTTP, gRPC and metrics ports."""

    process: ServerProcess
    http: str
    grpc: str
    metrics: str


def missing() -> str | None:
    """Why there is no server to launch, if there is none."""
    return (
        None if PROGRAM.is_file() else "no Triton server: scripts/engines/triton has not been run"
    )


@contextmanager
def triton(log_path: Path, *extra: str) -> Iterator[TritonServer]:
    """A ready server on free ports of 127.0.0.1, gone after the block. Raises TargetError where it
    does not start."""
    ports = [free_port() for _ in range(3)]
    while len(set(ports)) < 3:
        ports = [free_port() for _ in range(3)]
    http, grpc, metrics = ports
    words = COMMAND.split()[1:]
    given = [word.format(models=MODELS, http=http, grpc=grpc, metrics=metrics) for word in words]
    url = f"http://127.0.0.1:{http}"
    command, ready = [str(PROGRAM), *given, *extra], "/v2/health/ready"
    with serve(
        command, "triton", log_path=log_path, url=url, ready=ready, timeout_s=_READY_TIMEOUT_S
    ) as process:
        yield TritonServer(process, url, f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{metrics}")
