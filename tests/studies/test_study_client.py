"""A cell's options as the words of a command line, for a client on another host."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from loadstone.commands.bench import _target
from loadstone.commands.flags import takes
from loadstone.studies.measure import command_words
from loadstone.workload.options import Options, options_of

GIVEN: list[dict[str, Any]] = [
    {"url": "http://a:1", "concurrency": 4, "input": "1k", "output": 16, "seed": 7, "label": "vllm 8xh200/tp8"},
    {"url": "http://a:1", "rate": float("inf"), "requests": [1, 8], "slo": "ttft_p99<2s,tpot_p99<50ms"},
    {"url": "http://a:1", "range_ratio": 0.8, "stream": False, "skip_bad": False, "flush_cache": False},
    {"url": "http://a:1", "extra_body": {"a": [1, {"b": "-- c"}]}, "stop": ["x,y", "--z"], "deployment": None},
    {"url": "http://a:1", "flush_cache": True, "skip_bad": True, "duration": "60s", "timeout_first_s": 5},
]


@pytest.mark.parametrize("given", GIVEN, ids=range(len(GIVEN)))
def test_words_mean_what_the_options_mean(given: dict[str, Any]) -> None:
    read: list[Options] = []
    app = typer.Typer()

    def bench(options: Options) -> None:
        read.append(options)

    app.command()(takes(Options, _target)(bench))
    app(command_words(given), standalone_mode=False)
    expected = options_of(given, Options)
    read[0].output.command = expected.output.command
    if isinstance(expected.target.url, str):
        expected.target.url = [expected.target.url]
    assert read[0] == expected
