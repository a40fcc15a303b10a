"""What a run was of: engine, model, GPU, parallelism, precision, workload. One place for those who compare and draw.

A run says it in its papers (RunInfo), whoever wrote them:

    target                  engine, engine_version, model, as a live server introduced itself
    settings["deployment"]  gpu, gpus, nodes, tp, pp, dp, ep, weights_dtype, kv_dtype, engine, engine_version, model:
                            of a simulated run, or as an imported file tells it; goes before the target. A GPU that
                            is not the catalogue's is there with all that was known of it. Of a measured run it is
                            what the user said of the server (`stated`, their words), engine, version and model as
                            the server has them, and `architecture` the catalogue's name for the model; a model
                            that is not the catalogue's is there with its config
    settings["gpus"]        this machine's, watched while a server on it was measured; they stand for the deployment's
                            where there is none
    settings["workload"]    as Plan.workload; with "mode": "offline" where no server was in between
    settings["label"]       what the user calls this setup of it
    settings["prefix_cache"]  what was done about it; True or False where the file says whether it was on
    settings["import"]      of an imported run: {"tool", …}, see importers

What nobody said is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from loadstone.catalogue.hardware import Gpu
from loadstone.core import RunInfo
from loadstone.core.summary import Summary
from loadstone.core.summary import mean_tokens as mean_tokens_of

_ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrtllm": "TensorRT-LLM",
    "trtllm": "TensorRT-LLM",
    "trt": "TensorRT-LLM",
    "tensorrt": "TensorRT-LLM",
    "triton": "Triton",
    "llamacpp": "llama.cpp",
    "llamaserver": "llama.cpp",
    "transformers": "transformers",
    "mlxlm": "mlx-lm",
    "lmdeploy": "LMDeploy",
    "tgi": "TGI",
    "hftgi": "TGI",
}
_GPUS = (
    "GB300", "GB200", "B300", "B200", "GH200", "H200", "H100", "H800", "H20", "A100", "A800", "L40S", "L40", "L4",
    "L20", "A10G", "A10", "A6000", "V100", "T4", "MI355X", "MI350X", "MI325X", "MI300X", "MI300A", "MI250X", "MI210",
)  # fmt: skip
_SIZES = {"A100": "40GB", "H20": "141GB"}
"""Memory that such a GPU has only in a sort of its own, with another bandwidth."""

_WITHOUT_GPU = ("llama.cpp", "timing server", "simulated engine")
"""Engines that may run on the processor of a machine with GPUs."""

_TOLD_AS_FACTS = ("max_model_len", "max_seq_len", "ctx_size", "prefix_caching")
"""Arguments of engines that a report has by other names."""

_QUEUE_GROWS = ("overload", "queue_grows")
"""Findings of a verdict on open loops in which requests begin faster than they end."""


class RunFacts(msgspec.Struct, kw_only=True, frozen=True):
    """Names as people know them: `vLLM`, `H200`. Lengths are means per request; `gpus` counts all nodes' together.

    input_tokens     asked for, prefix included; else as measured over all cells of the run
    range_ratio      r where lengths are uniform in [r·n, n], n then being twice the mean over 1 + r; 1: all equal
    prefix_tokens    of each input, shared with others; 0: none; None: not told
    prefix_cache     on or off, where it is told; None where not
    mode             offline: a batch through the engine's own interface, without a server
    tool             whose client measured it: "Loadstone" for our own runs, None for simulated ones
    settings         what else was set up: the user's label for it, and the engine's arguments that are not facts here
    named            the label alone
    architecture     the catalogue's name for the model, where the user stated it beside the one it is served by
    stated           what the user said that a measured server runs on, in their words
    hardware         the GPU as the run describes it, where it is none of the catalogue's
    own_model        the model as the run describes it, likewise: JSON with its name and Model.given
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

    @property
    def label(self) -> str:
        """One line for a legend or a heading: `vLLM 0.26.0 · Llama-3.1-8B bf16 · 8×H200 tp8 · no prefix cache`."""
        engine = " ".join(part for part in (self.engine, self.engine_version) if part)
        model = " ".join(part for part in ((self.model or "").rsplit("/", 1)[-1], self.weights_dtype) if part)
        gpu = f"{self.gpus}×{self.gpu}" if self.gpu and self.gpus else self.gpu or ""
        split = [f"{name}{n}" for name, n in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if n and n > 1]
        hardware = " ".join([gpu, *split]).strip()
        return " · ".join(part for part in (engine, model, hardware, self.settings) if part) or "unknown"


