"""What to measure before a calibration: the promised intervals are those that a calibration has,
and its commands can be typed."""

import shlex

import msgspec
import numpy as np
import pytest
import typer

from loadstone.calibrate.advise import advise, make_case
from loadstone.calibrate.cases import CaseTable, refresh, slopes
from loadstone.calibrate.update import update, widths
from loadstone.catalogue import parse_deployment
from loadstone.commands import app
from loadstone.core.errors import InputError
from loadstone.predict.step_time.profile import profile_of

DEPLOYMENT = parse_deployment("llama-3.1-8b@1xh100/engine=vllm,version=0.26")


def test_what_is_promised_is_what_a_calibration_brings() -> None:
    """Loads that come out as predicted leave the coefficients where they are."""
    advice = advise(DEPLOYMENT, 700, 60, [1, 20])
    cases = [
        make_case(DEPLOYMENT, load.input_tokens, 60, load.concurrency) for load in advice.loads
    ]
    profile = profile_of(DEPLOYMENT.worker)
    table = CaseTable(cases)
    refresh(table, np.tile(profile.values(), (len(cases), 1)))
    for case, ttft_s, tpot_s in zip(cases, table.ttft_s, table.tpot_s, strict=True):
        case.point = msgspec.structs.replace(case.point, ttft_s=float(ttft_s), tpot_s=float(tpot_s))
    kept = update(profile, cases, "x", "2026-11-29").profile
    asked = CaseTable([make_case(DEPLOYMENT, 700, 60, users) for users in (1, 20)])
    values = np.tile(kept.values(), (2, 1))
    refresh(asked, values)
    promised = advice.loads[-1].interval_after
    for name, slope in zip(("ttft", "tpot"), slopes(asked, values), strict=True):
        assert np.mean(widths(kept, slope, name)) == pytest.approx(promised[name], rel=0.01)  # type: ignore[arg-type]


def test_each_load_narrows_and_the_first_most() -> None:
    advice = advise(DEPLOYMENT, 1024, 128, [1, 16, 64])
    for name in ("ttft", "tpot"):
        intervals = [advice.interval_before, *(load.interval_after for load in advice.loads)]
        widths_ = [interval[name] for interval in intervals]  # type: ignore[index]
        assert widths_ == sorted(widths_, reverse=True)
        steps = -np.diff(widths_)
        assert steps[0] == max(steps)
    # One load alone tells TPOT's parts of few and of many users apart no better than the prior.
    assert len({load.concurrency for load in advice.loads}) > 1


def test_its_commands_can_be_typed() -> None:
    group = typer.main.get_command(app)
    context = group.make_context("loadstone", ["doctor"])
    advice = advise(DEPLOYMENT, 1024, 128, [1, 16])
    names = []
    for line in advice.commands:
        program, name, *words = shlex.split(line)
        assert program == "loadstone"
        group.get_command(context, name).make_context(name, words, parent=context)  # type: ignore[attr-defined]
        names.append(name)
    assert names == ["bench"] * (len(names) - 1) + ["calibrate"]
    measured = {
        (int(words[words.index("--input") + 1]), int(users))
        for words in map(shlex.split, advice.commands[:-1])
        for users in words[words.index("--concurrency") + 1].split(",")
    }
    assert measured == {(load.input_tokens, load.concurrency) for load in advice.loads}


def test_a_load_that_does_not_fit_is_one_line() -> None:
    with pytest.raises(InputError, match="longer than the model's context"):
        advise(DEPLOYMENT, 200_000, 128, [1])


@pytest.mark.parametrize(
    ("loads", "more", "reason"),
    [
        ("0/128@1", [], "at least 1 in"),
        ("1024/1@1", [], "2 out"),
        ("1024/128@" + ",".join(map(str, range(1, 18))), [], "at most 16 loads"),
        ("1024/128@5000", [], "loads of 4,096"),
        ("1024/128@1", ["--profile", "lab"], "keeps nothing"),
        ("1024/128@1", ["--force"], "keeps nothing"),
    ],
)
def test_what_has_no_advice_is_one_line(loads: str, more: list[str], reason: str) -> None:
    words = ["calibrate", "--advise", loads, "--deployment", DEPLOYMENT.name, *more]
    with pytest.raises(InputError, match=reason):
        typer.main.get_command(app)(words, standalone_mode=False)


def test_a_model_that_writes_no_text_has_no_loads_to_advise() -> None:
    words = ["calibrate", "--advise", "512/64@1", "--deployment", "bge-m3@1xh100/engine=vllm"]
    with pytest.raises(InputError, match="writes no text"):
        typer.main.get_command(app)(words, standalone_mode=False)
