"""Findings about the client, and about what lies between it and the server."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from loadstone.analyse.verdict import Finding
from loadstone.core.plan import Load, Plan
from loadstone.core.record import CellInfo
from loadstone.core.summary import Latency, ReplicaPart, Requests
from verdict_cells import COUNT, LOAD, TARGET, Rows, closed, found, plan_of, rows


def ran(cpu_s: float | None, seconds: float = 10.0) -> dict[str, Any]:
    return {"info": CellInfo(load=LOAD, start_s=5.0, issue_end_s=5.0, end_s=5.0 + seconds, client_cpu_s=cpu_s)}


def test_a_saturated_client() -> None:
    assert found(rows(), **ran(8.9)) == {}
    finding = found(rows(), **ran(9.5))["client_saturated"]
    assert finding.severity == "warning"
    assert finding.evidence == "1 client worker took 9.5 s of processor time in 10 s (95%)"


def test_what_saturates_one_worker_does_not_saturate_two() -> None:
    records = rows()
    records[7]["worker"] = 1
    records[8]["worker"] = None
    assert found(records, **ran(9.5)) == {}
    assert found(records, **ran(19))["client_saturated"].evidence.startswith("2 client workers took 19 s")


def test_a_busy_moment_is_no_saturation() -> None:
    assert found(rows(), **ran(0.95, 0.95)) == {}
    assert "client_saturated" in found(rows(), **ran(0.95, 1.0))
    assert found(rows(), **ran(None)) == {}
    assert found(rows(), info=CellInfo(load=LOAD, start_s=5.0, client_cpu_s=9.5)) == {}  # it has no end


def in_one_read(share: float, **changed: Any) -> Rows:
    """Of the events that follow another, two of three come in its read, in a share of the answers."""
    records = rows(**changed)
    for each in records[: round(share * len(records))]:
        first, _, _, last = each["arrival_s"]
        # The first comes by itself: TTFT is right.
        each.update(read=[0, 1, 1, 1], arrival_s=[first, last, last, last])
    return records


def test_where_reads_are_not_known_they_are_not_missed() -> None:
    assert found(rows(read=None)) == {}


@pytest.mark.parametrize("lag_s", [1e-4, 0.2])
def test_some_events_in_one_read_are_normal(lag_s: float) -> None:
    assert found(in_one_read(0.1, receive_lag_s=lag_s)) == {}


@pytest.mark.parametrize(("of_400", "severity"), [(59, None), (60, "info"), (299, "info"), (300, "warning")])
def test_a_tenth_of_the_events_in_one_read_is_told_and_half_of_them_read_late_spoil(
    of_400: int, severity: str | None
) -> None:
    kinds = found(in_one_read(of_400 / 400, receive_lag_s=0.2))  # two of the three events that follow another
    assert {kind: finding.severity for kind, finding in kinds.items()} == (
        {"client_read_late": severity} if severity else {}
    )


def test_events_that_arrived_together() -> None:
    finding = found(in_one_read(0.9))["events_coalesced"]
    assert finding.severity == "info"
    assert finding.evidence.startswith(
        "60% of stream events came in the same read as the event before, although the client"
    )


def test_events_that_were_read_late() -> None:
    assert set(found(in_one_read(0.3, receive_lag_s=0.2))) == {"client_read_late"}
    assert found(in_one_read(0.3, receive_lag_s=0.2))["client_read_late"].severity == "info"
    finding = found(in_one_read(0.9, receive_lag_s=0.2))["client_read_late"]
    assert finding.severity == "warning"
    assert "with a receive lag of 200 ms or more" in finding.evidence


def test_a_stall_is_told_by_the_requests_that_it_was_of() -> None:
    """A fifth of the requests stood still with the client; the others were read at once, and are not asked."""
    records = in_one_read(0.2)
    for each in records[: len(records) // 5]:
        each["receive_lag_s"] = 0.3
    assert set(found(records)) == {"client_read_late"}
    for each in records:
        each["receive_lag_s"] = 0.3 if each["receive_lag_s"] == 1e-4 else 1e-4
    assert set(found(records)) == {"events_coalesced"}


def test_first_events_that_were_read_late_spoil_ttft_and_tpot_by_name() -> None:
    """A stall over the first tokens of four answers in 400 is in the p99; over those of half of them, in the p50."""

    def spoilt(count: int, first: int = 3, lag_s: float = 0.12) -> list[str]:
        records = rows()
        for each in records[:count]:
            at = each["arrival_s"][0] + 0.1 * (first - 1)
            later = [at + 0.1 * (after + 1) for after in range(4 - first)]
            each.update(read=[0] * first + [1] * len(later), arrival_s=[at] * first + later, receive_lag_s=lag_s)
        finding = found(records).get("client_read_late")
        return [] if finding is None else finding.evidence.partition("which spoils ")[2].split(", ")

    assert spoilt(3) == []
    assert [name.partition(" (")[0] for name in spoilt(4)] == ["TTFT p99", "TPOT p99"]  # 8 of 1,200 gaps are no p99
    assert [name.partition(" (")[0] for name in spoilt(6)] == ["TTFT p99", "TPOT p99", "ITL p99"]
    assert [name.partition(" (")[0] for name in spoilt(200)][:3] == ["TTFT p50", "TTFT p99", "TPOT p50"]
    assert all(name.startswith("ITL") for name in spoilt(4, first=1))  # alone in its read: its stamp is its own
    assert spoilt(4, lag_s=1e-4) == []  # the client read at once


def test_a_wait_as_long_as_the_longest_gaps_spoils_them() -> None:
    """From a hundredth of the gaps on: 12 of 1,200. A stall in two answers of many tokens is in no p99."""

    def spoilt(count: int) -> bool:
        records = in_one_read(0.1)
        for each in [each for each in records if len(set(each["read"])) < len(each["read"])][:count]:
            each["receive_lag_s"] = 0.4
        return "which spoils ITL p99 (300 ms)" in getattr(found(records).get("client_read_late"), "evidence", "")

    assert spoilt(12)
    assert not spoilt(3)


def test_another_tools_median_gap_that_no_engine_makes() -> None:
    """vLLM's client, starved: a median ITL of 0.0 ms and a p99 of 124 ms."""
    records = rows()
    for each in records:
        first, _, _, last = each["arrival_s"]
        each["arrival_s"] = [first, first, first, last]
    finding = found(records, source="imported")["client_read_late"]
    assert finding.severity == "warning"
    assert "which spoils ITL p50 (0 ms), ITL p99 (300 ms)" in finding.evidence
    assert "client_read_late" not in found(records)  # our own reads are known, and were four
    assert found(rows(), source="imported") == {}


