"""Llama 3.2 Vision: layers of cross attention, whose states the cache keeps, by hand arithmetic."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadstone.calibrate.cases import Case, CaseTable, refresh, simulate
from loadstone.calibrate.points import Point
from loadstone.catalogue.deployment.shorthand import parse_deployment, parse_worker
from loadstone.core.pictures import Pictures, PictureShape
from loadstone.predict.scheduler import policy_of
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.latencies import request_rows
from loadstone.predict.sizing.size import size
from loadstone.predict.step_time.profile import profile_of
from loadstone.predict.step_time.work import work_of
from loadstone.runs.pictures import count_visual_tokens
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions
from loadstone.workload.planning import Planner

VISION = {
    "model_type": "mllama_vision_model", "attention_heads": 16, "hidden_size": 1280,
    "intermediate_size": 5120, "image_size": 560, "patch_size": 14, "max_num_tiles": 4,
    "num_global_layers": 8, "num_hidden_layers": 32, "vision_output_dim": 7680,
}  # fmt: skip
SMALL = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
STATES = 4 * 1601


def config_of(folder: Path, layers: int) -> str:
    text = {
        "model_type": "mllama_text_model", "num_hidden_layers": layers, "num_key_value_heads": 8,
        "cross_attention_layers": list(range(3, layers, 5)), "vocab_size": 128256,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
        **(SMALL if layers == 40 else LARGE),
    }  # fmt: skip
    config = {"model_type": "mllama", "text_config": text, "vision_config": VISION}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(("layers", "gpus"), [(40, "1xh100/tp1"), (100, "8xh100/tp8")])
def test_states_take_room_beside_the_prompt(tmp_path: Path, layers: int, gpus: str) -> None:
    """A token or a state has 2 · 8 · 128 numbers of 2 bytes in each layer; a fifth of the layers
    see states, and engines keep a slot of all layers for each."""
    worker = parse_worker(f"{config_of(tmp_path, layers)}@{gpus},engine=sglang")
    assert worker.model.cross is not None
    assert worker.model.cross.count == layers // 5
    row = size(worker, 8192, 4)
    assert row.kv_bytes_per_token == layers * 2 * 8 * 128 * 2
    assert row.kv_bytes == 4 * (8192 + STATES) * layers * 2 * 8 * 128 * 2
    held = row.kv_capacity_tokens // (8192 + STATES)
    assert row.max_concurrent_requests == held
    assert "6,404 states" in row.assumed
    assert size(worker, row.max_context_tokens, 4).fits
    if row.max_context_tokens < 131_072:
        assert not size(worker, row.max_context_tokens + 1, 4).fits
    none = parse_worker(f"{worker.name},limit_mm_per_prompt=0")
    assert size(none, 8192, 4).kv_bytes == 4 * 8192 * layers * 2 * 8 * 128 * 2


@pytest.mark.parametrize(("layers", "gpus"), [(40, "1xh100/tp1"), (100, "8xh100/tp8")])
def test_a_state_costs_its_keys_and_values_and_what_sees_it(
    tmp_path: Path, layers: int, gpus: str
) -> None:
    """Keys and values of a state are 2 · hidden · 2 · 8 · 128 FLOPs in a fifth of the layers; 65
    tokens of a prompt, and each of the answer, see a fifth of the states in all of them."""
    text = f"{config_of(tmp_path, layers)}@{gpus},engine=sglang"
    deployment = parse_deployment(text)
    fleet = fleet_of(deployment)
    model: Any = fleet.model
    times = model.pictures
    hidden = deployment.model.hidden
    assert times.state_flops == layers // 5 * 2 * hidden * 2 * 8 * 128
    picture = times.picture(1920, 1080)
    tower = times.encoder.visual.flops(times.encoder.visual.count(100, 100))
    weights = 40 * (4 * 1280 * 1280 + 2 * 1280 * 5120)  # each of four tiles sees all of them
    weights += 7680 * hidden  # the projector, behind six layers side by side
    assert tower == pytest.approx(2 * STATES * weights + 4 * 1280 * 40 * STATES**2, rel=0.001)
    assert (picture.end, picture.states) == (1, STATES)
    assert picture.flops == tower + STATES * times.state_flops
    nothing = dict.fromkeys(("fixed_s", "flop_s", "picture_s", "pixel_s"), 0.0)
    free: Any = model.at(model.values)
    free.pictures = times._replace(**nothing)

    def times_of(more: dict[str, str], asked: Fleet) -> tuple[float, float]:
        base = {"input": "64", "output": "11", "concurrency": "1", "requests": "2", "warmup": "0"}
        options = options_of({"deployment": text} | base | more, SimulateOptions)
        plan = count_visual_tokens(Planner(options).plan(), deployment, None)
        rows = request_rows(run_cell(plan, 0, asked))
        first, sent, end = (rows[name][0] for name in ("first", "sent", "end"))
        return first - sent, (end - first) / 10

    seen = times_of({"images": "1", "image_size": "1920x1080"}, replace(fleet, model=free))
    alone = times_of({"input": "65"}, fleet)
    fifth = round(STATES / 5)
    more_s = model.step_s(0, 0, [(65, fifth)]) - model.step_s(0, 0, [(65, 0)])
    assert seen[0] - alone[0] == pytest.approx(more_s, abs=2e-6)
    _, slope = model.decode_line(1)
    assert seen[1] - alone[1] == pytest.approx(slope * STATES / 5, rel=1e-6)
    assert not policy_of(deployment.worker).chunked


@pytest.mark.parametrize(
    ("engine", "loads"),
    [("vllm", False), ("vllm,version=0.10.2", True), ("llama.cpp", False), ("sglang", True)],
)
def test_engines_that_do_not_load_such_a_model_are_refused(
    tmp_path: Path, engine: str, loads: bool
) -> None:
    row = size(parse_worker(f"{config_of(tmp_path, 40)}@1xh100/tp1,engine={engine}"), 8192, 1)
    assert row.fits == loads
    assert ("cross attention" in row.why) != loads


def test_calibration_counts_the_states_that_are_read(tmp_path: Path) -> None:
    """Of one user each decode reads the prompt, half of its answer on average and a fifth of the
    states, and so does a prompt's chunk; without pictures none of them."""
    deployment = parse_deployment(f"{config_of(tmp_path, 40)}@1xh100/tp1,engine=sglang")
    worker, count, text, answer = deployment.worker, 6, 64, 32
    zeros = np.zeros(count, np.int32)
    pictures = Pictures(
        (PictureShape(512, 512, tokens=1),), zeros, np.ones(count, np.uint8), zeros - 1
    )
    found = {}
    for seen in (None, pictures):
        inputs = np.full(count, text + (seen is not None), np.int64)
        outputs = np.full(count, answer, np.int64)
        case = Case(
            Point(row=1, load="concurrency", load_value=1.0, stat="median"), deployment, 1,
            policy_of(worker, lengths=inputs + outputs), inputs, outputs, work_of(worker), pictures=seen,
        )  # fmt: skip
        outcome, _ = simulate(case, profile_of(worker).values())
        table = CaseTable([case])
        refresh(table, np.array([profile_of(worker).values()]))
        found[seen is None] = outcome.context, table.chunk_pairs[0]
    read = STATES / 5
    assert found[True][0] == pytest.approx(text + answer / 2, abs=1)
    assert found[False][0] == pytest.approx(text + 1 + read + answer / 2, abs=2)
    assert found[False][1] - found[True][1] == pytest.approx(65 * (read + 32.5) - 64 * 32)
