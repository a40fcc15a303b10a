"""LoRA adapters: what they weigh, which slots engines keep them in, and what these take of the KV cache."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone.catalogue import find_model, parse_deployment
from loadstone.catalogue.find import find_gpu
from loadstone.core.errors import InputError
from loadstone.core.plan import Load, Plan, TrafficClass
from loadstone.core.run_folder import read_plan
from loadstone.core.run_folder.plan import write_plan
from loadstone.engines import launch_of, rules_of
from loadstone.engines.launch import Site
from loadstone.engines.sharding.adapters import AdapterSlots, adapter_numbers
from loadstone.engines.sharding.rank import Shape
from loadstone.predict.scheduler import EnginePolicy, Scheduler, Sequence
from loadstone.predict.simulator.adapters import ResidentAdapters
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import fleet_of
from loadstone.predict.simulator.latencies import answered_rows, latencies_s
from loadstone.predict.sizing.size import Row, size
from loadstone.predict.steady_state import Lengths, steady_state
from loadstone.predict.step_time import StepModel
from loadstone.predict.step_time.adapters import AdapterTimes, adapter_times, different_adapters
from loadstone.workload.class_requests import read_classes
from loadstone.workload.lengths import Length
from loadstone.workload.mix import Mix, MixedPart
from loadstone.workload.schedule import make_plan
from loadstone.workload.synthetic import Synthetic

DEPLOYMENT = "llama-3.1-8b@1xh100"
ONE = Shape(1, 1, 1, 1)


def fixed(tokens: int) -> Length:
    return Length("fixed", tokens)


MIB = 2.0**20


def sized(options: str, model: str = "llama-3.1-8b@1xh100") -> Row:
    return size(parse_deployment(f"{model}/{options}").worker)


@pytest.mark.parametrize(
    ("model", "numbers", "mib"),
    [
        ("llama-3.1-8b", 2_621_440, 80.0),
        ("llama-2-7b", 2_498_560, 76.25),
        ("qwen2.5-7b", 2_523_136, 77.0),
        ("qwen3-32b", 8_388_608, 256.0),
        ("llama-3.1-70b", 12_943_360, 395.0),
    ],
)
def test_numbers_of_an_adapter_follow_from_shapes(model: str, numbers: int, mib: float) -> None:
    assert adapter_numbers(find_model(model), ONE) == numbers
    assert 2 * 16 * numbers / MIB == mib


def test_experts_each_have_their_halves() -> None:
    # Mixtral-8x7B: hidden 4096, kv 1024, 8 experts of 14336, 32 layers.
    attention = 2 * (4096 + 4096) + 2 * (4096 + 1024)
    experts = 8 * 3 * (4096 + 14336)
    assert adapter_numbers(find_model("mixtral-8x7b"), ONE) == 32 * (attention + experts)
    dealt = adapter_numbers(find_model("mixtral-8x7b"), Shape(1, 1, 1, 8))
    assert dealt == 32 * (attention + experts / 8)


def test_tensor_parallelism_cuts_one_half() -> None:
    model = find_model("llama-3.1-8b")
    # q, o: 4096 whole and 4096 / 4; k, v: 4096 and 1024 / 4; gate, up, down: 4096 and 14336 / 4.
    a_layer = 2 * (4096 + 1024) + 2 * (4096 + 256) + 3 * (4096 + 3584)
    assert adapter_numbers(model, Shape(4, 1, 4, 1)) == 32 * a_layer
    assert adapter_numbers(model, Shape(4, 1, 4, 1), None, "all", True) == 2_621_440 / 4
    stages = [adapter_numbers(model, Shape(1, 3, 1, 1), stage) for stage in range(3)]
    assert sum(stages) == 2_621_440
    assert adapter_numbers(model, ONE, None, "q_proj+v_proj") == 32 * (8192 + 5120)


@pytest.mark.parametrize(
    ("version", "mib", "tokens"),
    # AG's logs have 93.8 MiB and 750 tokens of May 2025; later releases have no more words.
    [("0.9", 92.09, 737), ("0.32", 80.0, 640)],
)
def test_a_slot_of_vllm_takes_memory_and_tokens(version: str, mib: float, tokens: int) -> None:
    few, many = (sized(f"version={version},max_loras={slots}") for slots in (16, 128))
    assert few.adapters_bytes is not None
    assert many.adapters_bytes is not None
    assert (many.adapters_bytes - few.adapters_bytes) / 112 / MIB == pytest.approx(mib, abs=0.01)
    assert (few.kv_capacity_tokens - many.kv_capacity_tokens) / 112 == pytest.approx(tokens, abs=1)


@pytest.mark.parametrize(
    ("options", "mib"),
    [
        ("max_loras=4,max_lora_rank=64", 4 * 4 * 80),
        ("enable_lora", 80),
        ("engine=sglang,enable_lora", 8 * 80),
        ("engine=sglang,max_loras_per_batch=2,lora_target_modules=q_proj+v_proj", 2 * 13.0),
        ("engine=llama.cpp,lora=a=/a+b=/b", 2 * 80),
        ("engine=tensorrt-llm,max_lora_rank=8", 0),
    ],
)
def test_engines_have_slots_of_their_own(options: str, mib: float) -> None:
    assert sized(options).adapters_bytes == mib * MIB


@pytest.mark.parametrize("options", ["", "engine=sglang", "enable_lora=0,max_loras=8"])
def test_a_deployment_without_adapters_has_no_such_bytes(options: str) -> None:
    assert sized(options).adapters_bytes is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("max_loras=4,max_cpu_loras=2", "below the 4 slots"),
        ("engine=tensorrt-llm,max_lora_rank=64,device_cache_percent=0.001", "no slot"),
    ],
)
def test_what_cannot_be_says_why(options: str, why: str) -> None:
    row = sized(options)
    assert not row.fits
    assert why in row.why


def started(options: str) -> str:
    launch = launch_of(parse_deployment(f"llama-3.1-8b@1xh100/{options}").worker, Site(model="m"))
    return launch.shell_lines()[0] + "".join(launch.files.values())


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (
            "max_loras=4,max_lora_rank=32,lora_modules=a=/x/a+b=/x/b",
            "--enable-lora --max-lora-rank 32 --max-loras 4 --lora-modules a=/x/a b=/x/b",
        ),
        ("engine=sglang,lora_paths=a=/x", "--enable-lora --lora-paths a=/x"),
        (
            "engine=sglang,max_lora_rank=16",
            "--enable-lora --max-lora-rank 16 --lora-target-modules all",
        ),
        ("engine=llama.cpp,lora=a=/a.gguf+b=/b.gguf", "--lora /a.gguf --lora /b.gguf"),
        ("engine=tensorrt-llm,lora_modules=a=/x", "lora_config:\n  lora_dir:\n  - /x\n"),
    ],
)
def test_engines_are_started_with_adapters(options: str, flags: str) -> None:
    assert flags in started(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("version=0.2.7,max_loras=2", "vllm 0.2.7 does not have it; 0.3"),
        ("engine=sglang,version=0.4.9,lora_paths=a=/x", "sglang 0.4.9 does not have it"),
        ("engine=tensorrt-llm,version=0.17,lora_modules=a=/x", "version=1.0"),
        ("engine=sglang,enable_lora", "largest rank; write"),
        ("lora_modules=a", "no NAME=PATH"),
        ("engine=mlx-lm,enable_lora", "no command of mlx-lm"),
    ],
)
def test_what_an_engine_lacks_is_refused(options: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        started(options)


# --- a batch's slots ------------------------------------------------------------------------------


def batches(adapters: list[int], slots: AdapterSlots, order: str = "mixed") -> list[set[int]]:
    """The requests of each step's prompts, of requests that all come at once."""
    policy = EnginePolicy(
        kv_blocks=100,
        block_tokens=16,
        max_batched_tokens=100,
        max_seqs=10,
        order=order,
        adapters=slots,
    )
    scheduler = Scheduler(policy)
    for number, adapter in enumerate(adapters):
        sequence = Sequence(number, 10, 5)
        sequence.adapter = adapter
        scheduler.add(sequence)
    found = []
    while not scheduler.idle:
        steps = scheduler.schedule()
        if scheduler.chunks:
            found.append({chunk[0].row for chunk in scheduler.chunks})
        scheduler.advance(steps)
    return found