def run_facts(info: RunInfo, summary: Summary | Mapping[str, Any] | None = None) -> RunFacts:
    """The facts of a run. `summary`, or its document, gives lengths where the papers have none."""
    deployment = mapping(info.settings.get("deployment")) or _watched(info)
    workload = mapping(info.settings.get("workload"))
    imported = mapping(info.settings.get("import"))
    target = info.target
    lengths = _lengths(workload)
    if isinstance(summary, Summary):
        stated, arrived = mean_tokens_of(summary.cells)
    else:
        stated, arrived = mean_tokens((summary or {}).get("cells") or ())
    prefix_cache = info.settings.get("prefix_cache")
    hardware = _described(deployment.get("gpu"))
    introduced = engine_name(target.engine) if target else None
    engine = engine_name(_text(deployment.get("engine"))) or introduced
    # Triton's version is not that of the engine behind it.
    version = target.engine_version if target and introduced in (None, engine) else None
    return RunFacts(
        source=info.source,
        tool=_text(imported.get("tool")) or ("Loadstone" if info.source == "measured" else None),
        engine=engine,
        engine_version=_text(deployment.get("engine_version")) or version,
        model=_named(deployment.get("model")) or (target.model if target and target.model else None),
        gpu=hardware.name if hardware and hardware.given else gpu_name(_named(deployment.get("gpu"))),
        **{name: _whole(deployment.get(name)) for name in ("gpus", "nodes", "tp", "pp", "dp", "ep")},
        weights_dtype=_text(deployment.get("weights_dtype")),
        kv_dtype=_text(deployment.get("kv_dtype")),
        mode="offline" if workload.get("mode") == "offline" else "serving",
        workload=_text(workload.get("name")) or _text(workload.get("kind")),
        input_tokens=lengths["input"][0] if lengths["input"][0] is not None else stated,
        output_tokens=lengths["output"][0] if lengths["output"][0] is not None else arrived,
        range_ratio=lengths["output"][1],
        prefix_tokens=_whole(workload.get("prefix_tokens")),
        prefix_groups=_whole(workload.get("prefix_groups")),
        prefix_cache=prefix_cache if isinstance(prefix_cache, bool) else None,
        named=_text(info.settings.get("label")),
        settings=_settings(info.settings.get("label"), mapping(deployment.get("arguments"))),
        architecture=_named(deployment.get("architecture")),
        stated=_text(deployment.get("stated")),
        hardware=hardware,
        own_model=_own_model(deployment.get("architecture")) or _own_model(deployment.get("model")),
    )


def _settings(label: Any, arguments: Mapping[str, Any]) -> str | None:
    said = [f"{name}={value}" for name, value in arguments.items() if name not in _TOLD_AS_FACTS]
    return ", ".join(part for part in (_text(label), *said) if part) or None


def _watched(info: RunInfo) -> dict[str, Any]:
    """The GPUs beside a measured server: all of one name, or nothing. How many of several it used is not told."""
    engine, gpus = info.target.engine if info.target else None, info.settings.get("gpus")
    if engine in _WITHOUT_GPU or not isinstance(gpus, list) or not gpus:
        return {}
    names = {_named(gpu) for gpu in gpus}
    return {"gpu": names.pop(), "gpus": 1 if len(gpus) == 1 else None} if len(names) == 1 else {}


def _described(said: Any) -> Gpu | None:
    try:
        return msgspec.convert(said, Gpu) if isinstance(said, Mapping) else None
    except msgspec.ValidationError:
        return None


def _own_model(said: Any) -> str | None:
    return msgspec.json.encode(said).decode() if isinstance(said, Mapping) and "config" in said else None


def engine_name(said: str | None) -> str | None:
    """`TensorRT-LLM` for `trt-llm`, `trtllm` …; a name not known stays as it is."""
    if said is None:
        return None
    key = "".join(character for character in said.lower() if character.isalnum())
    return _ENGINES.get(key, said)


