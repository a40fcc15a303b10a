"""The options of commands that start an engine: how it is started, `launch`, `offline`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from loadstone.workload import option_values as values
from loadstone.workload.option_fields import (
    ABOVE_0,
    ARGUMENT,
    AT_LEAST_0,
    BATCH,
    ENGINE,
    RUN,
    SHARE,
    WHERE,
    Flags,
    flag,
    group,
)


@dataclasses.dataclass(kw_only=True)
class StartOptions(Flags):
    """How an engine is started, wherever Loadstone starts one: the options of `loadstone launch`;
    other commands have some of them."""

    model: str | None = flag(
        ENGINE, "what the engine loads: a path or an id [default: the deployment's model]"
    )
    served_name: str | None = flag(ENGINE, "name that requests use for the model")
    arguments: Sequence[tuple[str, str | None]] = flag(
        ENGINE,
        "a flag of the engine's own, passed as it is: FLAG or FLAG=VALUE",
        (),
        values.engine_flags,
        name="argument",
        short="-a",
    )
    environment: Sequence[tuple[str, str]] = flag(
        ENGINE, "NAME=VALUE in the engine's environment", (), values.variables, name="env"
    )
    program: str | None = flag(ENGINE, "path of the engine's program [default: found on PATH]")
    host: str = flag(WHERE, "address to listen on, without nodes and containers", "127.0.0.1")
    port: int | None = flag(WHERE, "port to listen on [default: the engine's own]")
    nodes: Sequence[str] = flag(
        WHERE,
        "address of a node, rank 0 first; once for each of several nodes",
        (),
        values.texts,
        name="node",
    )
    container: Literal["docker", "podman", "enroot", "pyxis", "apptainer"] | None = flag(
        WHERE, "start it in a container, run by this"
    )
    image: str | None = flag(WHERE, "image of the container, e.g. vllm/vllm-openai:v0.33.0")
    cache: Path = flag(
        WHERE, "folder of models, mounted into the container", "~/.cache/huggingface", values.path
    )
    timeout_ready_s: float = flag(
        WHERE, "longest time until the engine serves", "30m", values.seconds, limits=ABOVE_0
    )


_TO_LAUNCH = dict.fromkeys(
    (
        "model",
        "served_name",
        "arguments",
        "environment",
        "program",
        "host",
        "port",
        "nodes",
        "container",
        "image",
        "cache",
    ),
    "{}",
)
TO_BENCH = {
    "model": (
        "model name to request [default: the server's first]; with --launch: what the engine loads,"
        " a path or an id"
    ),
    "arguments": "with --launch: a flag of the engine, FLAG or FLAG=VALUE",
} | dict.fromkeys(
    ("environment", "program", "container", "image", "timeout_ready_s"), "with --launch: {}"
)
_TO_OFFLINE = {
    "model": "{}",
    "arguments": "an argument of the engine's own, passed as it is: NAME=VALUE",
    "environment": "{}",
}
"""What the commands say of the options of StartOptions that they have."""


@dataclasses.dataclass(kw_only=True)
class OfflineOptions(Flags):
    """The options of `loadstone offline`:"""

    deployment: str = flag(
        ARGUMENT,
        "what runs them: MODEL[:weights]@N×GPU[/tp8,engine=vllm]",
        dataclasses.MISSING,
        argument="deployment",
    )
    batch: Sequence[int] = flag(
        BATCH, "requests given at once; a list: a load each", "32", values.counts
    )
    input: str = flag(BATCH, "prompt tokens: 512, 8k, uniform:512:1024", "512", values.text)
    output: str = flag(
        BATCH,
        "output tokens, in the same forms; a list, 800,1600: a run folder each",
        "256",
        values.text,
    )
    range_ratio: float = flag(BATCH, "draw lengths uniformly from [ratio·n, n]", 1.0, limits=SHARE)
    warmup: int = flag(
        BATCH,
        "requests before each batch, their answers cut to 16 tokens, or 0",
        16,
        limits=AT_LEAST_0,
    )
    seed: int = flag(BATCH, "seed of the plan: same seed, same plan", 0)
    start: StartOptions = group(StartOptions, ENGINE, _TO_OFFLINE)
    python: str | None = flag(
        ENGINE, "interpreter that has the engine [default: that of its program on PATH]"
    )
    simulate: bool = flag(RUN, "simulate the same batches, without hardware", False)
    profile: str | None = flag(
        RUN,
        "coefficients by `calibrate`: name or file [default: the shipped]",
        read=values.name_or_path,
    )
    label: str | None = flag(RUN, "name of this setup in reports and comparisons", read=values.text)
    out: Path = flag(RUN, "folder for the run folders", "runs", values.path)
    command: Sequence[str] = ()


@dataclasses.dataclass(kw_only=True)
class LaunchOptions(Flags):
    """The options of `loadstone launch`:"""

    deployment: str = flag(
        ARGUMENT,
        "what to start: MODEL[:weights]@N×GPU[/tp8,engine=vllm]",
        dataclasses.MISSING,
        argument="deployment",
    )
    start: StartOptions = group(StartOptions, "", _TO_LAUNCH)
