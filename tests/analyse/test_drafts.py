"""What speculative decoding came to: sums, never means of ratios; and what is no evidence of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from loadstone.analyse.drafts import COLUMNS, drafts_of, pool_drafts
from loadstone.analyse.server_figures import server_figures
from loadstone.core import arrays
from loadstone.core.drafts import acceptance_of
from loadstone.core.machine_figures import DraftFigures, Level, ServerFigures
from loadstone.core.run_folder import records_schema, server_schema
from verdict_cells import PLAN, found, info_of, rows


def records(*told: dict[str, Any]) -> pa.Table:
    schema = pa.schema([records_schema().field(name) for name in COLUMNS])
    return pa.Table.from_pylist([{"phase": "measure", **each} for each in told], schema=schema)


def test_requests_are_pooled() -> None:
    told = [
        {
            "draft_steps": 10,
            "draft_tokens": 30,
            "draft_accepted": 20,
            "accepted_histogram": [2, 2, 0, 6],
        },
        {
            "draft_steps": 30,
            "draft_tokens": 90,
            "draft_accepted": 10,
            "accepted_histogram": [25, 2, 1, 2],
        },
        {"draft_steps": 1, "draft_tokens": 3, "draft_accepted": 3, "phase": "warmup"},
    ]
    figures = drafts_of(None, records(*told, {}), info_of())
    assert figures is not None
    assert (figures.source, figures.accepted_length, figures.rate) == (
        "requests",
        1 + 30 / 40,
        30 / 120,
    )
    assert figures.by_position == [13 / 40, 9 / 40, 8 / 40]
    assert figures.by_request["p50"] == pytest.approx((3 + 4 / 3) / 2)
    assert figures.acceptance is not None
    assert sum(figures.acceptance**i for i in range(4)) == pytest.approx(1.75)
    assert drafts_of(None, records({}), info_of()) is None


@pytest.mark.parametrize(
    ("names", "by_position"),
    [
        (("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
          "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
         "position"),
        (("", "trtllm_spec_decode_drafted_tokens_total", "", "trtllm_spec_decode_accepted_tokens_total"),
         "token_position"),
    ],
)  # fmt: skip
def test_counters_are_read_over_the_window(names: tuple[str, ...], by_position: str) -> None:
    steps, drafted, accepted, places = names
    samples = []
    for at_s, times in ((0.0, 5), (1.0, 7), (2.0, 17)):
        samples += [
            (at_s, 0, name, "{}", value * times)
            for name, value in ((steps, 10), (accepted, 12))
            if name
        ]
        if steps:
            samples.append((at_s, 0, drafted, "{}", 20.0 * times))
        for place, value in enumerate((8.0, 4.0)):
            labels = json.dumps({by_position: str(place)})
            samples.append((at_s, 0, places, labels, value * times))
            if not steps:
                samples.append((at_s, 0, drafted, labels, 10.0 * times))
    table = pa.Table.from_arrays(
        list(map(pa.array, zip(*samples, strict=True))), schema=None, names=server_schema().names
    )
    figures = drafts_of(
        server_figures(table.cast(server_schema()), 1.0, 2.0), records({}), info_of()
    )
    assert figures is not None
    assert (figures.source, figures.steps, figures.drafted, figures.accepted) == (
        "counters",
        100,
        200,
        120,
    )
    assert (figures.accepted_length, figures.rate, figures.by_position) == (2.2, 0.6, [0.8, 0.4])


def test_a_gauge_is_said_to_be_one() -> None:
    server = ServerFigures(samples=1, restarts=0, accepted_length=Level(2.5, 3.0))
    assert drafts_of(server, records({}), info_of()) == DraftFigures(
        source="gauge", accepted_length=2.5
    )


def test_acceptance_gives_the_length_back() -> None:
    for alpha, k in ((0.0, 1), (0.5, 3), (0.8, 5), (1.0, 2)):
        assert acceptance_of(sum(alpha**i for i in range(k + 1)), k) == pytest.approx(
            alpha, abs=1e-9
        )
    assert acceptance_of(4.5, 3) is acceptance_of(0.9, 3) is acceptance_of(1.5, 0.2) is None
    one = DraftFigures(source="counters", steps=10, drafted=10, accepted=9)
    other = DraftFigures(source="counters", steps=30, drafted=30, accepted=3)
    forced = DraftFigures(source="counters", steps=30, drafted=30, accepted=30, forced="x")
    assert pool_drafts([one, other, forced]) == pytest.approx(12 / 40)
    assert pool_drafts([forced]) is None


@pytest.mark.process
def test_random_words_and_forced_acceptance_are_findings() -> None:
    figures = DraftFigures(source="counters", accepted_length=1.9, rate=0.45)
    (finding,) = found(rows(), drafts=figures).values()
    assert (finding.kind, finding.severity) == ("drafts_on_random_text", "warning")
    assert "1.90 tokens a step, 45% of guesses" in finding.evidence
    text = replace(PLAN, workload={"kind": "text"})
    assert not found(rows(), plan=text, drafts=figures)
    info = info_of()
    info.command = ["bench", "--launch", "x/synthetic_acceptance_length=3"]
    forced = drafts_of(
        None, records({"draft_steps": 1, "draft_tokens": 2, "draft_accepted": 1}), info
    )
    assert forced is not None
    assert list(found(rows(), drafts=forced)) == ["drafts_forced"]


@pytest.mark.parametrize(("accepted", "kind"), [(1200, "drafts_beyond_end"), (600, None)])
def test_counters_that_hold_drafts_behind_the_end_are_doubted(
    accepted: float, kind: str | None
) -> None:
    """400 answers of 4 tokens, in 1,000 steps by the counters, with the accepted ones of each."""
    figures = DraftFigures(source="counters", steps=1000, accepted=accepted, accepted_length=2.2)
    findings = found(rows(), drafts=figures)
    assert list(findings) == [kind or "drafts_on_random_text"]
    if kind is not None:
        assert findings[kind].values["at_most"] == 1.6


def test_tokens_are_those_that_usage_credits_or_events_brought() -> None:
    schema = pa.schema(
        [field for field in records_schema() if field.name in {*arrays.COLUMNS, *arrays.CHANNELS}]
    )
    each = {"request_id": "0-0", "phase": "measure", "status": "ok", "sent_s": 0.0, "output_tokens": 10,
            "arrival_s": [1.0, 2.0, 3.0, 4.0], "tokens": [2, 5, 7, 10]}  # fmt: skip
    table = [
        each | {"channel": [1, 1, 2, 3], "reasoning_tokens": 6},
        each | {"channel": [1, 1, 2, 3], "reasoning_tokens": 0},
        each | {"channel": [1, 1, 2, 3], "reasoning_tokens": 10},
        each | {"channel": [2, 2, 2, 2]},
        each | {"channel": [0, 2, 2, 2]},
        each | {"channel": [1, 1, 1, 1]},
        each | {"channel": None, "reasoning_tokens": 6},
    ]
    batch = pa.RecordBatch.from_pylist(table, schema=schema)
    got = arrays.rows(batch, arrays.events(batch))
    nan = np.nan
    np.testing.assert_allclose(got["thinking"], [6, 5, 5, 0, 0, 10, nan])
    np.testing.assert_allclose(got["tool"], [4 * 3 / 5, 3, 3, 0, 0, 0, nan])
    np.testing.assert_allclose(got["answer"], [3, 3, 3, 1, 1, nan, nan])
    np.testing.assert_allclose(arrays.answer_rate_per_s(got)[:4], [3, 4, 4, 3])
