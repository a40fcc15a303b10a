"""The real Triton Inference Server, as scripts/engines/triton installs it, with the model repository beside this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadstone.engines.process import ServerProcess, free_port

PROGRAM = Path(__file__).resolve().parents[2] / ".cache" / "engines" / "triton" / "tritonserver"
MODELS = Path(__file__).resolve().parent / "triton" / "models"
_READY_TIMEOUT_S = 60.0


class TritonServer(NamedTuple):
    """A running server: URLs of its HTTP, gRPC and metrics ports."""

    process: ServerProcess
    http: str
    grpc: str
    metrics: str


def missing() -> str | None:
    """Why there is no server to launch, if there is none."""
    return None if PROGRAM.is_file() else "no Triton server: scripts/engines/triton has not been run"


@contextmanager
def triton(log_path: Path, *extra: str) -> Iterator[TritonServer]:
    """A ready server on free ports of 127.0.0.1, gone after the block. Raises TargetError where it does not start."""
    ports = [free_port() for _ in range(3)]
    while len(set(ports)) < 3:
        ports = [free_port() for _ in range(3)]
    http, grpc, metrics = (f"http://127.0.0.1:{port}" for port in ports)
    command = [
        *(str(PROGRAM), f"--model-repository={MODELS}"),
        *("--http-address=127.0.0.1", f"--http-port={ports[0]}"),
        *("--grpc-address=127.0.0.1", f"--grpc-port={ports[1]}"),
        *("--metrics-address=127.0.0.1", f"--metrics-port={ports[2]}"),
        # Its Python process finds its parent gone within a second; the server itself need not wait longer.
        "--exit-timeout-secs=2",
        *extra,
    ]
    with ServerProcess(command, log_path=log_path, url=http) as process:
        process.wait_ready(f"{http}/v2/health/ready", _READY_TIMEOUT_S)
        yield TritonServer(process, http, grpc, metrics)
