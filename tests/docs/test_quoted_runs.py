"""Figures that a page quotes are those of the commands that it quotes beside them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from conftest import Loadstone

pytestmark = pytest.mark.long

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS.parent / "benchmarks" / "results"
ROUNDED = 0.006
"""Pages have three digits; the plan and the coefficients give the same results to the last bit."""
RENEWED = 0.05
"""Tables of benchmarks/results are written by scripts: coefficients that are fitted anew move a
figure by less."""


def section(page: str, heading: str) -> str:
    text = (DOCS / page).read_text()
    assert f"\n{heading}\n" in text
    return re.split(r"\n##+ ", text.partition(f"\n{heading}\n")[2])[0]


def cells_of(loadstone: Loadstone, text: str) -> list[dict[str, Any]]:
    """The metrics of every cell of all commands in it."""
    found = []
    for line in re.findall(r"^loadstone (simulate .*)$", text, re.MULTILINE):
        outcome = loadstone(*shlex.split(line), "--json")
        assert outcome.code == 0, outcome.err
        found += [cell["metrics"] for cell in json.loads(outcome.out)["cells"]]
    return found


def number(text: str) -> float:
    """`1,792`, `273 ms`, `10.7 s`: tokens/s or seconds."""
    value, _, unit = text.replace(",", "").partition(" ")
    return float(value) * {"ms": 1e-3}.get(unit, 1.0)


def rows_of(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]


def test_rows_of_others_are_simulated_by_the_commands_above_them(loadstone: Loadstone) -> None:
    """Without warm-up, as those clients began, and over the whole run, as they divided."""
    rows = rows_of((RESULTS / "seeds_speed.md").read_text())
    quoted = [
        next(row for row in rows if row[:2] == [server, load])
        for server, load in (("MI300X, SGLang 0.4.2", "4, 800"), ("MI300X, SGLang 0.4.2", "32, 800"),
                             ("8 GPUs, FP8 KV cache", "1"))
    ]  # fmt: skip
    runs = cells_of(loadstone, section("seeds.md", "## Speed"))
    assert len(runs) == len(quoted)
    for (_, _, *cells), run in zip(quoted, runs, strict=True):
        shipped = [number(cell.split(" / ")[1]) for cell in cells]
        got = [run["ttft_s"]["p50"], run["tpot_s"]["p50"] * 1e3, run["output_tokens_per_s"]]
        assert got == pytest.approx(shipped, rel=RENEWED)


def test_a_closed_loop_of_equal_lengths_goes_on_as_it_started(loadstone: Loadstone) -> None:
    text = section("measuring.md", "## How a closed loop starts")
    quoted = [[number(cell) for cell in row[1:]] for row in rows_of(text)[2:]]
    runs = cells_of(loadstone, text)
    got = [
        [
            *(
                run[name][q]
                for name, q in (
                    ("ttft_s", "p50"),
                    ("ttft_s", "p99"),
                    ("tpot_s", "p50"),
                    ("e2e_s", "p50"),
                )
            ),
            run["steady"]["output_tokens_per_s"],
        ]
        for run in runs
    ]
    assert len(got) == len(quoted) == 2
    for mine, pages in zip(got, quoted, strict=True):
        assert mine == pytest.approx(pages, rel=ROUNDED)


def test_slots_that_meet_wait_for_one_another(loadstone: Loadstone) -> None:
    text = section("measuring.md", "### Slots that meet")
    quoted = [number(cell) for cell in rows_of(text)[2][2:4]]
    assert [run["ttft_s"]["p50"] for run in cells_of(loadstone, text)] == pytest.approx(
        quoted, rel=ROUNDED
    )


def test_targets_are_held_against_the_run_that_is_quoted(loadstone: Loadstone) -> None:
    text = section("seeds.md", "### Targets")
    ttft, tpot, rate = ([number(cell) for cell in row[1:]] for row in rows_of(text)[2:])
    runs = cells_of(loadstone, text)
    assert [run["ttft_s"]["p50"] for run in runs] == pytest.approx(ttft, rel=ROUNDED)
    assert [run["tpot_s"]["p50"] for run in runs] == pytest.approx(tpot, rel=ROUNDED)
    assert [run["steady"]["output_tokens_per_s"] for run in runs] == pytest.approx(
        rate, rel=ROUNDED
    )


def test_superseded_methods_give_what_the_page_says(loadstone: Loadstone) -> None:
    text = section("simulate.md", "## What is simulated")
    quoted = [
        [number(cell) for cell in row[1:]]
        for row in rows_of(text.partition("| | output tok/s")[2])[1:5]
    ]
    runs = cells_of(
        loadstone, "\n".join(re.findall(r"^loadstone simulate .*/max_.*$", text, re.MULTILINE))
    )
    assert len(runs) == len(quoted) == 4
    for run, figures in zip(runs, quoted, strict=True):
        assert [run["steady"]["output_tokens_per_s"], run["ttft_s"]["p50"]] == pytest.approx(
            figures, rel=ROUNDED
        )


def test_prices_are_compared_for_the_runs_that_are_quoted(loadstone: Loadstone) -> None:
    text = section("compare.md", "## Prices")
    (quoted,) = re.findall(r"^ output tok/s +(\d,\d+) +(\d,\d+)", text, re.MULTILINE)
    (command,) = re.findall(r"`loadstone (simulate [^`]+)`", text)
    runs = cells_of(loadstone, f"loadstone {command}\nloadstone {command.replace('h100', 'h200')}")
    got = [run["steady"]["output_tokens_per_s"] for run in runs]
    assert got == pytest.approx([number(cell.replace(",", "")) for cell in quoted], rel=ROUNDED)


def printed() -> list[tuple[str, list[str]]]:
    """Commands of all pages whose output is the same each time, with the lines that the page prints
    below them."""
    found = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]:
        for block in re.findall(
            r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            for command, output in re.findall(
                r"^\$ loadstone (.+)\n((?:(?!\$ ).*\n)*)",
                block.replace("\\\n", " "),  # a command of several lines
                re.MULTILINE,
            ):
                same = command.startswith(("recommend ", "size ")) or "--dry-run" in command
                if output and same:
                    found.append((command, output.splitlines()))
    return found


@pytest.mark.parametrize(("command", "lines"), printed(), ids=[command for command, _ in printed()])
def test_what_a_page_prints_is_what_the_command_prints(
    command: str, lines: list[str], loadstone: Loadstone
) -> None:
    outcome = loadstone(*shlex.split(command, comments=True))
    assert outcome.code == 0, outcome.err
    whole = " ".join(outcome.out.split())
    assert [line for line in lines if " ".join(line.split()) not in whole] == []


def test_pages_print_a_decision_and_commands_of_launches() -> None:
    commands = [command.partition(" ")[0] for command, _ in printed()]
    assert {"recommend", "launch"} <= set(commands)
