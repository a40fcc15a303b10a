"""What a run was of, whoever wrote its papers."""

from typing import Any

import msgspec
import pytest

from loadstone.analyse.run_facts import RunFacts, engine_name, gpu_name, run_facts
from loadstone.core.host import Host
from loadstone.core.metrics import Metrics, Requests
from loadstone.core.plan import Load
from loadstone.core.record import RunInfo, Target
from loadstone.core.settings import read_settings
from loadstone.core.summary import CellSummary, Summary
from loadstone.core.verdict import Verdict

TARGET = Target(
    url="http://x",
    endpoint="chat",
    model="m/live",
    engine="vLLM",
    engine_version="0.26.0",
    prompt_kind="text",
)
FIXED, UNIFORM = (
    {"kind": "fixed", "mean": 100.0},
    {"kind": "uniform", "mean": 75.0, "low": 50, "high": 100},
)


def info(settings: dict[str, Any], target: Target | None = TARGET) -> RunInfo:
    return RunInfo(
        run_id="r", source="measured", created="", command=[], loadstone="", host=Host(), target=target, plan_id="",
        seed=0, salt=None, settings=read_settings(settings),
    )  # fmt: skip


def test_a_live_run_says_what_its_server_said() -> None:
    facts = run_facts(
        info(
            {
                "workload": {
                    "kind": "synthetic",
                    "input": FIXED,
                    "output": UNIFORM,
                    "prefix_tokens": 40,
                }
            }
        )
    )
    assert (facts.engine, facts.engine_version, facts.model) == ("vLLM", "0.26.0", "m/live")
    assert (facts.input_tokens, facts.output_tokens, facts.range_ratio) == (100, 75, 0.5)
    assert (facts.prefix_tokens, facts.gpu, facts.tp, facts.mode, facts.tool) == (
        40,
        None,
        None,
        "serving",
        "Loadstone",
    )
    assert facts.label == "vLLM 0.26.0 · live"


def test_a_deployment_goes_before_the_server() -> None:
    deployment = {
        "engine": "trt-llm",
        "model": {"name": "m/x"},
        "gpu": "NVIDIA H200",
        "gpus": 8,
        "tp": 8,
        "pp": 1,
    }
    facts = run_facts(
        info({"deployment": deployment, "workload": {"mode": "offline"}}, target=None)
    )
    assert (facts.engine, facts.model, facts.gpu, facts.mode) == (
        "TensorRT-LLM",
        "m/x",
        "H200",
        "offline",
    )
    assert facts.label == "TensorRT-LLM · x · 8×H200 tp8"


def test_settings_are_the_users_label_and_the_arguments_that_are_no_facts() -> None:
    arguments = {"max_num_seqs": "8", "max_model_len": "4096", "prefix_caching": "false"}
    facts = run_facts(info({"label": "eager", "deployment": {"arguments": arguments}}))
    assert facts.settings == "eager, max_num_seqs=8"
    assert facts.label == "vLLM 0.26.0 · live · eager, max_num_seqs=8"
    assert (
        run_facts(info({"label": "", "deployment": {"arguments": {"ctx_size": "1"}}})).settings
        is None
    )
    assert run_facts(info({"label": ["x"], "deployment": {"arguments": 3}})).settings is None


def test_lengths_come_from_the_summary_where_the_papers_have_none() -> None:
    cells = [
        CellSummary(
            load=Load("burst", 4),
            requests=Requests(ok=ok, short=short),
            metrics=Metrics(input_tokens=inputs, output_tokens=8),
            verdict=Verdict(True, []),
        )
        for ok, short, inputs in ((3, 1, 40), (4, None, 40), (None, None, None))
    ]
    summary = Summary(
        schema=1,
        run_id="r",
        run_dir="r",
        source="imported",
        status="done",
        plan_id="",
        seed=0,
        cells=cells,
    )
    facts = run_facts(info({}), summary)
    assert (facts.input_tokens, facts.output_tokens) == (10, 2)


def test_nothing_said_is_none() -> None:
    facts = run_facts(
        info(
            {"deployment": "x", "workload": [], "import": 3, "prefix_cache": "left as it was"}, None
        )
    )
    assert {
        getattr(facts, name)
        for name in ("engine", "model", "gpu", "gpus", "input_tokens", "prefix_cache")
    } == {None}
    assert facts.label == "unknown"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("h200", "H200"), ("H200-SXM-141GB", "H200"), ("NVIDIA-H100-80GB-HBM3", "H100"), ("mi300", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"), ("a100_sxm", "A100"), ("L40S", "L40S"), ("gb200", "GB200"),
        ("H100 PCIe", "H100 PCIe"), ("NVIDIA H100 NVL", "H100 NVL"), ("RTX 4090", "RTX 4090"), (None, None),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("H20-3e", "H20 141GB"), ("NVIDIA H20", "H20"), ("own", "own"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"), ("NVIDIA H800 PCIe", "H800 PCIe"), ("Tesla T4", "T4"),
    ],
)  # fmt: skip
def test_gpus_have_one_name(said: str | None, name: str | None) -> None:
    assert gpu_name(said) == name


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("vllm", "vLLM"),
        ("trt-llm", "TensorRT-LLM"),
        ("sglang", "SGLang"),
        ("own", "own"),
        (None, None),
    ],
)
def test_engines_have_one_name(said: str | None, name: str | None) -> None:
    assert engine_name(said) == name


@pytest.mark.parametrize(
    ("engine", "names", "gpu", "gpus", "label"),
    [
        ("vLLM", ["NVIDIA H100 80GB HBM3"], "H100", 1, "vLLM 0.26.0 · live · 1×H100"),
        ("vLLM", ["NVIDIA H200"] * 8, "H200", None, "vLLM 0.26.0 · live · H200"),
        ("vLLM", ["NVIDIA H200", "NVIDIA L4"], None, None, "vLLM 0.26.0 · live"),
        ("llama.cpp", ["NVIDIA H200"], None, None, "llama.cpp 0.26.0 · live"),
        (None, [], None, None, "0.26.0 · live"),
    ],
)
def test_gpus_that_were_watched_are_those_of_the_server_beside_them(
    engine: str | None, names: list[str], gpu: str | None, gpus: int | None, label: str
) -> None:
    watched = [{"gpu": number, "name": name} for number, name in enumerate(names)]
    facts = run_facts(info({"gpus": watched}, msgspec.structs.replace(TARGET, engine=engine)))
    assert (facts.gpu, facts.gpus, facts.label) == (gpu, gpus, label)


def test_pools_are_told_apart_by_their_layout() -> None:
    """The same GPUs in other ratios, or with a prefill worker's own argument, are other setups."""

    def facts(prefill: int, decode: int, **arguments: str) -> RunFacts:
        one = {"gpu": "h100", "gpus": 1, "tp": 1}
        pools = [
            {"role": "prefill", "workers": prefill, **one, "arguments": arguments},
            {"role": "decode", "workers": decode, **one, "dp": 8},
        ]
        return run_facts(info({"deployment": {**one, "gpus": prefill + decode, "pools": pools}}))

    assert facts(1, 3).layout == "prefill 1×1×H100 tp1 + decode 3×1×H100 tp1 dp8"
    assert "prefill 2×1×H100 tp1 + decode 2×1×H100 tp1 dp8" in facts(2, 2).label
    assert (
        "prefill 2×1×H100 tp1 max_num_batched_tokens=2048 +"
        in facts(2, 2, max_num_batched_tokens="2048").label
    )
    assert (
        run_facts(info({"deployment": {"gpus": 4, "tp": 1, "pools": [{"role": "prefill"}]}})).layout
        is None
    )