def gpu_name(said: str | None) -> str | None:
    """`H200` for `h200`, `NVIDIA H200`, `H200-SXM-141GB`; a name not known stays as it is."""
    if said is None:
        return None
    upper = said.upper()
    words = [word for word in "".join(c if c.isalnum() else " " for c in upper).split() if word]
    if "MI300" in words:  # the only one that is rented in eights under that name
        return "MI300X"
    # H100 comes in three sorts that differ by half in bandwidth: a name that says which keeps it.
    kind = next((f" {word}" for word in ("PCIE", "NVL") if word in words), "").replace("PCIE", "PCIe")
    found = next((name for name in _GPUS if name in words or f"{name}X" in words), None)
    if (size := _SIZES.get(found or "")) in words:
        kind += f" {size}"
    return said if found is None else found + kind


def _lengths(workload: Mapping[str, Any]) -> dict[str, tuple[float | None, float | None]]:
    """(mean tokens, range ratio) of input and output, of a synthetic workload's Length."""
    found: dict[str, tuple[float | None, float | None]] = {"input": (None, None), "output": (None, None)}
    for name in found:
        length = mapping(workload.get(name))
        mean, kind = number(length.get("mean")), length.get("kind")
        if mean is None:
            continue
        low, high = number(length.get("low")), number(length.get("high"))
        uniform = low / high if kind == "uniform" and low is not None and high else None
        found[name] = mean, 1.0 if kind == "fixed" else uniform
    return found


def mean_tokens(cells: Iterable[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Input and output tokens per request, over cells of a summary."""
    requests = inputs = outputs = 0.0
    for cell in cells:
        metrics, counts = mapping(cell.get("metrics")), mapping(cell.get("requests"))
        done = (number(counts.get("ok")) or 0.0) + (number(counts.get("short")) or 0.0)
        each = [number(metrics.get(name)) for name in ("input_tokens", "output_tokens")]
        if not done or None in each:
            continue
        requests, inputs, outputs = requests + done, inputs + (each[0] or 0.0), outputs + (each[1] or 0.0)
    return (inputs / requests, outputs / requests) if requests else (None, None)


def steady_window(cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The figures of the steady window of a summary's cell; None where it has none."""
    return None if never_steady(cell) else mapping(mapping(cell.get("metrics")).get("steady")) or None


def lasting(cell: Mapping[str, Any], *, steady: bool = True) -> Mapping[str, Any]:
    """The throughputs of a summary's cell that tell what it gives in the long run, with their `ci95` where known:
    what comes, where that is kept up with; else what was delivered in the steady window, or in the whole cell.
    `steady`: False where none but whole cells are to be compared.
    """
    metrics = mapping(cell.get("metrics"))
    return mapping(metrics.get("sustained")) or (steady_window(cell) if steady else None) or metrics


def never_steady(cell: Mapping[str, Any]) -> bool:
    """Whether a summary's cell is an open loop whose queue grows. Until its last request is sent, the server takes up
    prompts, and most answers come later: what is done between the first and the last send is no state of it.
    """
    found = mapping(cell.get("verdict")).get("findings")
    return isinstance(found, list) and any(mapping(each).get("kind") in _QUEUE_GROWS for each in found)


def slo_met(cell: Mapping[str, Any]) -> bool | None:
    """Whether a summary's cell met its bounds: every percentile, and per request every request; None where nothing
    was bounded. Where all bounds are on percentiles, attainment is told and demands nothing.
    """
    bounds = cell.get("slo")
    met = [bool(mapping(bound).get("met")) for bound in bounds] if isinstance(bounds, list) else []
    attainment = number(mapping(cell.get("metrics")).get("attainment"))
    if attainment is not None and (cell.get("slo_per_request_s") or not met):
        met.append(attainment == 1)
    return all(met) if met else None


def slo_probability(cell: Mapping[str, Any]) -> float | None:
    """How likely a summary's cell meets all its bounds; None where that is not known, or nothing was bounded.

    Bounds on one measure stand and fall together; those on several are taken as independent.
    """
    found: dict[str, float] = {}
    bounds = cell.get("slo")
    for bound in map(mapping, bounds if isinstance(bounds, list) else []):
        p = number(bound.get("p_met"))
        if p is None:
            return None
        base = str(bound.get("metric")).partition("_")[0]
        found[base] = min(p, found.get(base, 1.0))
    return math.prod(found.values()) if found else None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _named(value: Any) -> str | None:
    """A name, or the name of something described."""
    return _text(value) or _text(mapping(value).get("name"))


def number(value: Any) -> float | None:
    """A finite number, else nothing: papers and summaries may come from anywhere."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