def test_vllm_passes_by_who_finds_no_slot() -> None:
    # a1 b1 a2: b1 waits until no a runs; who asks for no adapter needs no slot.
    assert batches([1, 2, 1], AdapterSlots(1)) == [{0, 2}, {1}]
    assert batches([1, 0, 2, 0], AdapterSlots(1)) == [{0, 1, 3}, {2}]
    assert batches([1, 2, 3], AdapterSlots(2)) == [{0, 1}, {2}]


def test_sglang_has_one_slot_for_those_without_adapter() -> None:
    slots = AdapterSlots(1, needs_base=True)
    assert batches([1, 0, 1, 0], slots) == [{0, 2}, {1, 3}]
    slots = AdapterSlots(2, needs_base=True)
    assert batches([1, 0, 2, 0], slots, "prefill-first") == [{0, 1, 3}, {2}]
    # Before 0.5.5 the queue stands still.
    slots = AdapterSlots(1, needs_base=True, passes=False)
    assert batches([1, 0, 1, 0], slots) == [{0}, {1}, {2}, {3}]


def test_releases_of_sglang_differ_in_who_may_pass() -> None:
    old, new = (
        rules_of(
            parse_deployment(f"{DEPLOYMENT}/engine=sglang,version={version},max_loras=2").worker
        )
        for version in ("0.5.4", "0.5.5")
    )
    assert (old.adapter_slots.passes, new.adapter_slots.passes) == (False, True)


