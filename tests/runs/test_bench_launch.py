"""`bench --launch`: a real engine (llama.cpp with the small model) is started, measured and
gone."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import eventually, gone
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.launch import LaunchError
from loadstone.runs.bench import bench
from loadstone.runs.cells import Event
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options

pytestmark = pytest.mark.process

DEPLOYMENT = "llama-3.2-1b@1xcpu/engine=llama.cpp,ctx_size=2048,parallel=2"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """llama-server, which first writes down its process."""
    try:
        server = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    path = tmp_path / "engine"
    path.write_text(f'#!/bin/sh\necho $$ >{tmp_path}/pid\nexec {server} "$@"\n')
    path.chmod(0o755)
    return path


def options(executable: Path, **more: Any) -> Options:
    given = {
        "launch": DEPLOYMENT, "program": str(executable), "model": str(llama_cpp._tiny_model()),
        "argument": ["threads=1"], "input": 32, "output": 8, "concurrency": 2, "requests": 6,
        "out": executable.parent / "runs",
    }  # fmt: skip
    return options_of(given | more, Options)


def pid_of(program: Path) -> int:
    return int((program.parent / "pid").read_text())


def test_a_deployment_is_started_measured_and_stopped(program: Path) -> None:
    told: list[str] = []
    document = bench(options(program), lambda event: told.append(event.text)).document()
    assert gone(pid_of(program))
    assert document["status"] == "done"
    assert document["cells"][0]["requests"]["ok"] == 6
    folder = Path(document["run_dir"])
    info = run_folder.read_info(folder)
    assert info.settings.deployment["stated"] == DEPLOYMENT
    assert info.settings.deployment["engine"] == "llama.cpp"
    made = info.settings.provenance
    assert made.commands[0][0] == str(program)
    assert made.flags["threads"] == "1"
    assert made.flags["ctx_size"] == "2048"
    assert "listening" in (folder / "engine.log").read_text(errors="replace")
    log = re.search(r"starting llama.cpp; log: (\S+)", " ".join(told))
    assert log is not None
    assert not Path(log[1]).exists()


def test_an_engine_that_does_not_start_is_one_line_and_its_log_stays(program: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"there is no file no-such\.gguf, .*; check .* \(log: (\S+)\)$"
    ) as caught:
        bench(options(program, model="no-such.gguf"))
    assert caught.value.log.stat().st_size
    assert gone(pid_of(program))
    assert not (program.parent / "runs").exists()


def test_an_engine_that_dies_while_it_is_measured_is_why_the_run_failed(program: Path) -> None:
    def kill(event: Event) -> None:
        if event.kind == "cell":
            os.kill(pid_of(program), signal.SIGKILL)
            assert eventually(lambda: gone(pid_of(program)))

    document = bench(options(program, requests=4), kill).document()
    info = run_folder.read_info(Path(document["run_dir"]))
    assert info.status == "failed"
    assert "llama.cpp ended by signal 9" in str(info.error)
    assert str(Path(document["run_dir"]) / "engine.log") in str(info.error)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "http://127.0.0.1:1"}, "a URL and --launch"),
        ({"engine": "llama.cpp"}, "--engine and --launch"),
        ({"deployment": DEPLOYMENT}, "leave --deployment out"),
        ({"launch": "llama-3.1-8b@16xh100/tp16,nodes=2"}, "it takes 2 nodes, and this is one"),
        ({"launch": None, "image": "x"}, "--argument: goes with --launch"),
        ({"env": "1=2"}, "--env '1': write NAME=VALUE"),
        ({"program": "/no/such/engine"}, "no program /no/such/engine here"),
        (
            {"launch": "llama-3.1-8b@1xh100", "container": "docker"},
            "no image; name one with --image",
        ),
    ],
)
def test_what_cannot_be_started_is_one_line(
    tmp_path: Path, given: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        bench(options(tmp_path / "engine", **given))
    assert "\n" not in str(caught.value)
