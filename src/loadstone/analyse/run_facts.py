"""Collects the facts of a run: engine, model, GPU, parallelism, precision, workload. Comparisons
and reports use no others.

A run says it in its papers (RunInfo), whoever wrote them:

    target                  engine, engine_version, model, as a live server introduced itself
    settings.deployment  gpu, gpus, nodes, tp, pp, dp, ep, weights_dtype, kv_dtype, engine,
                         engine_version, model:
                            of a simulated run, or as an imported file tells it; goes before the
                            target. A GPU that is not the catalogue's is there with all that was
                            known of it. Of a measured run it is what the user said of the server
                            (`stated`, their words), engine, version and model as the server has
                            them, and `architecture` the catalogue's name for the model; a model
                            that is not the catalogue's is there with its config
    settings.gpus        this machine's, watched while a server on it was measured; they stand for
                         the deployment's
                            where there is none
    settings.workload    as Plan.workload; with "mode": "offline" where no server was in between
    settings.label       what the user calls this setup of it
    settings.prefix_cache  what was done about it; True or False where the file says whether it was
                           on
    settings.imported    of an imported run: its tool, files and cells

What nobody said is None.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from loadstone.catalogue.engines import engine_title
from loadstone.catalogue.find import gpu_title
from loadstone.catalogue.hardware import Gpu
from loadstone.core.machine_figures import PoolFigures
from loadstone.core.record import RunInfo
from loadstone.core.settings import DeploymentRecord
from loadstone.core.summary import Summary, mean_tokens
from loadstone.engines.table import needs_gpu

_LARGEST = 1 << 53
"""Whole numbers from here on count nothing of a run, and floats cannot hold them all."""
_TOLD_AS_FACTS = ("max_model_len", "max_seq_len", "ctx_size", "prefix_caching")
"""Arguments of engines that a report has by other names."""


class RunFacts(msgspec.Struct, kw_only=True, frozen=True):
    """The facts of a run. Names as people know them: `vLLM`, `H200`. Lengths are means per request;
    `gpus` counts all nodes' together.

    input_tokens     asked for, prefix included; else as measured over all cells of the run
    range_ratio      r where lengths are uniform in [r·n, n], n then being twice the mean over 1 +
                     r; 1: all equal
    prefix_tokens    of each input, shared with others; 0: none; None: not told
    prefix_cache     on or off, where it is told; None where not
    mode             offline: a batch through the engine's own interface, without a server
    tool             whose client measured it: "Loadstone" for our own runs, None for simulated ones
    settings         what else was set up: the user's label for it, and the engine's arguments that
                     are not facts here
    named            the label alone
    architecture     the catalogue's name for the model, where the user stated it beside the one it
                     is served by
    stated           what the user said that a measured server runs on, in their words
    hardware         the GPU as the run describes it, where it is none of the catalogue's
    own_model        the model as the run describes it, likewise: JSON with its name and Model.given
    pools            where prefill and decode have workers of their own; gpu, tp, … are then those
                     of decode
    layout           of pools: `prefill 2×1×H100 tp1 + decode 1×8×H200 tp1 dp8`
    """

    source: Literal["measured", "simulated", "imported"]
    tool: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    weights_dtype: str | None = None
    kv_dtype: str | None = None
    mode: Literal["serving", "offline"] = "serving"
    workload: str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    range_ratio: float | None = None
    prefix_tokens: int | None = None
    prefix_groups: int | None = None
    prefix_cache: bool | None = None
    settings: str | None = None
    named: str | None = None
    architecture: str | None = None
    stated: str | None = None
    hardware: Gpu | None = None
    own_model: str | None = None
    pools: tuple[PoolFigures, ...] = ()
    layout: str | None = None

    @property
    def label(self) -> str:
        """A line for a legend or a heading: `vLLM 0.26.0 · Llama-3.1-8B bf16 · 8×H200 tp8 · no
        prefix cache`."""
        engine = " ".join(part for part in (self.engine, self.engine_version) if part)
        model = " ".join(
            part for part in ((self.model or "").rsplit("/", 1)[-1], self.weights_dtype) if part
        )
        gpu = f"{self.gpus}×{self.gpu}" if self.gpu and self.gpus else self.gpu or ""
        split = [
            f"{name}{n}"
            for name, n in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp))
            if n and n > 1
        ]
        hardware = self.layout or " ".join([gpu, *split]).strip()
        return (
            " · ".join(part for part in (engine, model, hardware, self.settings) if part)
            or "unknown"
        )


def run_facts(info: RunInfo, summary: Summary | None = None) -> RunFacts:
    """Collect the facts of a run. `summary` gives lengths where run.json has none."""
    deployment = info.settings.deployed if info.settings.deployment else _watched(info)
    workload = info.settings.workload
    imported = info.settings.imported
    target = info.target
    (input_tokens, _), (output_tokens, ratio) = map(
        _length, (workload.get("input"), workload.get("output"))
    )
    stated, arrived = mean_tokens(summary.cells if summary is not None else ())
    prefix_cache = info.settings.prefix_cache
    hardware = _described(deployment.gpu)
    introduced = engine_name(target.engine) if target else None
    engine = engine_name(deployment.engine) or introduced
    # Triton's version is not that of the engine behind it.
    version = target.engine_version if target and introduced in (None, engine) else None
    return RunFacts(
        source=info.source,
        tool=_text(imported and imported.tool)
        or ("Loadstone" if info.source == "measured" else None),
        engine=engine,
        engine_version=deployment.engine_version or version,
        model=_named(deployment.model) or (target.model if target and target.model else None),
        gpu=(hardware.name if hardware and hardware.given else gpu_name(_named(deployment.gpu))),
        gpus=deployment.gpus,
        nodes=deployment.nodes,
        tp=deployment.tp,
        pp=deployment.pp,
        dp=deployment.dp,
        ep=deployment.ep,
        weights_dtype=deployment.weights_dtype,
        kv_dtype=deployment.kv_dtype,
        mode="offline" if workload.get("mode") == "offline" else "serving",
        workload=_text(workload.get("name")) or _text(workload.get("kind")),
        input_tokens=stated if input_tokens is None else input_tokens,
        output_tokens=arrived if output_tokens is None else output_tokens,
        range_ratio=ratio,
        prefix_tokens=_whole(workload.get("prefix_tokens")),
        prefix_groups=_whole(workload.get("prefix_groups")),
        prefix_cache=prefix_cache if isinstance(prefix_cache, bool) else None,
        named=_text(info.settings.label),
        settings=_settings(info.settings.label, deployment.arguments),
        architecture=_named(deployment.architecture),
        stated=deployment.stated,
        hardware=hardware,
        own_model=_own_model(deployment.architecture) or _own_model(deployment.model),
        pools=tuple(
            PoolFigures(
                role=pool.role, gpu=gpu_name(_named(pool.gpu)), gpus=pool.gpus * pool.workers
            )
            for pool in deployment.pools
        ),
        layout=_layout(deployment) if deployment.pools else None,
    )


def _layout(deployment: DeploymentRecord) -> str:
    """Say how many workers of what each pool has, and arguments that are not the whole
    deployment's."""
    common, parts = deployment.arguments, []
    for pool in deployment.pools:
        counts = {"tp": pool.tp, "pp": pool.pp, "dp": pool.dp, "ep": pool.ep}
        words = [
            f"{pool.role} {pool.workers}×{pool.gpus}×{gpu_name(_named(pool.gpu)) or 'GPU'}",
            *(f"{name}{n}" for name, n in counts.items() if n and (n > 1 or name == "tp")),
        ]
        for name, value in pool.arguments.items():
            if common.get(name) != value:
                words.append(f"{name}={value}")
        parts.append(" ".join(words))
    return " + ".join(parts)