# --- loads and steps ------------------------------------------------------------------------------


def times_of(options: str) -> AdapterTimes:
    times = adapter_times(rules_of(parse_deployment(f"{DEPLOYMENT}/{options}").worker))
    assert times is not None
    return times


def test_the_least_recently_used_adapter_gives_its_slot_up() -> None:
    times = times_of("version=0.9,max_loras=2")
    resident = ResidentAdapters(AdapterSlots(2, host=3), times)
    loads = [resident.step_s({adapter, 0}, 1)[1] for adapter in (1, 2, 1, 3, 1, 2)]
    # 1 and 2 come; 3 takes the slot of 2, which has to come again.
    assert loads == pytest.approx([times.load_s] * 2 + [0, times.load_s, 0, times.load_s])
    assert resident.loads == 4
    # A fourth is on disk, and takes the host's room of the first.
    assert resident.step_s({4}, 1)[1] == pytest.approx(times.load_s + times.disk_s)
    assert 0.003 < times.load_s < 0.0081


@pytest.mark.parametrize(
    ("version", "idle", "used"),
    # 100 slots of 128 modules at 0.178 µs, until steps without adapters have graphs of their own.
    [("0.9", 0.00228, 0.00228), ("0.13", 0.0, 0.00228), ("0.32", 0.0, 0.00228)],
)
def test_slots_cost_what_the_release_makes_of_them(version: str, idle: float, used: float) -> None:
    times = times_of(f"version={version},max_loras=100")
    assert times.step_s(32, 0) == pytest.approx(idle, rel=0.01)
    alone = 128 * (0.31e-6 * 32 + 3.0e-6)
    assert times.step_s(32, 1) - alone == pytest.approx(used, rel=0.01)
    by_active = times_of("version=0.32,max_loras=100,specialize_active_lora")
    assert by_active.step_s(32, 1) == pytest.approx(alone + 128 * 0.178e-6, rel=0.01)


def test_wide_ranks_cost_more_and_never_less_than_reading_them() -> None:
    per_rank = [times_of(f"max_loras=4,max_lora_rank={rank}").adapter for rank in (8, 16, 32, 512)]
    assert per_rank[0] == per_rank[1] == pytest.approx(128 * 3.0e-6)
    assert per_rank[2] == pytest.approx(128 * 4.7e-6)
    bytes_read = 2 * 2_621_440 * 512
    assert per_rank[3] > bytes_read / find_gpu("h100").hbm_bytes_per_s


