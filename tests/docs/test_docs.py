"""What the documentation shows is run as it stands, against the timing server in place of the
reader's."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Loadstone
from loadstone.measure import simulated_server

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
ELSEWHERE = [*PAGES[:2], ROOT / "docs" / "tutorial.md"]
"""test_readme.py runs the first and the last."""
LONG = {"planner.md"}
"""Pages whose examples compute for half a minute; test_quoted_runs.py runs the first of them,
too."""
READERS_SERVERS = ("http://localhost:8000", "http://localhost:8001")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.process
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.name in LONG))
        for page in PAGES
        if page not in ELSEWHERE
    ],
    ids=lambda page: page.name,
)
def test_examples_on_the_page_run(
    page: Path, loadstone: Loadstone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [
        line
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if line.startswith("loadstone ")
    ]
    programs = blocks(page, "python")
    if not commands and not programs:
        pytest.skip("no examples on this page")
    signal.alarm(300)  # a page may have many
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # a self-test is kept there
    law = simulated_server.FixedLatency.parse("ttft=5ms,itl=1ms")
    with simulated_server.start(law) as first, simulated_server.start(law) as second:

        def real(text: str) -> str:
            return text.replace(READERS_SERVERS[0], first.url).replace(
                READERS_SERVERS[1], second.url
            )

        for command in commands:
            outcome = loadstone(*shlex.split(real(command))[1:])
            assert outcome.code == 0, f"{command}\n{outcome.out}\n{outcome.err}"
        if programs:  # a page's are one program, as a notebook's cells are
            program = "\n".join(programs)
            run([sys.executable, "-c", real(program)], program)


def files() -> dict[str, str]:
    """What a reader would have in the folder."""
    prompts = [{"prompt": f"What is {i} times {i}?"} for i in range(12)]
    talk = {
        "conversations": [
            {"from": who, "value": f"{who} says"} for who in ("human", "gpt", "human", "gpt")
        ]
    }
    lines = {
        "azure.csv": ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        + [f"2023-11-16 18:15:{46 + i}.6805900,{300 + i},{4 + i}" for i in range(12)],
        "mooncake.jsonl": [
            json.dumps(
                {
                    "timestamp": 500 * i,
                    "input_length": 1000,
                    "output_length": 40,
                    "hash_ids": [0, i + 1],
                }
            )
            for i in range(12)
        ],
        "burstgpt.csv": ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
        + [
            f"{5 + 4 * i},ChatGPT,{100 + i},{5 + i},{105 + 2 * i},Conversation log"
            for i in range(24)
        ],
        "day.csv": ["timestamp_s,input_tokens,output_tokens"]
        + [f"{60 * at},512,128" for at in range(24 * 60) if at % 4 <= 2 * (8 * 60 <= at < 20 * 60)],
        "own.csv": ["timestamp_s,input_tokens,output_tokens"]
        + [f"{i / 10},{50 + i},{5}" for i in range(12)],
        "prose.txt": [" ".join(f"Sentence {i} is unlike the others." for i in range(1500))],
        "prompts.jsonl": list(map(json.dumps, prompts)),
        "conversations.json": [json.dumps([talk] * 6)],
        "results.jsonl": [
            json.dumps(
                {
                    "backend": "sglang",
                    "request_rate": float("inf"),
                    "max_concurrency": 4,
                    "random_input_len": 8,
                    "duration": 2.0,
                    "completed": 9,
                    "median_ttft_ms": 20.0,
                    "median_e2e_latency_ms": 90.0,
                }
            )
        ],
        "points.csv": [
            "deployment,input_len,output_len,arrival,arrival_value,num_prompts,ttft_ms_median,tpot_ms_median",
            '"llama-3.1-8b@1xh100/tp1,engine=vllm",1024,128,concurrency,8,64,120,9',
        ],
        "results.csv": ["users,Median TTFT", "4,120", "8,250"],
        "h200-capped.yaml": blocks(ROOT / "docs" / "catalogue.md", "yaml"),
    }
    return {name: "\n".join(of) + "\n" for name, of in lines.items()}


def run(command: list[str], shown: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, f"{shown}\n{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Returns the anchors that forges give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
