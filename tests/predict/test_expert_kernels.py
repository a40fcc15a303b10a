"""What kernels of experts were measured at, and how that is fitted to a table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import script
from loadstone import catalogue
from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.core.errors import InputError
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.coefficients import INDEX, PRIOR
from loadstone.predict.step_time.expert_kernels import ExpertKernel, expert_kernel, expert_kernels
from loadstone.predict.step_time.formulas import body_seconds
from loadstone.predict.step_time.operators import COLLECTIVE, EXPERTS, Work, idealise
from loadstone.predict.step_time.profile import prior_profile
from loadstone.predict.step_time.work import work_of

fitting = script(Path(__file__).resolve().parents[2] / "benchmarks/expert_kernels.py")


def test_shipped_kernels_are_physical() -> None:
    kernels = expert_kernels()
    assert (
        len({(each.engine, each.architecture, each.dtype) for each in kernels}) == len(kernels) > 20
    )
    for each in kernels:
        assert (
            10e-6 < each.floor_s <= fitting.MOST_FLOOR_S
        )  # no table of any board has a row in less than 15 µs
        assert 0 < each.compute < 1
        assert 0.3 < each.memory < 1
        assert 0.1 < each.moving <= 1
        assert each.off < 0.25, each  # of prompts alone where the table has no even routing


def test_an_engine_that_was_not_measured_gets_the_mean_of_its_neighbours() -> None:
    known = [
        each for each in expert_kernels() if (each.architecture, each.dtype) == ("hopper", "fp8")
    ]
    found = expert_kernel("max", "hopper", "fp8")
    assert found.memory == pytest.approx(np.exp(np.mean([np.log(each.memory) for each in known])))
    assert min(each.compute for each in known) < found.compute < max(each.compute for each in known)
    assert expert_kernel("vllm", "hopper", "fp16") == expert_kernel("vllm", "hopper", "bf16")
    assert expert_kernel("llama.cpp", "cpu", "q4").memory > 0


def test_variants_of_an_architecture_take_its_kernels_and_what_it_cannot_multiply_is_widened() -> (
    None
):
    def numbers(engine: str, architecture: str, dtype: str) -> tuple[float, ...]:
        kernel = expert_kernel(engine, architecture, dtype)
        return kernel.floor_s, kernel.compute, kernel.memory, kernel.moving

    for engine, architecture, dtype in (("vllm", "hopper", "fp8"), ("sglang", "ampere", "bf16")):
        assert numbers(engine, f"{architecture} pcie", dtype) == numbers(
            engine, architecture, dtype
        )
    for dtype in ("fp8", "mxfp4", "nvfp4"):
        assert numbers("vllm", "ampere", dtype) == numbers("vllm", "ampere", "int4")
    assert numbers("vllm", "hopper", "nvfp4") == numbers("vllm", "hopper", "int4")
    assert numbers("vllm", "hopper", "mxfp4") != numbers(
        "vllm", "hopper", "int4"
    )  # it was measured
    assert numbers("vllm", "blackwell pcie", "bf16") != numbers(
        "vllm", "blackwell", "bf16"
    )  # it has its own
    assert numbers("vllm", "ada pcie", "nvfp4") == numbers("vllm", "ada pcie", "int4")
    for dtype in ("bf16", "fp8"):
        assert numbers("vllm", "cdna 3", dtype) != numbers("vllm", "cdna 3", "int4")


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-20b"])
def test_prompts_of_experts_follow_the_data_sheets_of_cards_alike(model: str) -> None:
    def prompt_s(gpu: str) -> float:
        deployed = parse_worker(f"{model}@1x{gpu}/engine=vllm")
        return StepModel(deployed, prior_profile()).step_s(0, 0, [(8192, 0)])

    assert prompt_s("a100-pcie") == pytest.approx(
        prompt_s("a100"), rel=0.02
    )  # which differ in memory alone
    assert 1 < prompt_s("h100-nvl") / prompt_s("h100") < 989.5 / 835.5


# --- the fit --------------------------------------------------------------------------------------

TRUE = ExpertKernel("vllm", "hopper", "fp8", floor_s=22e-6, compute=0.31, memory=0.84, moving=0.42)


def table(
    folder: Path, version: str, kernel: ExpertKernel, noise: float = 0.0, *, evenly: str = "balanced",
    shared: bool = True, gpu: str = "h100", folder_name: str = "h100_sxm", cached: float = 0.0,
) -> None:  # fmt: skip
    """Times of a kernel as the formula has them, for three models on one to eight GPUs; not
    `shared`: each rank has the pairs of all; weights of at most `cached` bytes are read at three
    times the bandwidth."""
    rng = np.random.default_rng(1)
    device = catalogue.gpu(gpu)
    rows = []
    for hidden, wide, per_token, experts in (
        (4096, 1536, 8, 128),
        (7168, 2048, 8, 256),
        (3072, 1536, 8, 256),
    ):
        for tp, ep in ((1, 1), (4, 1), (8, 1), (1, 2), (1, 8)):
            for tokens in (
                1,
                4,
                16,
                64,
                128,
                512,
                1024,
                1536,
                2048,
                3072,
                4096,
                6144,
                8192,
                12288,
                16384,
            ):
                parameters, pairs = (
                    3 * hidden * wide / tp,
                    tokens * per_token / (ep if shared else 1),
                )
                read = min(experts / ep, max(1.0, pairs)) * parameters * (1 + 4 / 128**2)
                rate = kernel.memory * device.hbm_bytes_per_s * (3 if read <= cached else 1)
                seconds = kernel.floor_s + read / rate
                seconds += (
                    pairs
                    * 2
                    * (2 * hidden + 3 * wide / tp)
                    / (kernel.moving * device.hbm_bytes_per_s)
                )
                seconds += 2 * pairs * parameters / (kernel.compute * device.flops_per_s["fp8"])
                row = {
                    "num_tokens": tokens, "hidden_size": hidden, "inter_size": wide, "topk": per_token,
                    "num_experts": experts, "moe_tp_size": tp, "moe_ep_size": ep, "moe_dtype": "fp8_block",
                    "kernel_source": "fused", "distribution": evenly,
                    "latency": seconds * 1e3 * np.exp(rng.normal(0, noise)),
                }  # fmt: skip
                rows += [row, row | {"distribution": "power_law_1.2", "latency": 9.0}]
                rows += [row | {"kernel_source": "slower", "latency": row["latency"] * 2}]
    path = folder / folder_name / "moe" / kernel.engine / version / "moe_perf.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_a_table_gives_back_the_kernel_that_made_it(tmp_path: Path) -> None:
    table(
        tmp_path,
        "0.9.1",
        ExpertKernel("vllm", "hopper", "fp8", floor_s=30e-6, compute=0.1, memory=0.5, moving=0.5),
    )
    table(tmp_path, "0.24.0", TRUE, noise=0.03)
    (found,) = fitting.fit_tables(
        tmp_path
    )  # the newest version, the faster of its kernels, balanced routing
    assert (found.engine, found.architecture, found.dtype, found.version) == (
        "vllm",
        "hopper",
        "fp8",
        "0.24.0",
    )
    assert found.floor_s == pytest.approx(TRUE.floor_s, rel=0.05)
    assert found.memory == pytest.approx(TRUE.memory, rel=0.05)
    assert found.compute == pytest.approx(TRUE.compute, rel=0.05)
    assert found.moving == pytest.approx(TRUE.moving, rel=0.08)
    assert found.off < 0.05


def test_what_a_board_s_cache_serves_is_not_taken_for_a_short_floor(tmp_path: Path) -> None:
    table(tmp_path, "0.24.0", TRUE, noise=0.03, gpu="l40s", folder_name="l40s", cached=100e6)
    (found,) = fitting.fit_tables(tmp_path)
    assert found.architecture == "ada pcie"
    assert found.floor_s == pytest.approx(TRUE.floor_s, rel=0.25)
    assert found.memory == pytest.approx(TRUE.memory, rel=0.05)


def test_a_table_of_uneven_routing_alone_gives_its_prompts_and_its_neighbours_decodes(
    tmp_path: Path,
) -> None:
    other = ExpertKernel(
        "sglang", "hopper", "fp8", floor_s=26e-6, compute=0.1, memory=0.8, moving=0.7
    )
    table(tmp_path, "0.5.10", other)
    table(tmp_path, "0.14.0", TRUE, evenly="power_law_1.01")
    kernels = {each.engine: each for each in fitting.fit_tables(tmp_path)}
    assert kernels["vllm"].compute == pytest.approx(TRUE.compute, rel=0.1)
    assert kernels["vllm"].moving == pytest.approx(TRUE.moving, rel=0.1)
    assert kernels["vllm"].floor_s == pytest.approx(kernels["sglang"].floor_s)
    assert kernels["vllm"].memory == pytest.approx(kernels["sglang"].memory)
    table(tmp_path, "0.24.0", TRUE)
    again = {each.engine: each for each in fitting.fit_tables(tmp_path)}
    assert again["vllm"].floor_s == pytest.approx(
        TRUE.floor_s, rel=0.05
    )  # its own, where a release has even routing


def test_ranks_that_have_the_pairs_of_all_tell_nothing_of_whole_experts(tmp_path: Path) -> None:
    table(tmp_path, "0.5.10", TRUE, noise=0.03, shared=False)
    (found,) = fitting.fit_tables(tmp_path)
    assert found.rows == 3 * 3 * 15  # those with the experts of one rank
    assert found.compute == pytest.approx(TRUE.compute, rel=0.05)
    assert found.memory == pytest.approx(TRUE.memory, rel=0.05)


def test_a_folder_without_tables_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="moe_perf") as raised:
        fitting.fit_tables(tmp_path)
    assert "\n" not in str(raised.value)


# --- what the model makes of them -----------------------------------------------------------------


def experts_s(work: Work, tokens: float, **coefficients: float) -> float:
    values = np.exp(PRIOR)[None, :].copy()
    for name, value in coefficients.items():
        values[0, INDEX[name]] = value
    at = np.flatnonzero(work.operators.kind == EXPERTS)
    with_experts = body_seconds(work, values, np.array([tokens]))[0]
    values[0, INDEX["expert_memory"]] = values[0, INDEX["expert_compute"]] = 1e12
    without = body_seconds(work, values, np.array([tokens]))[0]
    return float((with_experts - without) / work.operators.layers[at].sum())


def test_experts_touched_are_those_of_uniform_routing_and_fewer_where_some_are_favoured() -> None:
    deployment = parse_worker("qwen3-235b-a22b:fp8@8xh200/tp8,engine=vllm")
    work = work_of(deployment)
    at = int(np.flatnonzero(work.operators.kind == EXPERTS)[0])
    reading_s = work.operators.weights[at] / (work.operators.efficiency_memory[at] * work.hbm[0])
    for tokens in (1, 8, 64):
        seconds = experts_s(work, tokens, routing_shape=1e6, expert_compute=1e12)
        assert seconds / reading_s == pytest.approx(128 * (1 - (1 - 8 / 128) ** tokens), rel=1e-3)
        skewed = experts_s(work, tokens, routing_shape=1.0, expert_compute=1e12)
        assert skewed < seconds
    assert experts_s(work, 1e6, routing_shape=1.0, expert_compute=1e12) > 127 * reading_s


def test_the_speed_of_light_has_no_floors_and_full_reach() -> None:
    work = work_of(parse_worker("qwen3-235b-a22b:fp8@8xh200/tp8,engine=vllm"))
    light = idealise(work)
    at = work.operators.kind == EXPERTS
    assert (work.operators.floor[at] > 0).all()
    assert (light.operators.floor == 0).all()
    assert (light.operators.efficiency_memory[at] == 1).all()
    assert (light.operators.efficiency_compute[at] == 1).all()
    assert (light.operators.efficiency_moving[at] == 1).all()


def test_tokens_are_dealt_out_at_the_rate_their_kernel_was_measured_at() -> None:
    work = work_of(parse_worker("qwen3-235b-a22b:fp8@8xh200/tp8,engine=vllm"))
    at = int(np.flatnonzero(work.operators.kind == EXPERTS)[0])
    slower = work.with_operators(efficiency_moving=work.operators.efficiency_moving / 2)
    values = np.exp(PRIOR)[None, :].copy()
    values[0, INDEX["routing_shape"]] = 1e6
    tokens = np.array([4096.0])
    more = body_seconds(slower, values, tokens) - body_seconds(work, values, tokens)
    each_s = (
        4096
        * 8
        * work.operators.activations[at]
        / (work.operators.efficiency_moving[at] * work.hbm[0])
    )
    assert more[0] == pytest.approx(work.operators.layers[at] * each_s, rel=1e-6)


def test_a_table_of_launches_that_no_graph_replayed_is_not_taken(tmp_path: Path) -> None:
    table(tmp_path, "0.24.0", TRUE)
    table(tmp_path, "0.25.0", msgspec.structs.replace(TRUE, floor_s=3 * fitting.MOST_FLOOR_S))
    (found,) = fitting.fit_tables(tmp_path)
    assert found.version == "0.24.0"


def test_a_norm_over_all_heads_is_one_more_collective_a_layer() -> None:
    def collectives(model: str) -> float:
        work = work_of(parse_worker(f"{model}@4xh200/tp4,engine=vllm"))
        return float(
            work.operators.layers[work.operators.kind == COLLECTIVE].sum()
            / work.operators.layers[work.operators.kind == EXPERTS].sum()
        )

    assert collectives("qwen3-235b-a22b:fp8") == pytest.approx(2.0)
    assert collectives("minimax-m2.5") == pytest.approx(3.0)