def _settings(label: Any, arguments: Mapping[str, Any]) -> str | None:
    words = [f"{name}={value}" for name, value in arguments.items() if name not in _TOLD_AS_FACTS]
    return ", ".join(part for part in (_text(label), *words) if part) or None


def _watched(info: RunInfo) -> DeploymentRecord:
    """Describe the GPUs of a measured server's machine: all of one name, or nothing. How many of
    several it used is not told.
    """
    engine, gpus = info.target.engine if info.target else None, info.settings.gpus
    if not needs_gpu(engine) or not gpus:
        return DeploymentRecord()
    names = {_named(gpu) for gpu in gpus}
    if len(names) > 1:
        return DeploymentRecord()
    return DeploymentRecord(gpu=names.pop(), gpus=1 if len(gpus) == 1 else None)


def _described(value: Any) -> Gpu | None:
    try:
        return msgspec.convert(value, Gpu) if isinstance(value, Mapping) else None
    except msgspec.ValidationError:
        return None


def _own_model(value: Any) -> str | None:
    return (
        msgspec.json.encode(value).decode()
        if isinstance(value, Mapping) and "config" in value
        else None
    )


def engine_name(text: str | None) -> str | None:
    """Return an engine's common name, `TensorRT-LLM` for `trt-llm`, `trtllm` …; a name not known
    stays as it is."""
    return None if text is None else engine_title(text)


def gpu_name(text: str | None) -> str | None:
    """Return a GPU's common name, `H200` for `h200`, `NVIDIA H200`, `H200-SXM-141GB`; a name not
    known stays as it is.
    """
    return None if text is None else gpu_title(text)


def _length(value: object) -> tuple[float | None, float | None]:
    """Read (mean tokens, range ratio) of a synthetic workload's Length."""
    length = mapping(value)
    mean, low, high = (number(length.get(name)) for name in ("mean", "low", "high"))
    if mean is None or length.get("kind") == "fixed":
        return mean, None if mean is None else 1.0
    if length.get("kind") == "uniform" and low is not None and high:
        return mean, low / high
    return mean, None


def mapping(value: object) -> Mapping[str, object]:
    """Return a JSON object, else an empty one: a run.json may be of anybody's making."""
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _named(value: object) -> str | None:
    """Return a name, or the name of something described."""
    return _text(value) or _text(mapping(value).get("name"))


def number(value: object) -> float | None:
    """Return a finite number, else nothing: papers and summaries may come from anywhere."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _whole(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < _LARGEST else None
