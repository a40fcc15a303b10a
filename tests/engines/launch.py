"""Real engines on this machine's processor, each serving the tiny model on a free port of 127.0.0.1.

llama.cpp is found or fetched as `loadstone.engines.llama_cpp` does; the others live where scripts/engines/<name> puts
them. docs/engines.md shows the same commands for people.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engines import tiny_model
from loadstone.engines import llama_cpp
from loadstone.engines.process import ServerProcess, free_port
from loadstone.errors import InputError

HOMES = Path(__file__).resolve().parents[2] / ".cache" / "engines"
_READY_TIMEOUT_S = 300.0
_SETTINGS = ("VLLM_", "HF_", "TRANSFORMERS_", "MLX_", "TORCH", "OMP_", "CUDA_", "LLAMA_ARG_")


class NotInstalled(Exception):
    """Why the engine cannot be launched here."""


class Engine(NamedTuple):
    """A ready server. `model`: the name it answers to."""

    name: str
    url: str
    model: str
    process: ServerProcess


@contextmanager
def launch(name: str, folder: Path) -> Iterator[Engine]:
    """A ready server of engine `name` with its files and log in `folder`, gone after the block.

    Raises NotInstalled, and TargetError where the server does not start.
    """
    starts = {"llama.cpp": _llama_cpp, "vLLM": _vllm, "transformers": _transformers, "mlx-lm": _mlx}
    with starts[name](folder) as engine:
        yield engine


@contextmanager
def _llama_cpp(folder: Path) -> Iterator[Engine]:
    try:
        server = llama_cpp.launch(slots=8, context_tokens=512, log_path=folder / "server.log")
    except InputError as error:
        raise NotInstalled(str(error)) from error
    with server:
        yield Engine("llama.cpp", server.url, "tiny", server)


@contextmanager
def _vllm(folder: Path) -> Iterator[Engine]:
    program = _program("vllm", "vllm")
    model = _model(folder)
    port = free_port()
    command = [
        *(str(program), "serve", str(model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", str(tiny_model.CONTEXT_TOKENS), "--max-num-seqs", "16"),
        # Compiling takes a minute and more, for a model this small in vain.
        *("--enforce-eager", "--enable-prefix-caching", "--block-size", "32"),
        # Its per-request statistics: without it usage says nothing of the prefix cache.
        "--enable-prompt-tokens-details",
    ]
    # Gigabytes for the KV cache; the default is several.
    more = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with _serve("vLLM", command, port, "tiny", folder, more) as engine:
        yield engine


@contextmanager
def _transformers(folder: Path) -> Iterator[Engine]:
    program = _program("transformers", "transformers")
    model = _model(folder)
    port = free_port()
    command = [
        *(str(program), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--dtype", "float32"),
        *("--continuous-batching", "--cb-num-blocks", "512", "--cb-max-batch-tokens", "512"),
    ]
    with _serve("transformers", command, port, str(model), folder, {}) as engine:
        yield engine


@contextmanager
def _mlx(folder: Path) -> Iterator[Engine]:
    program = _program("mlx", "mlx_lm.server")
    model = _model(folder)
    port = free_port()
    command = [str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    with _serve("mlx-lm", command, port, str(model), folder, {}) as engine:
        yield engine


@contextmanager
def _serve(
    name: str, command: list[str], port: int, model: str, folder: Path, more: Mapping[str, str]
) -> Iterator[Engine]:
    home = folder / "huggingface"
    # Where it has no such folder, /v1/models of transformers and of mlx-lm fails.
    (home / "hub").mkdir(parents=True, exist_ok=True)
    # What the user has set for these programs is not what the tests are about.
    env = {key: value for key, value in os.environ.items() if not key.startswith(_SETTINGS)}
    env |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
    url = f"http://127.0.0.1:{port}"
    with ServerProcess(command, log_path=folder / "server.log", url=url, env=env) as process:
        process.wait_ready(f"{url}/v1/models", _READY_TIMEOUT_S)
        yield Engine(name, url, model, process)


def _program(home: str, command: str) -> Path:
    if not (HOMES / home / "setup.stamp").is_file():
        raise NotInstalled(f"scripts/engines/{home} has not been run")
    return HOMES / home / "bin" / command


def _model(folder: Path) -> Path:
    model = folder / "tiny"
    tiny_model.write(model)
    return model
