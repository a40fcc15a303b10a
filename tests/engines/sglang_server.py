"""The real SGLang server on the CPU, as scripts/engines/sglang installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadstone.engines.process import ServerProcess, free_port

PROGRAM = Path(__file__).resolve().parents[2] / ".cache" / "engines" / "sglang" / "bin" / "sglang-cpu"
_READY_TIMEOUT_S = 180.0


def missing() -> str | None:
    """Why there is no server to launch, if there is none."""
    return None if PROGRAM.is_file() else "no SGLang server: scripts/engines/sglang has not been run"


@contextmanager
def sglang(model: Path, log_path: Path, *extra: str) -> Iterator[ServerProcess]:
    """A ready server for `model`, on a free port of 127.0.0.1, gone after the block. Raises TargetError.

    `model` is a Hugging Face folder, small: its name without folders is the model's name in requests. It needs
    config.json and a tokenizer; with `--load-format dummy` in `extra`, no weights. It starts in about half a minute.
    """
    port = free_port()
    command = [
        *(str(PROGRAM), "--model-path", str(model), "--served-model-name", model.name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        # A small cache of keys and values; by default it takes most of the machine's memory.
        *("--max-total-tokens", "16384", "--max-running-requests", "8"),
        # Otherwise the scheduler polls, and a core is gone while nothing is asked.
        *("--sleep-on-idle", "--enable-metrics", "--enable-cache-report"),
        *extra,
    ]
    with ServerProcess(command, log_path=log_path, url=f"http://127.0.0.1:{port}") as process:
        # SGLang sends itself a request before it is healthy.
        process.wait_ready(f"{process.url}/health", _READY_TIMEOUT_S)
        yield process