def test_late_reading_that_brought_nothing_together_spoils_nothing() -> None:
    assert found(rows(receive_lag_s=0.3)) == {}


def began_with(tokens: int, of: int, share: float = 1.0, **changed: Any) -> Rows:
    """Answers of `of` tokens, an event each, the first `tokens` of them in one read; a share of the cell."""
    records = rows()
    for each in records[: round(share * len(records))]:
        first = each["arrival_s"][0]
        later = [first + 0.1 * after for after in range(1, of - tokens + 1)]
        each.update(
            arrival_s=[first] * tokens + later, read=[0] * tokens + list(range(1, of - tokens + 1)),
            tokens=list(range(1, of + 1)), output_tokens=of, **changed,
        )  # fmt: skip
        each["end_s"] = each["arrival_s"][-1]
    return records


def natural() -> Plan:
    plan = plan_of(LOAD)
    plan.output_tokens[:] = 64
    return plan


def test_tokens_that_came_with_the_first_make_tpot_too_small() -> None:
    finding = found(began_with(7, 16), natural())["tpot_understated"]
    assert finding.severity == "warning"
    assert finding.evidence == (
        "answers began with 7 tokens at once (median), which TPOT counts as if they had come one by one: each later "
        "token took 1.67 times TPOT"
    )
    assert "tpot_understated" in found(began_with(3, 16), natural())  # 15/13
    assert "tpot_understated" not in found(began_with(2, 16), natural())  # 15/14
    assert "tpot_understated" not in found(began_with(7, 16, share=0.4), natural())
    assert "tpot_understated" not in found(began_with(3, 64), natural())
    assert "tpot_understated" not in found(began_with(7, 16, receive_lag_s=0.2), natural())  # the client's doing
    assert "tpot_understated" not in found(began_with(1, 1, share=0.6), natural())  # one token has no TPOT
    silent = began_with(7, 16)
    for each in silent[:240]:
        each.update(arrival_s=[], read=[], tokens=[])
    assert "tpot_understated" in found(silent, natural())


