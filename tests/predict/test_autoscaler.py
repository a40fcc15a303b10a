"""Autoscalers: their laws with answers by hand, their files, and replicas that come and go."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.predict.autoscaler.file import presets, read_autoscaler
from loadstone.predict.autoscaler.fleet import FleetLog, run_scaled
from loadstone.predict.autoscaler.policy import (
    Autoscaler,
    Controller,
    FleetSignals,
    MetricTarget,
    ScalingPace,
    StartUp,
    scheduled,
)
from loadstone.predict.scheduler import EnginePolicy
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet
from loadstone.predict.simulator.run import CellRun
from loadstone.predict.simulator.table import tables
from test_simulator import Times, plan

ONE = EnginePolicy(kv_blocks=10_000, max_batched_tokens=1024, max_seqs=1, order="mixed")


def seen(**totals: float) -> FleetSignals:
    return FleetSignals({"in_flight": 1.0} | totals)


def decide(name: str, count: int, ready: int, signals: FleetSignals, **changes: Any) -> int:
    scaler = dataclasses.replace(read_autoscaler(name, {"ttft_p90": 1.0}), **changes)
    return Controller(scaler).decide(0.0, count, ready, signals)


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "total", "wanted"),
    [
        (4, 70, 4),  # ratio 1.094: within 10 %
        (4, 71, 5),
        (4, 130, 8),  # the wish is 9, the limit 100 %
        (10, 176, 10),  # 1.1 sharp
        (10, 177, 12),
        (10, 145, 10),
        (10, 143, 9),
        (3, 200, 7),  # 4 pods are more than 100 %
    ],
)
def test_hpa_brings_a_metric_to_its_target(replicas: int, total: float, wanted: int) -> None:
    assert decide("hpa", replicas, replicas, seen(running=total), max=20) == wanted


def test_hpa_takes_the_most_that_any_metric_asks_for() -> None:
    assert decide("keda", 2, 2, seen(running=30.0, queued=0.0)) == 2
    assert decide("keda", 2, 2, seen(running=30.0, queued=3.0)) == 3
    assert decide("keda", 2, 2, seen(running=30.0, queued=30.0)) == 4  # no more than 100 %


@pytest.mark.parametrize("window_s", [300.0, 120.0])
def test_hpa_goes_down_by_the_highest_wish_of_its_window(window_s: float) -> None:
    scaler = read_autoscaler("hpa")
    down = scaler.down._replace(window_s=window_s)
    controller = Controller(dataclasses.replace(scaler, down=down))
    assert controller.decide(0.0, 4, 4, seen(running=130.0)) == 8
    assert controller.decide(window_s - 1, 8, 8, seen(running=20.0)) == 8
    assert controller.decide(window_s + 1, 8, 8, seen(running=20.0)) == 2


def test_changes_within_a_period_count_together() -> None:
    pace = ScalingPace(pods=2, period_s=60.0)
    scaler = Autoscaler(
        policy="hpa", metrics=(MetricTarget("running", 1.0),), up=pace, down=pace, max=50
    )
    controller = Controller(scaler)
    assert controller.decide(0.0, 4, 4, seen(running=40.0)) == 6
    assert controller.decide(15.0, 6, 4, seen(running=40.0)) == 6
    assert controller.decide(61.0, 6, 6, seen(running=40.0)) == 8
    assert controller.decide(122.0, 8, 8, seen(running=1.0)) == 6
    assert controller.decide(130.0, 6, 6, seen(running=1.0)) == 6
    assert controller.decide(183.0, 6, 6, seen(running=1.0)) == 4


@pytest.mark.parametrize(
    ("count", "ready", "s", "wanted"),
    [
        (4, 4, 0.7, 6),
        (4, 4, 0.5, 4),
        (4, 4, 0.3, 3),
        (4, 2, 0.7, 4),  # the law alone would say 3 while two start
        (5, 5, 0.6, 6),  # 5 · (0.6/0.55 − 1) = 0.45
        (6, 6, 0.1, 2),  # 6 · 0.75 = 4.5
        (6, 3, 1.5, 9),  # 6 · (0.75/0.55 − 1) = 2.18
    ],
)
def test_the_slo_law(count: int, ready: int, s: float, wanted: int) -> None:
    freely = {"up": ScalingPace(), "down": ScalingPace(), "min": 1, "max": 20}
    assert decide("slo", count, ready, seen(ttft_s=s), **freely) == wanted


def test_the_slo_law_sees_the_worst_and_the_mean_of_its_time() -> None:
    scaler = read_autoscaler("slo", {"ttft_p99": 1.0, "tpot_p99": 0.02})
    freely = dataclasses.replace(scaler, up=ScalingPace(), max=30)
    controller = Controller(freely)
    assert controller.decide(0.0, 4, 4, seen(ttft_s=0.1, tpot_s=0.01)) == 4
    # The mean of 0.5 and of what is cut to 2: 1.25.
    assert controller.decide(15.0, 4, 4, seen(ttft_s=9.0, tpot_s=0.01)) == 4 + 6
    assert Controller(freely).decide(0.0, 4, 0, seen(ttft_s=math.nan, tpot_s=math.nan)) == 4


@pytest.mark.parametrize(
    ("kv", "queues", "wanted"),
    [
        ((0.65, 0.72), (0, 0), 2),
        ((0.65, 0.75), (0, 0), 2),  # the spare is 0.10, and the test is <
        ((0.65, 0.76), (0, 0), 3),
        ((0.5, 0.5), (3, 2), 3),  # 2.5 spare in the queue
        ((0.9, 0.5), (0, 0), 2),  # a full one does not count
        ((0.3, 0.3), (1, 1), 1),  # the one that is left has 0.6, and 3 spare in its queue
        ((0.4, 0.31), (0, 0), 2),
        ((0.9, 0.9), (0, 0), 3),
    ],
)
def test_saturation(kv: tuple[float, ...], queues: tuple[int, ...], wanted: int) -> None:
    signals = FleetSignals({"in_flight": 1.0}, kv, queues)
    assert decide("saturation", 2, 2, signals) == wanted
    assert decide("saturation", 3, 2, signals) == 3  # one starts


def test_the_planner_divides_what_it_predicts_by_what_a_replica_carries() -> None:
    line = dataclasses.replace(read_autoscaler("planner"), capacity_per_s=1.5, max=50)
    controller = Controller(line)
    wanted = [
        controller.decide(180.0 * n, 1, 1, seen(rate=rate)) for n, rate in enumerate((3, 6, 9, 12))
    ]
    assert wanted == [2, 4, 8, 10]  # from the third on by the line: 12, 15 requests/s
    asked = Controller(
        dataclasses.replace(line, capacity_per_s=None), lambda prompt, answer: prompt / answer
    )
    assert asked.decide(0.0, 3, 3, seen(rate=9.0)) == 3  # nothing has ended yet
    assert asked.decide(1.0, 3, 3, seen(rate=9.0, input_tokens=400.0, output_tokens=200.0)) == 5


def test_a_clock_goes_by_the_time_of_the_day() -> None:
    schedule = ((8 * 3600.0, 6), (20 * 3600.0, 2))
    hours = (0, 7.99, 8, 19.99, 20, 24 + 9)
    assert [scheduled(schedule, hour * 3600) for hour in hours] == [2, 2, 6, 6, 2, 6]


def test_a_fleet_goes_to_nothing_and_comes_back() -> None:
    controller = Controller(dataclasses.replace(read_autoscaler("keda"), min=0))
    idle = FleetSignals({"in_flight": 0.0, "rate": 0.0, "running": 0.0})
    assert controller.decide(10.0, 1, 1, seen(running=1.0)) == 1
    assert controller.decide(309.0, 1, 1, idle) == 1
    assert controller.decide(311.0, 1, 1, idle) == 0
    assert controller.decide(326.0, 0, 0, idle) == 0
    assert controller.decide(341.0, 0, 0, seen(queued=1.0)) == 1


# --- replicas -------------------------------------------------------------------------------------


def scale(asked: Plan, scaler: Autoscaler, policy: EnginePolicy = ONE) -> tuple[CellRun, FleetLog]:
    fleet = Fleet(policy, Times(request_s=0.0, stream_s=0.0))
    return run_scaled(asked, 0, fleet, scaler, Controller(scaler))


def steps(rates: list[tuple[float, float]], rate: float) -> Plan:
    """Make a plan of evenly spaced requests: so many a second until then."""
    times: list[float] = []
    at_s = 0.0
    for per_s, until_s in rates:
        count = round((until_s - at_s) * per_s)
        times += [at_s + (n + 0.5) / per_s for n in range(count)]
        at_s = until_s
    asked = plan(rate=[rate], burstiness=math.inf, requests=[len(times)], output="1")
    return dataclasses.replace(asked, intended_s=np.array(times))


@pytest.mark.parametrize("count", [1, 3])
def test_fixed_replicas_are_those_of_a_fleet(count: int) -> None:
    policy = msgspec.structs.replace(ONE, max_seqs=4, kv_blocks=60)
    asked = plan(rate=[40], requests=[300])
    run, log = scale(asked, Autoscaler(policy="fixed", replicas=count), policy)
    fleet = Fleet(policy, Times(request_s=0.0, stream_s=0.0), replicas=count)
    static = run_cell(asked, 0, fleet, quick=False)
    assert run.end_s == static.end_s
    assert run.journal.first_s == static.journal.first_s
    assert run.journal.replica == static.journal.replica
    assert log.paid_s == pytest.approx(count * run.over_s)


@pytest.mark.parametrize(
    ("carries", "after", "seen_s", "start_s"), [(1.5, 2.0, 30, 100), (2.0, 3.0, 20, 60)]
)
def test_a_step_of_the_load_leaves_a_backlog(
    carries: float, after: float, seen_s: int, start_s: int
) -> None:
    """A replica that serves one request at a time, `carries` of them a second, and a router that
    holds the others: what is fluid here, a queue has to a request."""
    times = Times(step=1 / carries, token=0.0, request_s=0.0, stream_s=0.0)
    asked = steps([(after, 300.0)], after)
    scaler = Autoscaler(
        policy="planner",
        capacity_per_s=carries,
        poll_s=float(seen_s),
        scrape_s=10.0,
        start_up_s=float(start_s),
        start_up_spread=0.0,
        hold=1,
    )
    run, log = run_scaled(asked, 0, Fleet(ONE, times), scaler, Controller(scaler))
    assert [each.at_s for each in log.changes] == [0, seen_s, seen_s + start_s]
    sent, end = np.array(run.requests.sent_s_of), np.array(run.end_s)

    def backlog(at_s: float) -> int:
        return int((sent <= at_s).sum() - (end <= at_s).sum())

    ready_s = seen_s + start_s
    left = (after - carries) * ready_s
    assert backlog(ready_s) == pytest.approx(left, abs=1.5)
    empty_s = ready_s + left / (2 * carries - after)
    assert backlog(empty_s + 3) <= 2 < backlog(empty_s - 10)
    waits = end - sent - 1 / carries
    # Who comes at `ready_s`·carries/after is served as the second replica begins.
    assert waits.max() == pytest.approx(ready_s * (1 - carries / after), abs=2 / carries)
    assert sent[waits.argmax()] == pytest.approx(ready_s * carries / after, abs=3)
    assert log.paid_s == pytest.approx(2 * run.over_s - seen_s)
    assert log.starts == 1


def test_a_decision_sees_metrics_of_their_age() -> None:
    asked = steps([(1.0, 60.0), (3.0, 200.0)], 2.0)
    common: Any = {"policy": "planner", "capacity_per_s": 1.5, "poll_s": 1.0, "scrape_s": 1.0}
    begins = []
    for age_s in (0.0, 45.0):
        scaler = Autoscaler(**common, window_s=10.0, age_s=age_s)
        _, log = scale(asked, scaler)
        begins.append(next(each.at_s for each in log.changes if each.wanted > 1))
    assert 60 < begins[0] < 66
    assert begins[1] - begins[0] == pytest.approx(45.0)


def test_a_replica_that_drains_is_paid_until_it_is_empty() -> None:
    """Answers of 60 s, two at once; after 30 s one replica is to go."""
    policy = msgspec.structs.replace(ONE, max_seqs=4)
    asked = plan(rate=[1], burstiness=math.inf, requests=[4], output="600")

    class Decides:
        def decide(self, now_s: float, *_: object) -> int:
            return 1

    fleet = Fleet(policy, Times(step=0.1, token=0.0, request_s=0.0, stream_s=0.0))
    for drain_s in (120.0, 10.0):
        scaler = Autoscaler(policy="fixed", replicas=2, poll_s=30.0, drain_s=drain_s)
        run, log = run_scaled(asked, 0, fleet, scaler, Decides())
        end = np.array(run.end_s)
        second = np.array(run.journal.replica) == 1
        assert [each.ready for each in log.changes][:2] == [2, 1]
        if drain_s > 60:
            assert not np.isnan(end).any()
            gone_s = end[second].max()
        else:
            assert np.isnan(end[second]).all()
            assert log.cut == 2
            assert {at_s for at_s, _, _ in run.refused.values()} == {40.0}
            rows = [row for table in tables(asked, 0, run, policy) for row in table.to_pylist()]
            assert [row["status"] for row in rows].count("error") == 2
            cut = [row for row in rows if row["status"] == "error"]
            assert all(row["arrival_s"][-1] <= row["end_s"] == 40.0 for row in cut)
            assert all(300 < len(row["tokens"]) < 410 for row in cut)
            gone_s = 40.0
        assert log.paid_s == pytest.approx(run.over_s + gone_s)


def test_requests_wait_for_a_fleet_of_nothing() -> None:
    scaler = dataclasses.replace(
        read_autoscaler("keda"), min=0, idle_s=30.0, start_up_s=20.0, start_up_spread=0.0
    )
    asked = steps([(0.5, 4.0)], 0.5)
    run, log = scale(asked, scaler)
    # Seen at 15 s, ready at 35; at 30 s two wait, for each of whom there is to be one.
    assert [each[:3] for each in log.changes] == [(0, 0, 0), (15, 1, 0), (30, 2, 0), (35, 2, 1)]
    assert np.array(run.journal.first_s).min() >= 35
    assert log.held == 2


def test_replicas_turn_away_what_their_queues_do_not_take() -> None:
    policy = msgspec.structs.replace(ONE, max_under_way=2)
    asked = steps([(20.0, 30.0)], 20.0)
    fleet = Fleet(policy, Times(step=1.0, token=0.0, request_s=0.0, stream_s=0.0))
    scaler = dataclasses.replace(read_autoscaler("hpa"), start_up_s=5.0)
    scaler = dataclasses.replace(scaler, metrics=(MetricTarget("running", 1.0),))
    run, log = run_scaled(asked, 0, fleet, scaler, Controller(scaler))
    ended = int((~np.isnan(run.end_s)).sum())
    assert ended + len(run.refused) == len(asked)
    assert {status for _, status, _ in run.refused.values()} == {503}
    # A replica serves one a second, and what it has when the last one comes.
    ready_s = sum(
        (after - change.at_s) * change.ready
        for change, after in zip(
            log.changes, [*(c.at_s for c in log.changes[1:]), 30.0], strict=True
        )
        if change.at_s < 30
    )
    assert ended == pytest.approx(ready_s, abs=2 * log.changes[-1].ready + 2)


def test_starts_spread_as_they_are_said_to() -> None:
    class Decides:
        def decide(self, *_: object) -> int:
            return 400

    asked = steps([(0.01, 400.0)], 0.01)
    scaler = Autoscaler(policy="fixed", poll_s=5.0, start_up_s=100.0)
    fleet = Fleet(ONE, Times())
    _, log = run_scaled(asked, 0, fleet, scaler, Decides())
    ready_s = [each.at_s - 5.0 for each in log.changes if each.ready > 1]
    assert np.mean(ready_s) == pytest.approx(100.0, rel=0.02)
    assert np.std(ready_s) == pytest.approx(12.0, rel=0.15)
    again = run_scaled(asked, 0, fleet, scaler, Decides())[1]
    assert again.changes == log.changes


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in presets() if name != "clock"])
def test_presets_are_read_by_name(name: str) -> None:
    assert read_autoscaler(name, {"ttft_p99": 1.0}).name == name


def test_a_file_goes_over_the_preset_of_its_policy(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "policy: hpa\nmax: 30\nstart_up: {pull: 60s, bandwidth: 4 GB/s}\n"
        "down: {window: 60s, percent: 50}\n"
    )
    scaler = read_autoscaler(str(file))
    assert (scaler.name, scaler.max, scaler.min, scaler.tolerance) == ("own", 30, 1, 0.1)
    assert scaler.down == ScalingPace(60.0, 50.0, None, 15.0)
    assert scaler.metrics == (MetricTarget("running", 16.0),)
    assert scaler.start_up == StartUp(pull_s=60.0, bytes_per_s=4e9)
    assert StartUp(60.0, 4e9, 40.0, 20.0, 5.0).seconds(16e9) == 129.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("policy: hpa\nmin: 5\nmax: 3", "min 5 is above max 3"),
        ("policy: hpa\ntarget: 16", "'target' is no key of an autoscaler"),
        ("policy: slo\nttft: 1s\ntolerance: 10%", "tolerance is a key of policy hpa"),
        ("policy: fixed\nmin: 2", "min is a key of policy hpa and slo and planner"),
        ("policy: magic", "'magic' is no policy"),
        ("poll: 15s", "needs a policy"),
        ("preset: kedo", "'kedo' is no preset"),
        ("preset: keda\npolicy: slo", "preset keda is of policy hpa"),
        ("policy: hpa\npoll: 15 GB", "poll: '15 GB' is not a duration"),
        ("policy: hpa\npoll: 0s", "poll: must be above 0"),
        ("policy: hpa\nmin: 1.5", "min: 1.5 must be a whole number"),
        ("policy: hpa\ntolerance: 10", "tolerance: 10 must be a share"),
        ("policy: hpa\nmetrics: [{metric: running, target: 16s}]", "'16s' must be a number"),
        ("policy: hpa\nmetrics: [{metric: cpu, target: 1}]", "'cpu' is no metric"),
        ("policy: hpa\nmetrics: [{metric: kv_usage, target: 80}]", "80 must be a share"),
        ("policy: hpa\nmin: 0", "no metric tells that requests wait"),
        ("policy: hpa\nup: {pods: 4, every: 15s}", "'every' is no key of it"),
        ("policy: planner\nmin: 0", "cannot start from nothing"),
        ("policy: slo", "needs a bound"),
        ("policy: clock", "needs a schedule"),
        ('policy: clock\nschedule: {"25:00": 2}', "'25:00' is no time of the day"),
        ('policy: clock\nschedule: {"01:00": 0}', "there is never a replica"),
        ("policy: fixed\nreplicas: 0", "there is never a replica"),
        ("policy: hpa\ninitial: 9", "initial 9 is more than ever may be, 8"),
        ("policy: hpa\nstart_up: {pull: 1s, disk: 2}", "'disk' is no key of it"),
        ("policy: hpa\nstart_up: {bandwidth: 2 MB}", "write e.g. 2 GB/s"),
        ("policy: hpa\nhold: 0", "hold is 0"),
        ("- hpa", "is no mapping"),
        ("{", "no YAML"),
    ],
)
def test_bad_files_get_one_line(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        read_autoscaler(str(file))
    message = str(refused.value)
    assert says in message
    assert "\n" not in message
    assert message.startswith(f"--autoscale {file}: ")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="no file, and no preset; there are hpa, keda"):
        read_autoscaler("kedas")