def test_what_nobody_measured_is_told() -> None:
    assert times_of("version=0.9,max_loras=4").guessed == ""
    assert "0.15" in times_of("version=0.15,max_loras=4").guessed
    for options in ("max_loras=4", "engine=sglang,max_loras=4"):
        assert math.exp(1.2816 * times_of(options).spread) == pytest.approx(3)


def test_draws_move_the_times_of_adapters_by_a_factor_of_three() -> None:
    model = fleet_of(parse_deployment(f"{DEPLOYMENT}/max_loras=8")).model
    assert isinstance(model, StepModel)
    drawn = [each.adapters.adapter / model.adapters.adapter for each in model.draws(400, 0)]
    low, high = np.quantile(drawn, (0.1, 0.9))
    assert (low, high) == (pytest.approx(1 / 3, rel=0.25), pytest.approx(3, rel=0.25))
    assert model.light().adapters is None


def test_different_adapters_of_a_batch() -> None:
    # A(1 − (1 − 1/A)ᴮ)
    assert different_adapters((1 / 32,) * 32, 32) == pytest.approx(32 * (1 - (31 / 32) ** 32))
    assert different_adapters((1.0,), 5) == 1
    assert different_adapters((), 5) == 0


def mixed_plan(**of_class: Any) -> Plan:
    traffic = TrafficClass("users", adapter="users", **of_class)
    plan = make_plan(
        Synthetic(fixed(256), fixed(200)), [Load("concurrency", 32)], requests=[320], warmup=32
    )
    draw = np.random.default_rng(1).integers(1, 1 + len(traffic.adapter_names), len(plan))
    kinds = np.zeros(len(plan), np.uint8)
    return replace(plan, classes=(traffic,), traffic_class=kinds, adapter=draw.astype(np.int32))


def test_the_closed_form_is_what_a_cell_comes_to() -> None:
    fleet = fleet_of(parse_deployment(f"{DEPLOYMENT}/version=0.9,max_loras=64"))
    plan = mixed_plan(adapters=32)
    run = run_cell(plan, 0, fleet)
    tpot = float(np.median(latencies_s(answered_rows(run))["tpot_s"]))
    shares = tuple(np.bincount(plan.adapter)[1:] / len(plan))
    lengths = Lengths(256, 200, adapters=shares)
    assert isinstance(fleet.model, StepModel)
    expected = steady_state(fleet.model, fleet.policy, 1, 31, lengths).tpot_s
    assert tpot == pytest.approx(expected, rel=0.05)
    alone = steady_state(fleet.model, fleet.policy, 1, 31, Lengths(256, 200)).tpot_s
    assert expected > 1.5 * alone
    assert run.adapter_loads == (32, 64)


def test_adapters_are_drawn_by_their_class_alone(tmp_path: Path) -> None:
    def planned(*classes: str) -> Plan:
        requests = read_classes(None, classes)
        parts = [MixedPart(each, Synthetic(fixed(8), fixed(4)), fixed(4)) for each in requests]
        return make_plan(Mix(parts), [Load("rate", 10), Load("rate", 20)], requests=[400, 400])

    users = "users,share=1,adapters=50,popularity=zipf"
    plan = planned("base,share=1", users)
    both = planned("base,share=1", users, "legal,share=1,adapter=legal")
    names = [
        [
            [
                each.adapter_names[n - 1]
                for n in each.adapter[(each.cell == cell) & (each.phase == 1)]
                if n
            ]
            for cell in (0, 1)
        ]
        for each in (plan, both)
    ]
    assert names[0][0] == names[0][1]  # cells differ by their load alone
    own = [name for name in names[1][0] if name != "legal"]
    assert own == names[0][0][: len(own)]
    assert names[1][0].count("legal") in (133, 134)  # a third of 400
    write_plan(tmp_path / "plan.parquet", both)
    read = read_plan(tmp_path / "plan.parquet")
    assert read.plan_id == both.plan_id != plan.plan_id
    assert read.adapter.tolist() == both.adapter.tolist()
