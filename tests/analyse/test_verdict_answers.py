"""Findings about answers: their lengths, their ends, their tokens."""

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from loadstone.analyse.verdict import Finding
from loadstone.core.plan import Plan
from loadstone.core.record import CellInfo
from loadstone.workload.dataset import Dataset
from loadstone.workload.lengths import Length, Synthetic
from loadstone.workload.schedule import make_plan
from verdict_cells import COUNT, LOAD, TARGET, WORKLOAD, found, plan_of, rows, spoilt


def natural(output: int = 64) -> Plan:
    """Answers may end by themselves."""
    return make_plan(
        Synthetic(WORKLOAD.input, Length("fixed", output)), [LOAD], requests=[COUNT], warmup=2, exact=False
    )


def test_answers_without_output() -> None:
    nothing = {"arrival_s": [], "read": [], "tokens": []}
    assert "empty_answers" not in found(spoilt(4, **nothing))
    finding = found(spoilt(5, **nothing))["empty_answers"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("5 of 400 complete answers carried no output")


def test_answers_of_one_token() -> None:
    one = {"arrival_s": [5.0], "read": [0], "tokens": [1], "output_tokens": 1, "finish_reason": "stop"}
    assert "empty_answers" not in found(spoilt(200, **one), natural())  # a yes, a no
    finding = found(spoilt(201, **one), natural())["empty_answers"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("201 of 400 answers ended after one token, though 8 or more were allowed")
    assert "empty_answers" not in found(spoilt(201, **one), natural(1))  # as asked
    assert "empty_answers" not in found(rows(**one), natural(1))
    assert "empty_answers" not in found(rows(output_tokens=2), natural())


def test_answers_longer_than_allowed() -> None:
    assert "output_length" not in found(spoilt(4, output_tokens=7))
    assert "output_length" not in found(rows(output_tokens=5))  # some count the end of the sequence
    finding = found(spoilt(5, output_tokens=7))["output_length"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("5 of 400 answers are longer than allowed, by the server's count (median +3)")


def test_answers_side_by_side() -> None:
    """The tokens of all are a request's: not longer than allowed, and not short of it; the prompt is asked twice."""
    both = {"output_tokens": 8, "tokens": [2, 4, 6, 8], "cached_tokens": 96}
    for streams, severity in ((True, "warning"), (False, "info")):
        target = structs.replace(TARGET, choices=2, streams=streams)
        findings = found(rows(**both), target=target)
        assert findings["several_answers"].severity == severity
        assert findings["several_answers"].evidence.startswith("each request returns 2 answers")
        assert not {"output_length", "prefix_cache_helped"} & findings.keys()
    assert "output_length" in found(rows(output_tokens=11), target=target)
    assert {"output_length", "prefix_cache_helped"} <= found(rows(**both)).keys()
    assert "several_answers" not in found(rows(**both))


def test_answers_that_end_for_different_reasons() -> None:
    finding = found(spoilt(100, finish_reason="stop"), natural())["finish_reasons"]
    assert finding.severity == "info"
    assert finding.evidence == "answers ended for different reasons: 300 × length, 100 × stop"
    assert found(spoilt(100, finish_reason="stop"))["finish_reasons"].severity == "warning"
    assert found(spoilt(100, finish_reason="\x1b[31m"))["finish_reasons"].severity == "info"


@pytest.mark.parametrize("reason", ["stop", "length", None])
def test_one_reason_for_all_is_the_servers_word_for_it(reason: str | None) -> None:
    assert found(rows(finish_reason=reason)) == {}
    assert found(spoilt(5, finish_reason=None)) == {}


def answered(*named: str, asked: str = "org/tiny", listed: object = None) -> dict[str, Finding]:
    models = {name: COUNT >> number for number, name in enumerate(named)}
    target = structs.replace(TARGET, model=asked, models=listed)
    return found(rows(), target=target, info=CellInfo(load=LOAD, models=models))


LISTED = {
    "data": [
        {"id": "org/tiny", "root": "/models/t", "aliases": ["t1", 7]},
        {"id": "small", "root": None, "aliases": None},
        "odd",
    ]
}


@pytest.mark.parametrize(
    "named", ["org/tiny", "tiny", "/models/Tiny", "proxy/org/tiny", "org/tiny@main", "tiny-2026-11-22", "t", "t1"]
)
def test_a_model_may_be_named_in_other_words(named: str) -> None:
    assert answered(named, listed=LISTED) == {}


@pytest.mark.parametrize(
    ("asked", "named", "same"),
    [
        ("tiny-2026-11", "org/tiny-2026-11@main", True),
        ("tiny-2026-11", "tiny@main", True),
        ("tiny-2026-11", "tiny-2026-05", False),
        ("tiny@v1", "tiny@v2", False),
    ],
)
def test_another_release_of_a_model_is_another_one(asked: str, named: str, same: bool) -> None:
    assert ("other_model" not in answered(named, asked=asked)) == same


@pytest.mark.parametrize("named", ["tiny-mini", "tiny-8", "tin", "tiny:70b", "org"])
def test_a_name_that_may_be_another_models_is_told(named: str) -> None:
    for listed in (None, [], {"data": {}}, LISTED):
        finding = answered(named, listed=listed)["other_model"]
        assert (finding.severity, finding.evidence) == (
            "info",
            f"requests asked for org/tiny, answers name 400 × {named}",
        )
        assert finding.remedy.startswith("Check whether this is the same model")


def test_another_model_of_the_servers_or_several_spoil_a_cell() -> None:
    finding = answered("small", listed=LISTED)["other_model"]
    assert finding.severity == "warning"
    assert finding.remedy.startswith("A router or a fallback")
    finding = answered("org/tiny", "a", "b\x1b", "c", listed=LISTED)["other_model"]
    assert finding.severity == "warning"
    assert (
        finding.evidence
        == "requests asked for org/tiny, answers name 400 × org/tiny, 200 × a, 100 × b\ufffd and 1 more"
    )


def test_answers_that_name_no_model_say_nothing() -> None:
    assert answered() == {}
    assert found(rows(), info=CellInfo(load=LOAD, models={"other": 5})) != {}
    assert found(rows(), info=CellInfo(load=LOAD, models=None)) == {}


@pytest.mark.parametrize(
    ("prompts", "texts", "told"),
    [(20, 18, True), (20, 19, False), (19, 1, False), (64, 64, False), (60, 16, True), (None, None, False)],
)
def test_different_prompts_with_the_same_answer(prompts: int | None, texts: int | None, told: bool) -> None:
    info = CellInfo(load=LOAD, prompts_compared=prompts, texts_compared=texts)
    finding = found(rows(), info=info).get("answers_repeated")
    assert (finding is not None) == told
    if finding is not None:
        assert finding.severity == "info"
        assert finding.evidence == f"the first {prompts} different prompts were answered with {texts} different texts"


def test_answers_in_the_same_rhythm() -> None:
    records = rows()
    for each in records[:200]:
        each["arrival_s"] = [each["sent_s"] + 0.1 * (i + 1) for i in range(4)]
    finding = found(records)["answers_identical"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("200 of 400 answers arrived with the same gaps, to the microsecond")
    assert "answers_identical" not in found(records, source="imported")
    for each in records[:1]:
        each["arrival_s"] = [at + 1e-5 * i * i for i, at in enumerate(each["arrival_s"])]
    assert set(found(records)) <= {"few_samples"}


def test_a_steady_engine_is_no_replay() -> None:
    rng = np.random.default_rng(0)
    records = rows()
    for each in records:  # within 20 µs of each other, as of an engine alone on its machine
        each["arrival_s"] = [each["sent_s"] + 0.1 * (i + 1) + float(rng.normal(0, 2e-5)) for i in range(4)]
    assert found(records) == {}


def test_few_requests_or_short_answers_have_no_rhythm() -> None:
    same = {"arrival_s": [5.0, 5.1, 5.2, 5.3]}
    assert "answers_identical" not in found(rows(19, **same))
    assert "answers_identical" in found(rows(20, **same))
    assert "answers_identical" not in found(rows(arrival_s=[5.0, 5.1, 5.2], read=[0, 1, 2], tokens=[1, 2, 3]))


def test_a_counted_end_of_sequence_is_no_token_of_an_event() -> None:
    """mlx-lm: four events, usage of five."""
    assert found(rows(output_tokens=5, tokens=[1, 2, 3, 5])) == {}


def test_tokens_that_were_never_streamed() -> None:
    plan = plan_of(LOAD)
    plan.output_tokens[:] = 1024
    finding = found(rows(output_tokens=1000, tokens=[1, 300, 700, 1000]), plan)["tokens_not_streamed"]
    assert finding.severity == "warning"
    assert finding.evidence == "250 tokens per stream event, by the server's count"
    assert "several_tokens_an_event" in found(rows(output_tokens=255, tokens=[1, 50, 100, 255]), plan)
    assert "tokens_not_streamed" in found(rows(output_tokens=256, tokens=[1, 50, 100, 256]), plan)
    # Whole answers in one event are no stream that leaves tokens out.
    whole = {"arrival_s": [5.0], "read": [0], "tokens": [1000], "output_tokens": 1000}
    kinds = found(rows(**whole), plan)
    assert "tokens_not_streamed" not in kinds
    assert kinds["several_tokens_an_event"].evidence == "1000.00 tokens per stream event"
    # Answers without any events have none that could hold several.
    assert found(spoilt(4, arrival_s=[], read=[], tokens=[], output_tokens=1000), plan) == {}


def test_fewer_tokens_than_events() -> None:
    finding = found(rows(output_tokens=2, tokens=[1, 1, 2, 2]))["fewer_tokens_than_events"]
    assert finding.severity == "warning"
    assert finding.evidence.startswith("the server counts 800 output tokens, but 1600 events with output came")
    assert "fewer_tokens_than_events" not in found(rows(output_tokens=3, tokens=[1, 2, 2, 3]))
    assert "fewer_tokens_than_events" not in found(spoilt(10, output_tokens=2, tokens=[1, 1, 2, 2]))


@pytest.mark.parametrize(
    ("events", "tokens", "kind"),
    [
        (63, 60, None),  # 5 % more events
        (64, 60, "fewer_tokens_than_events"),
        (60, 63, None),
        (60, 64, "several_tokens_an_event"),
    ],
)
def test_a_twentieth_more_or_less_is_let_pass_in_long_answers(events: int, tokens: int, kind: str | None) -> None:
    plan = plan_of(LOAD)
    plan.output_tokens[:] = 64
    records = rows(
        arrival_s=[5.0 + 0.1 * number for number in range(events)],
        read=list(range(events)),
        tokens=[min(number + 1, tokens) for number in range(events - 1)] + [tokens],
        output_tokens=tokens,
    )
    told = found(records, plan).keys() & {"fewer_tokens_than_events", "several_tokens_an_event"}
    assert told == ({kind} if kind else set())


def test_a_dataset_allows_what_it_says() -> None:
    texts = Dataset("text", [f"a{i}" for i in range(COUNT)], [4] * COUNT, "00", 0)
    plan = make_plan(texts, [LOAD], requests=[COUNT], warmup=2)
    assert found(rows(output_tokens=4), plan) == {}
    assert "output_length" in found(rows(output_tokens=9), plan)


def test_prompts_of_a_file_that_are_asked_again() -> None:
    def of(prompts: int, cached: int | None, again: int = 0) -> dict[str, Finding]:
        texts = [f"p{i}" for i in range(prompts - again)] + ["p0"] * again
        plan = make_plan(Dataset("text", texts, [4] * prompts, "00", 0), [LOAD], requests=[COUNT], warmup=2)
        # As it comes back from disk, where equal texts are one.
        places = {text: texts.index(text) for text in texts}
        plan.prompt[:] = [places[plan.prompts[at]] for at in plan.prompt]
        plan.prompts[:] = texts
        seen: set[int] = set()
        records = rows()
        for record, text in zip(records, plan.prompt[2:].tolist(), strict=True):
            record["cached_tokens"] = cached if text in seen else 0
            seen.add(text)
        return found(records, plan)

    assert "prompts_repeated" not in of(COUNT, 50)
    assert "prompts_repeated" not in of(COUNT, 50, 4)  # the first, and four more
    assert "prompts_repeated" in of(COUNT, 50, 5)
    round_again = of(100, 50)["prompts_repeated"]
    assert round_again.severity == "warning"
    assert round_again.evidence == (
        "300 of 400 prompts had been sent before in the cell, because the file has only 100; "
        "38% of the cell's input tokens came from the prefix cache for them"
    )
    # No cache, none that helped, or a file that is so itself: a reader should know, and it spoils nothing.
    without = of(100, None)["prompts_repeated"]
    assert without.severity == "info"
    assert without.evidence == "300 of 400 prompts had been sent before in the cell, because the file has only 100"
    assert of(100, 1)["prompts_repeated"].severity == "info"
    own = of(COUNT, 50, 200)["prompts_repeated"]
    assert own.severity == "info"
    assert "because the file" not in own.evidence
    assert "prefix_cache_helped" not in of(100, 50)


@pytest.mark.parametrize(("odd", "told"), [(True, None), (False, "199 of 200 prompts")])
def test_of_sessions_the_prompts_they_begin_with_may_repeat(odd: bool, told: str | None) -> None:
    texts = Dataset("text", [f"p{i}" for i in range(COUNT)], [4] * COUNT, "00", 0)
    plan = make_plan(texts, [LOAD], requests=[COUNT], warmup=0)
    records = rows()
    for number, each in enumerate(records):
        each.update(request_id=f"0-{number}", turn=number % 2)
    plan.prompt[:] = np.arange(COUNT)[::-1]
    plan.prompt[int(odd) :: 2] = 0  # the same text in every second turn, or in every first one
    finding = found(records, plan).get("prompts_repeated")
    assert (finding.evidence.partition(" had")[0] if finding else None) == told


def test_what_the_client_heard_of_odd_answers_is_said() -> None:
    unlisted = CellInfo(load=LOAD, start_s=0.0, end_s=9.0, unlisted={"queue": 400})
    uncounted = found(rows(output_tokens=3, tokens=[1, 2, 2, 3]), info=unlisted)["output_unlisted"]
    assert uncounted.severity == "warning"

    def told(**heard: Any) -> Finding:
        (finding,) = found(rows(), info=CellInfo(load=LOAD, start_s=0.0, end_s=9.0, **heard)).values()
        assert finding.severity == "info"
        return finding

    assert told(void_firsts=400).evidence == "the first event of 400 of 400 answers was no token"
    assert told(unlisted={"thoughts": 3}).evidence.endswith("not the specification's: delta.thoughts (3 answers)")
    assert told(hidden_tokens=60).evidence == "the server counts 60 tokens of reasoning that it did not send"
    assert told(hidden_tokens=-60).evidence == "the server sent 60 tokens of reasoning that its count leaves out"
