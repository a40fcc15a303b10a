"""A cell's options as the words of a command line, for a client on another host."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from loadstone.commands.bench import _target
from loadstone.commands.flags import takes
from loadstone.engines.launch import Launch, RankCommand
from loadstone.measure.engines.launch import LaunchError
from loadstone.studies.machines.client import LedRanks
from loadstone.studies.measure import command_words
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options

GIVEN: list[dict[str, Any]] = [
    {
        "url": "http://a:1",
        "concurrency": 4,
        "input": "1k",
        "output": 16,
        "seed": 7,
        "label": "vllm 8xh200/tp8",
    },
    {
        "url": "http://a:1",
        "rate": float("inf"),
        "requests": [1, 8],
        "slo": "ttft_p99<2s,tpot_p99<50ms",
    },
    {
        "url": "http://a:1",
        "range_ratio": 0.8,
        "stream": False,
        "skip_bad": False,
        "flush_cache": False,
    },
    {
        "url": "http://a:1",
        "extra_body": {"a": [1, {"b": "-- c"}]},
        "stop": ["x,y", "--z"],
        "deployment": None,
    },
    {
        "url": "http://a:1",
        "flush_cache": True,
        "skip_bad": True,
        "duration": "60s",
        "timeout_first_s": 5,
    },
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


class _Lost:
    """A rank whose host is gone."""

    lost = "the connection to node1 was lost"

    def __init__(self, log: Path) -> None:
        self.log_path = log

    def exit_code(self) -> int:
        return 255

    def end(self) -> None: ...

    def stop(self) -> None: ...


def test_a_host_that_is_lost_is_named(tmp_path: Path) -> None:
    launch = Launch(
        engine="vllm", ranks=(RankCommand("node1", ("x",), {}),), url="", container=None, notes=()
    )
    ranks = LedRanks(launch, "", tmp_path, lambda i, log, on_end: _Lost(log))
    with pytest.raises(
        LaunchError, match="rank 0 of vllm is lost: the connection to node1 was lost"
    ):
        ranks.check()


@pytest.mark.process
def test_nothing_is_left_of_an_actor_that_was_killed() -> None:
    program = (
        "from loadstone.studies.machines.ray_host import RankHost; import os, time; "
        "host = RankHost(); host.lead('sleep 1 &\\nwait $!\\n'); print(host.about()[1], flush=True); "
        "time.sleep(0.5); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False,
                          capture_output=True, text=True)  # fmt: skip
    folder, ends_s = Path(done.stdout.strip()), time.monotonic() + 10
    while folder.exists() and time.monotonic() < ends_s:
        time.sleep(0.1)
    assert not folder.exists()