def test_first_events_that_waited_for_others_make_ttft_too_long() -> None:
    """As nginx holds 16 KiB of a TLS stream, some 50 events, and as Nagle's algorithm holds two or three."""
    finding = found(began_with(50, 600), natural())["ttft_overstated"]
    assert finding.severity == "warning"
    assert finding.evidence == (
        "answers began with 50 events at once (median): at the pace of the later ones, the first was ready 4.90 s "
        "earlier"
    )
    assert "tpot_understated" not in found(began_with(50, 600), natural())  # hence the second rule
    assert "ttft_overstated" in found(began_with(2, 64), natural())  # a gap of 100 ms, and as long a TTFT
    assert "ttft_overstated" not in found(began_with(1, 64), natural())
    assert "ttft_overstated" not in found(began_with(50, 600, share=0.4), natural())
    assert "ttft_overstated" not in found(began_with(50, 600, receive_lag_s=0.2), natural())  # the client's doing
    slow = began_with(2, 64)
    for each in slow:
        each.update(intended_s=each["sent_s"] - 1.0, sent_s=each["sent_s"] - 1.0)
    assert "ttft_overstated" not in found(slow, natural())  # 0.1 s of 1.1 s


def test_several_tokens_in_the_first_event_are_known_by_a_running_count_alone() -> None:
    counted = {"tokens": [8, 16, 24, 32], "output_tokens": 32}
    assert "tpot_understated" in found(rows(**counted, token_source="running usage"), natural())  # noqa: S106
    assert "tpot_understated" not in found(rows(**counted), natural())
    one_first = {"tokens": [1, 11, 21, 32], "output_tokens": 32}
    assert "tpot_understated" not in found(rows(**one_first, token_source="running usage"), natural())  # noqa: S106


def whole(**changed: Any) -> Finding:
    kinds = found(rows(arrival_s=[5.0, 5.0, 5.0, 5.0], read=[0, 0, 0, 0], end_s=5.0, **changed))
    assert not {"events_coalesced", "client_read_late"} & set(kinds)
    return kinds["arrivals_bunched"]


def test_answers_that_arrive_whole_were_buffered_on_the_way() -> None:
    finding = whole()
    assert finding.severity == "warning"
    assert "arrived whole" in finding.evidence
    assert "proxy" in finding.remedy
    assert "arrivals_bunched" not in found(rows())


@pytest.mark.parametrize(("gap_s", "whole"), [(0.9e-5, True), (1.5e-5, False)])
def test_tokens_within_ten_microseconds_of_each_other_were_not_streamed(gap_s: float, whole: bool) -> None:
    arrival_s = [5.0 + gap_s * number for number in range(4)]
    assert ("arrivals_bunched" in found(rows(arrival_s=arrival_s, end_s=arrival_s[3]))) == whole


def test_a_starved_client_is_not_a_proxy() -> None:
    finding = whole(receive_lag_s=2.0)
    assert finding.severity == "warning"
    assert "waiting 2.00 s (median) for the client" in finding.evidence
    assert "proxy" not in finding.remedy
    assert "starved" in finding.remedy
    # From a tenth of E2E, 5 s less 2.015 s, on; and only where reads brought several events.
    assert "starved" in whole(receive_lag_s=0.30).remedy
    assert "proxy" in whole(receive_lag_s=0.29).remedy
    apart = found(rows(arrival_s=[5.0] * 4, end_s=5.0, receive_lag_s=2.0))
    assert "proxy" in apart["arrivals_bunched"].remedy


@pytest.mark.parametrize(("pace_s", "bunched"), [((0.1, 0.0), True), ((0.1, 2e-5), False), ((0.1, None), False)])
def test_one_server_of_a_fleet_whose_answers_arrive_whole(pace_s: tuple[float | None, ...], bunched: bool) -> None:
    parts = [
        ReplicaPart(requests=Requests(), output_tokens=0, replica=i, url=f"http://{i}", tpot_s=Latency(p50=p50_s))
        for i, p50_s in enumerate(pace_s)
    ]
    kinds = found(rows(), replicas=parts)
    assert ("arrivals_bunched" in kinds) == bunched
    if bunched:
        assert kinds["arrivals_bunched"].evidence.startswith("http://1: half of its answers arrived whole")
        assert kinds["arrivals_bunched"].severity == "warning"


