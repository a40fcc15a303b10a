"""A study file: what it may say, and the one line with its place that tells what it may not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadstone.core.errors import InputError
from loadstone.studies.file import Seconds, Share, StudyFile, read_study
from loadstone.studies.machines import GROUP, make_machines
from loadstone.studies.machines.kind import MachineKind
from loadstone.studies.machines.local import LocalMachine
from loadstone.studies.supervise import Machine

STUDY = """\
study: r1-engines
model: deepseek-ai/DeepSeek-R1
engines:
  vllm:   {image: "vllm/vllm-openai:v0.32.0"}
  sglang: {image: "lmsysorg/sglang:v0.5.23", args: {mem_fraction_static: 0.85}}
deployments:
  engine: [vllm, sglang]
  layout: [8xh200/tp8, "8xh200/dp8,attention-dp,ep8", "16xh200/tp16,nodes=2"]
  except: [{engine: vllm, layout: "16xh200/tp16,nodes=2"}]
workloads:
  chat: {input: 1k, output: 1k, range-ratio: 0.8}
  long: {input: 8k, output: 1k}
loads: {concurrency: [4, 16, 64, 256]}
repeats: 3
order: interleaved
restart: repeat               # or never
slo: "ttft_p99<2s,tpot_p99<50ms"
limits: {ready: 30m, cell: 20m, errors: 5%, total: 12h}
machines:
  here:  {local: true}
  pair:  {ssh: [gpu1, gpu2]}
  slurm: {partition: h200}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.yaml"


def test_a_study_is_read(path: Path) -> None:
    path.write_text(STUDY)
    study = read_study(path).study
    assert study.engines["sglang"].args == {"mem_fraction_static": 0.85}
    assert (study.limits.ready, study.limits.cell, study.limits.errors) == (
        Seconds(1800),
        Seconds(1200),
        Share(0.05),
    )
    assert [machine.kind for machine in study.machines.values()] == ["local", "ssh", "slurm"]
    assert study.workloads["chat"] == {"input": "1k", "output": "1k", "range-ratio": 0.8}


@pytest.mark.parametrize(
    ("before", "after", "place", "problem"),
    [
        ("repeats: 3", "repeats: 0", "14:1", "repeats: 0; write at least 1"),
        ("ready: 30m", "ready: 30x", "18:10", "'30x' is not a duration"),
        ("errors: 5%", "errors: 500%", "18:33", "no share of the requests"),
        ("range-ratio", "range-rato", "11:33", "write range-ratio"),
        ("input: 8k", "concurrency: 8", "12:10", "it stands under loads"),
        ("restart", "restrat", "16:1", "restrat: no such key"),
        ("{image: \"vllm", "{imagee: \"vllm", "4:12", "imagee: no such key"),
        ("[vllm, sglang]", "[vllm, sglan]", "7:18", "sglan: no engine; known are vllm, sglang"),
        ('layout: "16x', 'layout: "17x', "9:27", "none of this study's"),
        ("concurrency", "concurency", "13:9", "write concurrency"),
        ("concurrency", "find_max", "13:9", "write find-max"),
        ("{local: true}", "{local: true, ssh: [a]}", "20:3", "write one"),
        ("[gpu1, gpu2]}", "[gpu1, gpu2], qos: high}", "21:30", "qos: a machine of kind ssh has none"),
        ("{local: true}", "{local: true, client: gpu1}", "20:24", "client: a machine of kind local has none"),
        ("repeats: 3", "repeats: 3\nrepeats: 4", "15:1", "repeats is given twice"),
        ("order: interleaved", "order: random", "15:1", "invalid enum value 'random'"),
        ("chat: {", "chat: [", "11:49", "no YAML"),
        ("repeats: 3", "repeats: *r", "14:10", "aliases are not read"),
        ("{input: 8k, output: 1k}", "&a {input: 8k}\n  same: *a", "13:9", "aliases are not read"),
        ("study: r1", "study: ../r1", "1:1", "is no name"),
        ("{image: \"vllm", "{env: {A=B: x}, image: \"vllm", "4:12", "'A=B' is no name of a variable"),
        ("{image: \"vllm", "{url: \"http://me:Secret@x/\", image: \"vllm", "4:12", "give keys in LOADSTONE_API_KEY"),
        ("cell: 20m", "cell: 0s", "18:22", "'0s' is no time"),
        ("{image: \"vllm", "{args: {a: [1]}, image: \"vllm", "4:12", "args: expected"),
        ("{local: true}", "{local: true, parallel: 1000000000}", "20:24", "write 1 to 256"),
        ("machines:", "machines: []\nothers:", "19:1", "machines: expected `object`"),
    ],
)  # fmt: skip
def test_an_error_says_where_and_what(
    path: Path, before: str, after: str, place: str, problem: str
) -> None:
    assert STUDY.count(before) >= 1
    path.write_text(STUDY.replace(before, after, 1))
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        read_study(path)
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"- 1",
        b"study: [" * 100_000,
        b"? " * 100_000,
        b"- " * 100_000 + b"x",
        b"\xff\xfe\x00",
        b"study: !!python/object/apply:os.system [true]",
        b"study: !!binary aGVsbG8=",
        b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]",
        b"? [a, b]\n: c",
        b"1: 2",
        b"study: 2026-01-01\ndeployments: {engine: [vllm]}\nworkloads: {a: 3}",
        b"x" * (2 << 20),
        b"seed: !!timestamp x",
        b"seed: !!bool x",
        b"seed: !!int ''",
        b"seed: 1" + b":1" * 400_000,
        b"seed: 1" + b":1" * 400_000 + b".5",
        b"seed: 0x" + b"f" * 9000,
        b'model: "a\\0b"',
    ],
)  # fmt: skip
def test_whatever_lies_there_is_one_line(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_study(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


class _Kind(MachineKind):
    """A kind of another package: its machines are local ones."""

    def make(self, read: StudyFile, name: str) -> list[Machine]:
        assert read.study.machines[name].settings == {"region": "x"}
        return [LocalMachine(1.0)]


def test_a_kind_of_machines_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nother = {__name__}:_Kind\n")
    monkeypatch.syspath_prepend(tmp_path)
    study = tmp_path / "study.yaml"
    text = "study: s\ndeployments: {engine: [llama.cpp]}\nmachines: {m: {type: NAME, settings: {region: x}}}\n"
    study.write_text(text.replace("NAME", "other"))
    (machine,) = make_machines(read_study(study), None)
    assert isinstance(machine, LocalMachine)
    study.write_text(text.replace("NAME", "another"))
    with pytest.raises(
        InputError, match=r"another: no such kind of machines; installed are .*slurm, ssh"
    ):
        make_machines(read_study(study), None)
