"""The search for the highest load that bounds allow: on the simulated clock, over HTTP, and its
decisions alone."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import loadstone
from loadstone.analyse.stopping import Stopping, Watch, parse_rules
from loadstone.core.errors import InputError
from loadstone.core.record import WatchedRequest
from loadstone.core.settings import FoundMax, SearchedLoad
from loadstone.core.summary import SCHEMA, Summary
from loadstone.runs.find_max import NEAR, Probe, SearchAnswer, _search, _text, find_max
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import SimulateOptions

NOTHING = Summary(
    schema=SCHEMA,
    run_id="",
    run_dir="",
    source="measured",
    status="done",
    plan_id="",
    seed=0,
    cells=[],
)


def _tried(capacity: float, sure: bool = True):  # type: ignore[no-untyped-def]
    def tried(load: float, number: int, left_s: float, error: float) -> Probe:
        holds = load <= capacity
        return Probe(
            load, holds if sure or abs(load / capacity - 1) > 0.2 else None, holds, NOTHING
        )

    return tried


@pytest.mark.parametrize("capacity", [0.3, 7.7, 950.0])
@pytest.mark.parametrize("start", [1.0, 40.0])
def test_the_bracket_ends_within_five_per_cent(capacity: float, start: float) -> None:
    answer = _search(_tried(capacity), start, "rate", math.inf)
    assert answer.high is not None
    assert answer.low <= capacity < answer.high <= NEAR * answer.low * 1.0001
    assert len(answer.probes) < 20


@pytest.mark.parametrize("capacity", [1, 2, 37, 512])
def test_a_closed_loop_s_places_are_whole(capacity: int) -> None:
    answer = _search(_tried(capacity), 8.0, "concurrency", math.inf)
    assert answer.low <= capacity
    assert answer.low == capacity or answer.low * NEAR >= capacity - 1
    assert all(probe.load == round(probe.load) for probe in answer.probes)


def test_what_is_not_sure_is_not_said() -> None:
    answer = _search(_tried(10.0, sure=False), 1.0, "rate", math.inf)
    assert answer.low <= 8
    assert answer.high is not None
    assert answer.high >= 12


def test_a_load_that_surely_holds_far_below_the_edge_is_not_the_answer() -> None:
    def tried(load: float, number: int, longest_s: float, error: float) -> Probe:
        sure = longest_s > 100 or load < 2
        return Probe(load, load <= 50 if sure else None, load <= 50, NOTHING)

    answer = _search(tried, 1.0, "rate", 600.0, 4.0)
    assert 50 / 1.2 < answer.low <= 50 < (answer.high or math.inf) < 50 * 1.2


def test_of_probes_that_contradict_each_other_the_later_is_believed() -> None:
    def tried(load: float, number: int, longest_s: float, error: float) -> Probe:
        sure = longest_s > 100
        edge = 50.0 if sure else 80.0  # short probes are fooled
        return Probe(load, load <= edge if sure else None, load <= edge, NOTHING)

    answer = _search(tried, 32.0, "rate", 600.0)
    assert 25 < answer.low <= 50 < (answer.high or math.inf) <= 100


def test_a_probe_ends_as_soon_as_it_is_known_on_which_side_the_percentile_lies() -> None:
    rng = np.random.default_rng(1)
    for mean_s, holds in ((0.02, True), (0.3, False)):
        watch = Watch(Stopping(parse_rules("ttft_p99<100ms")))
        requests: list[WatchedRequest] = []
        stop = None
        while stop is None and len(requests) < 20_000:
            at_s = len(requests) * 0.01
            ttft_s = float(rng.exponential(mean_s / 5))
            requests.append(WatchedRequest(at_s, at_s + ttft_s, ttft_s, 0.01, ttft_s))
            stop = watch.look(at_s, len(requests), 0, requests)
        assert stop is not None
        assert stop.holds is holds
        assert len(requests) < 3000


def test_bounds_are_not_said_to_hold_before_a_queue_would_show() -> None:
    for ttft_s, holds, least_s in ((0.02, True, 10.0), (0.3, False, 0.0)):
        watch = Watch(Stopping(parse_rules("ttft_p50<100ms"), shows_s=10.0))
        requests: list[WatchedRequest] = []
        stop = None
        while stop is None and len(requests) < 3000:
            at_s = len(requests) * 0.01
            requests.append(WatchedRequest(at_s, at_s + ttft_s, ttft_s, 0.01, ttft_s))
            stop = watch.look(at_s, len(requests), 0, requests)
        assert stop is not None
        assert stop.holds is holds
        assert least_s <= at_s < least_s + 5


def test_what_fails_at_less_does_not_hold() -> None:
    """Two of many loads fail though higher ones hold: a server that is disturbed."""
    answer = _search(
        lambda load, *_: Probe(load, load != 4, load != 4, NOTHING), 1.0, "rate", 600.0, 4.0
    )
    assert answer.high == 4
    assert answer.low < 4


def probe(load: float, holds: bool | None, likely: bool, why: str = "") -> Probe:
    return Probe(load, holds, likely, NOTHING, why)


@pytest.mark.parametrize(
    ("probes", "low", "high", "words"),
    [
        ([probe(8, True, True), probe(16, False, False)], 8, 16,
         "b hold at 8 requests/s, and fail at 16 requests/s (90% sure"),
        ([probe(8, None, True), probe(16, False, False, "it does not keep up")], 0, 16,
         "b seem to hold at 8 requests/s, and fail at 16 requests/s, where it does not keep up (90% sure"),
        ([probe(8, True, True)], 8, None, "b hold at 8 requests/s, and fail at no load that was tried (90% sure"),
        ([probe(8, True, True), probe(16, None, False)], 8, None,
         "b hold at 8 requests/s, and seem to fail at 16 requests/s (90% sure"),
        ([probe(8, None, False)], 0, None,
         "b hold at no load that was tried, and seem to fail at 8 requests/s (1 probes"),
    ],
)  # fmt: skip
def test_one_sentence_says_the_result(
    probes: list[Probe], low: float, high: float | None, words: str
) -> None:
    found = FoundMax(
        load=SearchedLoad("rate", low) if low else None,
        fails_at=SearchedLoad("rate", high) if high else None,
        confidence=0.9,
        requests=100,
    )
    assert _text(SearchAnswer(probes, low, high), found, "b", measured=True).startswith(words)


def test_of_concurrency_the_unit_is_said_and_loads_that_contradict_are_named() -> None:
    found = FoundMax(load=None, fails_at=None, kind="concurrency", requests=10)
    probes = [probe(6, None, True), probe(4, None, False), probe(8, None, False)]
    text = _text(SearchAnswer(probes, 0, None), found, "b", measured=True)
    assert text.startswith("b seem to hold at 6 under way, and seem to fail at 8 under way (")
    assert "4 under way seemed to fail: loads this near cannot be told apart" in text


@pytest.mark.parametrize("trusted", [True, False])
def test_the_sentence_says_that_the_load_s_probe_is_not_trusted(trusted: bool) -> None:
    cell: Any = SimpleNamespace(verdict=SimpleNamespace(trusted=trusted))
    run = msgspec.structs.replace(NOTHING, cells=[cell])
    doubted = probe(8, True, True)._replace(run=run)
    found = FoundMax(load=SearchedLoad("rate", 8), fails_at=None, confidence=0.9, requests=100)
    text = _text(
        SearchAnswer([doubted, probe(16, None, False)], 8, None), found, "b", measured=True
    )
    assert text.endswith("; where they hold, the probe is not trusted)") != trusted


@pytest.mark.long
def test_the_simulated_clock_s_capacity_is_met(tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = loadstone.simulate(
        "llama-3.1-8b@1xh100",
        input=512,
        output=128,
        out=tmp_path,
        find_max="ttft_p99<500ms,tpot_p99<15ms",
    ).document()
    low, high = found["max"]["load"]["value"], found["max"]["fails_at"]["value"]
    assert low < high <= NEAR * low * 1.0001
    assert found["max"]["probes"] == list(range(len(found["cells"])))
    assert len(found["run_dirs"]) == len(found["cells"])
    by_load = {cell["load"]["value"]: cell for cell in found["cells"]}
    assert all(each["met"] for each in by_load[low]["slo"])


@pytest.mark.process
def test_bench_finds_what_a_server_of_known_times_allows(loadstone, tmp_path) -> None:  # type: ignore[no-untyped-def]
    done = loadstone(
        "bench", "--sim", "llama-3.1-8b@1xh100/max_num_seqs=4", "--input", "16", "--output", "4", "--find-max", "e2e_p50<200ms",
        "--concurrency", "4", "--max-duration", "30s", "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    document = done.document
    assert document["max"]["load"]["kind"] == "concurrency"
    assert document["max"]["load"]["value"] >= 4
    assert document["max"]["confidence"] == 0.9


@pytest.mark.process
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"find_max": "ttft_p99±5%"}, "is no bound on percentiles"),
        ({"find_max": "ttft_p99<500"}, "is no bound on percentiles"),
        ({"find_max": "ttft<1s"}, "is no bound on percentiles"),
        (
            {"find_max": "ttft_p99<1s", "requests": "10"},
            "--requests: --find-max decides that itself",
        ),
        ({"find_max": "ttft_p99<1s", "rate": "1,2"}, "give one load to begin with"),
        ({"find_max": "ttft_p99<1s", "rate": "inf"}, "--rate inf"),
    ],
)
def test_bad_input(changed: dict[str, str], words: str) -> None:
    with pytest.raises(InputError) as raised:
        find_max(options_of({"deployment": "llama-3.1-8b@1xh100"} | changed, SimulateOptions))
    assert words in str(raised.value)