def connected(fresh: int, wait_s: float = 0.0, count: int = 400, e2e_s: float = 0.4) -> dict[str, Finding]:
    """A closed loop of 8 places; `fresh` requests after the first eight on a connection of their own."""
    records = closed(8, count, lambda _: e2e_s)
    for number, each in enumerate(records):
        each["reused_connection"] = not (number < 8 or number < 8 + fresh)
        each["intended_s"] -= 0.0 if each["reused_connection"] else wait_s
    return found(records, plan_of(Load("concurrency", 8), count, warm=8))


def test_connections_that_are_not_kept() -> None:
    assert connected(199) == {}
    assert set(connected(200)) == {"connections_not_kept"}
    assert "connections_not_kept" not in connected(9, count=9)
    assert "connections_not_kept" in connected(10, count=10)
    assert connected(408 - 8)["connections_not_kept"].severity == "info"
    finding = connected(408 - 8, 0.1)["connections_not_kept"]
    assert finding.severity == "warning"
    assert finding.evidence == (
        "400 of 400 requests needed a new connection, although an earlier one could have served again; sent 100 ms "
        "(median) after they were due"
    )


@pytest.mark.parametrize(
    ("e2e_s", "wait_s", "severity"),
    [(0.4, 0.019, "info"), (0.4, 0.021, "warning"), (0.04, 0.0045, "info"), (0.04, 0.0055, "warning")],
)
def test_connecting_is_dear_from_a_twentieth_of_e2e_and_5_ms_on(e2e_s: float, wait_s: float, severity: str) -> None:
    assert connected(400, wait_s, e2e_s=e2e_s)["connections_not_kept"].severity == severity


def resent(count: int, of: int = 400, kept: int = 400) -> Finding | None:
    records = rows(of)
    for each in records[kept:]:
        each["reused_connection"] = False
    info = CellInfo(load=LOAD, requests_resent=count)
    return found(records, plan_of(LOAD, of), info=info).get("requests_resent")


@pytest.mark.parametrize(
    ("count", "of", "kept", "severity"),
    [
        (0, 400, 400, None),
        (4, 400, 400, "info"),  # 1 %
        (5, 400, 400, "warning"),
        (4, 100, 100, "info"),  # few
        (5, 400, 5, "info"),  # none of the kept connections served twice
        (5, 400, 6, "warning"),
    ],
)
def test_requests_sent_a_second_time(count: int, of: int, kept: int, severity: str | None) -> None:
    finding = resent(count, of, kept)
    assert (finding.severity if finding else None) == severity
    if count == 5 == kept:
        assert finding is not None
        assert finding.evidence.startswith("5 of 400 requests (1.2%) were sent a second time")


def test_connections_of_which_nothing_is_known_or_that_are_few() -> None:
    assert found(rows(reused_connection=None)) == {}
    records = rows(6, reused_connection=False)
    assert "connections_not_kept" not in found(records)
    # All at once: each needs its own.
    burst = rows(reused_connection=False)
    rng = np.random.default_rng(0)
    for each in burst:
        each.update(intended_s=0.0, sent_s=0.0)
        each["arrival_s"] = [t + float(rng.uniform(0, 1e-4)) for t in each["arrival_s"]]
    assert "connections_not_kept" not in found(burst, plan_of(Load("burst", 400)))


