"""Real engines on this machine's processor, each serving the tiny model on a free port of
127.0.0.1.

llama.cpp is found or fetched as `loadstone.measure.engines.llama_cpp` does; the others live where
scripts/engines/<home> puts them, and are started as docs/engines.md shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from engines import tiny_model
from loadstone.catalogue import parse_deployment
from loadstone.core.errors import InputError
from loadstone.engines.deployment_launch import launch_deployment
from loadstone.engines.launch import Launch, Site
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import ServerProcess, free_port

ENGINES = ("llama.cpp", "vLLM", "SGLang", "transformers", "mlx-lm")
_HOMES = Path(__file__).resolve().parents[2] / ".cache" / "engines"
_READY_TIMEOUT_S = 300.0
_SETTINGS = ("VLLM_", "SGLANG_", "HF_", "TRANSFORMERS_", "MLX_", "TORCH", "OMP_", "CUDA_")


class Recipe(NamedTuple):
    """How to start an engine. `home`: its script and its environment; `named`: the model's name,
    None: its path."""

    home: str
    command: str
    environment: dict[str, str]
    named: str | None


RECIPES = {
    "vLLM": Recipe(
        "vllm",
        "vllm serve {model} --served-model-name tiny --host 127.0.0.1 --port {port} "
        "--dtype float32 --max-model-len 4096 --max-num-seqs 16 --enforce-eager "
        "--enable-prefix-caching --block-size 32 --enable-prompt-tokens-details",
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
        "tiny",
    ),
    "SGLang": Recipe(
        "sglang",
        "sglang-cpu --model-path {model} --served-model-name tiny --host 127.0.0.1 --port {port} "
        "--dtype float32 --max-total-tokens 16384 --max-running-requests 8 --sleep-on-idle "
        "--enable-metrics --enable-cache-report",
        {},
        "tiny",
    ),
    "transformers": Recipe(
        "transformers",
        "transformers serve {model} --host 127.0.0.1 --port {port} --device cpu --dtype float32 "
        "--continuous-batching --cb-num-blocks 512 --cb-max-batch-tokens 512",
        {"HF_HUB_OFFLINE": "1"},
        None,
    ),
    "mlx-lm": Recipe(
        "mlx",
        "mlx_lm.server --model {model} --host 127.0.0.1 --port {port} --prompt-cache-size 1024",
        {"HF_HUB_OFFLINE": "1"},
        None,
    ),
}


POOLS = "{model}@prefill=1xcpu/tp1+decode=1xcpu/tp1,engine=vllm"


class NotInstalled(Exception):
    """Why the engine cannot be launched here."""


class Engine(NamedTuple):
    """A ready server. `model`: the name it answers to."""

    name: str
    url: str
    model: str
    process: ServerProcess


class Pools(NamedTuple):
    """Two ready workers of vLLM behind their router. `deployment`: in shorthand."""

    url: str
    deployment: str
    prefill: ServerProcess
    decode: ServerProcess


def environment() -> dict[str, str]:
    """The user's, without what is set there for these programs: that is not what the tests are
    about."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_SETTINGS)}


@contextmanager
def launch(name: str, folder: Path) -> Iterator[Engine]:
    """A ready server of engine `name` with its model and log in `folder`, gone after the block.

    Raises NotInstalled, and TargetError where the server does not start.
    """
    with (_llama_cpp if name == "llama.cpp" else _installed)(name, folder) as engine:
        yield engine


@contextmanager
def _llama_cpp(name: str, folder: Path) -> Iterator[Engine]:
    try:
        server = llama_cpp.launch(slots=8, context_tokens=512, log_path=folder / "server.log")
    except InputError as error:
        raise NotInstalled(str(error)) from error
    with server:
        yield Engine(name, server.url, "tiny", server)


@contextmanager
def _installed(name: str, folder: Path) -> Iterator[Engine]:
    recipe = RECIPES[name]
    home = _HOMES / recipe.home
    if not (home / "setup.stamp").is_file():
        raise NotInstalled(f"scripts/engines/{recipe.home} has not been run")
    model, cache = folder / "tiny", folder / "huggingface"
    tiny_model.write(model)
    # Without this folder /v1/models of transformers and of mlx-lm fails.
    (cache / "hub").mkdir(parents=True, exist_ok=True)
    port = free_port()
    program, *arguments = recipe.command.split()
    command = [
        str(home / "bin" / program),
        *(word.format(model=model, port=port) for word in arguments),
    ]
    env = environment()
    # One thread each: with more they wait for each other actively, on cores that the client needs.
    env |= {"HF_HOME": str(cache), "OMP_NUM_THREADS": "1", **recipe.environment}
    url = f"http://127.0.0.1:{port}"
    # /v1/models may answer sooner: SGLang's does while it tries itself out.
    with serve(
        command,
        recipe.home,
        log_path=folder / "server.log",
        url=url,
        env=env,
        timeout_s=_READY_TIMEOUT_S,
    ) as process:
        yield Engine(name, url, recipe.named or str(model), process)


@contextmanager
def launch_vllm_pools(folder: Path) -> Iterator[Pools]:
    """Prefill and decode workers of vLLM and their router, started by the commands that `loadstone
    launch` prints.

    Raises as launch() does.
    """
    for home in ("vllm", "pools"):
        if not (_HOMES / home / "setup.stamp").is_file():
            raise NotInstalled(f"scripts/engines/{home} has not been run")
    recipe = RECIPES["vLLM"]
    tiny_model.write(folder / "tiny")
    deployment = POOLS.format(model=folder / "tiny")
    # What the recipe says of the model and of sizes; where it listens is the pools' own matter.
    words = recipe.command.partition("{port}")[2].split()
    flags = tuple(
        zip(
            words,
            [None if each.startswith("--") else each for each in (*words[1:], "--")],
            strict=True,
        )
    )
    chosen = tuple(each for each in flags if each[0].startswith("--"))
    site = Site(port=free_port(), served_name="tiny", arguments=chosen)
    made = launch_deployment(parse_deployment(deployment), site)
    # Each on one core: vLLM would have both wait for each other actively, on all cores.
    env = (
        environment()
        | {"HF_HOME": str(folder / "huggingface"), "OMP_NUM_THREADS": "1"}
        | recipe.environment
    )
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": str(_HOMES / "pools" / "nixl")}

    def start(name: str, launched: Launch, home: str, *more: str) -> ServerProcess:
        (rank,) = launched.ranks
        program, *rest = rank.argv
        return stack.enter_context(
            serve(
                [str(_HOMES / home / "bin" / program), *rest, *more], home, log_path=folder / f"{name}.log",
                url=launched.url, ready=launched.ready, env=env | rank.env, timeout_s=_READY_TIMEOUT_S,
            )
        )  # fmt: skip

    with ExitStack() as stack:
        workers = {role: start(role, launched, "vllm") for role, (launched,) in made.pools.items()}
        router = start("router", made.router, "pools", "--prometheus-port", str(free_port()))
        yield Pools(router.url, deployment, **workers)


def launch_or_skip(name: str, folders: pytest.TempPathFactory) -> Iterator[Engine]:
    """Serve by an engine for the tests of a fixture's scope, which are skipped without it."""
    try:
        with launch(name, folders.mktemp("engine")) as engine:
            yield engine
    except NotInstalled as error:
        pytest.skip(str(error))