def collected(
    seed: int,
    by_answer: float = 0.01,
    by_prompt: float = 0.0,
    paced: float = 0.02,
    tied: bool = False,
    equal: bool = False,
) -> dict[str, Finding]:
    """Answers of 4 events that stand for drawn lengths: TTFT is 20 ms and `by_answer` for each of their tokens,
    `by_prompt` for each of the prompt's; TPOT has a spread of `paced`. `tied`: who asks more is answered more;
    `equal`: all answers are of one length, but for those of the warm-up.
    """
    rng, places = np.random.default_rng(seed), 8
    plan = plan_of(Load("concurrency", places), 100, places)
    records = closed(places, 100)
    for number, each in enumerate(records):
        prompt = int(rng.integers(50, 400))
        output = int(prompt / 4 + rng.integers(0, 15)) if tied else int(rng.integers(10, 100))
        if equal:
            prompt, output = 100, 64 if number >= places else 8 * number + 8
        ttft_s = 0.02 + by_answer * output + by_prompt * prompt + float(rng.normal(0, 0.003))
        pace_s = 0.002 * float(rng.lognormal(0, paced)) * (output - 1) / 3
        first_s = each["sent_s"] + ttft_s
        each["arrival_s"] = [first_s + k * pace_s for k in range(4)]
        each.update(input_tokens=prompt, output_tokens=output, end_s=each["arrival_s"][-1])
        plan.input_tokens[number], plan.output_tokens[number] = prompt, output
    return found(records, plan)


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_are_collected_and_replayed(seed: int) -> None:
    finding = collected(seed)["answers_collected"]
    assert finding.severity == "warning"
    assert "of TTFT grows with the length of the answer at equal prompts (" in finding.evidence
    assert "answers_collected" in collected(seed, by_prompt=0.0005)
    assert "answers_collected" in collected(seed, by_prompt=0.0002, tied=True)
    assert "answers_collected" in collected(seed, equal=True)  # the warm-up's answers of a loop are cut
    # A prompt's length may be what counts, and go with the answer's; what is even may be an engine; and a pace that
    # varies is one.
    for honest in (
        collected(seed, by_answer=0, by_prompt=0.001, tied=True),
        collected(seed, by_answer=0, paced=0.0),
        collected(seed, by_answer=0, equal=True, paced=0.0),
        collected(seed, paced=0.4),
    ):
        assert "answers_collected" not in honest


def test_first_tokens_that_queue_while_a_loop_fills_are_no_replay() -> None:
    """Eight places on four servers: later warm-up requests, whose answers are longer, wait longer."""
    places, free = 8, [0.0] * 4
    ready, records = [0.0] * places, closed(places, 100)
    for number, each in enumerate(records):
        place = int(np.argmin(ready))
        sent_s, output = ready[place], 64 if number >= places else 8 * number + 8
        server = int(np.argmin(free))
        first_s = max(sent_s, free[server]) + 0.04
        last_s = first_s + 0.008 * (output - 1)
        free[server] = ready[place] = last_s
        each.update(intended_s=sent_s, sent_s=sent_s, output_tokens=output, end_s=last_s)
        each["arrival_s"] = [float(at) for at in np.linspace(first_s, last_s, 4)]
    assert "answers_collected" not in found(records, plan_of(Load("concurrency", places), 100, places))


def test_answers_in_one_piece_are_not_streamed() -> None:
    piece = {"read": [0], "tokens": [4]}
    records = rows(**piece)
    for each in records:
        each["arrival_s"] = each["arrival_s"][3:]
    kinds = {
        kind: finding.severity
        for kind, finding in found(records, target=structs.replace(TARGET, streams=False)).items()
    }
    kinds.pop("few_samples", None)  # beside the point: how many independent values these are worth
    assert kinds == {"not_streamed": "info"}


def test_an_answer_in_one_piece_without_usage_counts_as_one_token() -> None:
    records = rows(read=[0], tokens=[1], output_tokens=1, token_source="pieces")  # noqa: S106
    for each in records:
        each["arrival_s"] = each["arrival_s"][3:]
    finding = found(records, target=structs.replace(TARGET, streams=False))["no_usage"]
    assert finding.severity == "warning"
    assert finding.evidence == "the server reports no usage: there, each answer is counted as one output token"
    assert "Events" not in finding.remedy


def test_a_first_event_long_before_the_second() -> None:
    plan = plan_of(LOAD)
    plan.output_tokens[:] = 10

    def kinds(first_s: float, second_s: float, early: int = COUNT) -> set[str]:
        made = rows(output_tokens=10, tokens=list(range(1, 11)), read=list(range(10)))
        for i, each in enumerate(made):
            first, second = (first_s, second_s) if i < early else (second_s, second_s + 0.1)
            at = each["sent_s"]
            own = np.random.default_rng(i).uniform(0, 5e-5, 10)
            each["arrival_s"] = [float(t) for t in own + at + [first, *(second + 0.1 * k for k in range(9))]]
            each["end_s"] = each["arrival_s"][-1]
        return {*found(made, plan)}

    assert "first_event_early" in kinds(0.005, 1.0)
    assert "first_event_early" in kinds(0.005, 0.32)
    assert "first_event_early" not in kinds(0.005, 0.28)  # no more than three steps
    assert "first_event_early" not in kinds(0.6, 1.0)  # the first took longer
    assert "first_event_early" not in kinds(0.005, 1.0, early=COUNT // 2)
