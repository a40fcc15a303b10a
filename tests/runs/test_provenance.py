"""What a run was made with: told without secrets, and compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from loadstone.analyse.compare import compare
from loadstone.core import run_folder
from loadstone.core.provenance import GitState, Provenance
from loadstone.core.secrets import blank_words
from loadstone.core.settings import read_settings
from loadstone.engines.launch import Container, Launch, RankCommand
from loadstone.runs import provenance
from loadstone.runs.bench import bench, digest_sent
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import ClientOptions, Options


def launch_of(
    *argv: str, env: dict[str, str] | None = None, container: Container | None = None
) -> Launch:
    rank = RankCommand("127.0.0.1", argv, env or {})
    return Launch(engine="vllm", ranks=(rank,), url="", container=container, notes=())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["vllm", "--api-key", "sesame"], ["vllm", "--api-key", "…"]),
        (["vllm", "--api_key=sesame", "--port", "1"], ["vllm", "--api_key=…", "--port", "1"]),
        (["x", "--env=HF_TOKEN=se=same=="], ["x", "--env=HF_TOKEN=…"]),
        (
            ["x", "-a", "api-key=sesame", "--env", "HF_TOKEN"],
            ["x", "-a", "api-key=…", "--env", "HF_TOKEN"],
        ),
        (["x", "--max-num-batched-tokens", "8", "--tokenizer", "a"], None),
        (["x", "--stop-when", "tpot_p50±2%", "--slo", "ttft_p99<2s"], None),
    ],
)
def test_command_lines_have_no_secrets(words: list[str], shown: list[str] | None) -> None:
    assert blank_words(words) == (words if shown is None else shown)


def test_fields_and_headers_are_digested_without_keys() -> None:
    def sent(body: dict[str, object], **headers: str) -> dict[str, str]:
        return digest_sent(ClientOptions(extra_body=body, headers=list(headers.items())))

    first = sent(
        {"top_k": 40, "o": {"api_key": "open-sesame"}}, Route="blue", Authorization="x" * 9
    )
    assert sorted(first) == ["Route", "o", "top_k"]
    assert first == sent({"o": {"api_key": "other-sesame"}, "top_k": 40}, Route="blue")
    assert first.items() ^ sent({"top_k": 41, "o": {}}, Route="red").items() >= first.items()


def test_the_environment_has_what_engines_read_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_API_KEY": "sesame-sesame", "HF_TOKEN": "hf_opensesame", "MY_DIARY": "x",
        "NCCL_DEBUG": "tells hf_opensesame", "CUDA_VISIBLE_DEVICES": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    made = provenance.of_launch(
        launch_of("engine", "--served", "hf_opensesame", env={"OMP_NUM_THREADS": "3"})
    )
    assert made.environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert made.environment["OMP_NUM_THREADS"] == "3"
    assert made.environment["NCCL_DEBUG"] == "tells …"
    assert not {"VLLM_API_KEY", "HF_TOKEN", "MY_DIARY"} & made.environment.keys()
    assert "sesame" not in msgspec.json.encode(made).decode()


@pytest.mark.process
@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#!/usr/bin/env -S {python}\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_packages_are_those_of_the_engine_s_interpreter(tmp_path: Path, head: str) -> None:
    program = tmp_path / "engine"
    program.write_text(head.format(python=sys.executable))
    program.chmod(0o755)
    made = provenance.of_launch(launch_of(str(program)))
    assert made.python == ".".join(map(str, sys.version_info[:3]))
    assert made.packages["msgspec"] == msgspec.__version__


def test_an_engine_without_an_interpreter_has_no_packages() -> None:
    for program in ("/bin/sh", "no-such-program"):
        made = provenance.of_launch(launch_of(program, "--port", "1"))
        assert (made.python, made.packages) == (None, {})


@pytest.mark.process
def test_a_container_is_known_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that answers as docker's documents say: there is none here."""
    docker = tmp_path / "docker"
    digest = "sha256:" + "ab" * 32
    docker.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "image inspect" ] && echo \'["vllm/vllm-openai@{digest}"]\' && exit\n'
        '[ "$1 $2 $3" = "exec loadstone-8000-0 python3" ] && echo \'["3.12.1", {"vllm": "0.33.0"}]\'\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    container = Container("docker", "vllm/vllm-openai:v0.33.0", "32g", ())
    run = launch_of("docker", "run", "--name", "loadstone-8000-0", "image", container=container)
    made = provenance.of_launch(run)
    assert (made.image, made.image_digest) == ("vllm/vllm-openai:v0.33.0", digest)
    assert (made.python, made.packages) == ("3.12.1", {"vllm": "0.33.0"})
    assert made.environment == {}  # that of this machine is not the container's
    assert provenance.of_launch(run, here=False).image_digest is None


@pytest.mark.process
def test_the_state_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert provenance.git_state() is None
    (tmp_path / "a").write_text("1")
    who = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "a"), (*who, "commit", "-qm", "a")):
        subprocess.run(["git", *words], check=True)
    clean = provenance.git_state()
    assert clean is not None
    assert len(clean.commit) == 40
    assert clean.changed is False
    (tmp_path / "a").write_text("2")
    assert provenance.git_state() == GitState(commit=clean.commit, changed=True)


def test_flags_are_told_by_name_and_without_the_place() -> None:
    words = (
        "vllm",
        "serve",
        "m",
        "--port",
        "81",
        "--tp-size=2",
        "--enforce-eager",
        "--cuda-graph-sizes",
        "1",
        "2",
    )
    made = Provenance(commands=(words,))
    assert made.flags == {"tp_size": "2", "enforce_eager": "true", "cuda_graph_sizes": "1 2"}


@pytest.mark.process
def test_runs_that_differ_in_what_they_were_made_with_say_so(tmp_path: Path) -> None:
    given = {
        "sim": "ttft=2ms,itl=1ms",
        "input": 8,
        "output": 4,
        "concurrency": 1,
        "requests": 4,
        "warmup": 0,
    }
    base = Provenance(
        commands=(("vllm", "serve", "m", "--port", "1"),), packages={"vllm": "0.32.0", "torch": "2.9"},
        environment={"VLLM_USE_V1": "1"}, image="vllm:1",
    )  # fmt: skip
    newer = msgspec.structs.replace(
        base, commands=(("vllm", "serve", "m", "--port", "2", "--enforce-eager"),),
        packages={"vllm": "0.33.0", "torch": "2.9"},
    )  # fmt: skip
    folders = [
        Path(bench(options_of(given | {"out": tmp_path / name}, Options), made_with=made).run_dir)
        for name, made in (("a", base), ("b", newer), ("c", None))
    ]
    rows = {row.what: (row.a, row.b) for row in compare(folders[:1], folders[1:2]).setup}
    assert rows["engine packages"] == ({"vllm": "0.32.0"}, {"vllm": "0.33.0"})
    assert rows["engine flags"] == ({"enforce_eager": None}, {"enforce_eager": "true"})
    assert "engine environment" not in rows
    assert "image" not in rows
    unknown = {row.what for row in compare(folders[:1], folders[2:]).setup}
    assert (
        not {"engine packages", "engine flags", "image"} & unknown
    )  # what nobody told is no difference


@pytest.mark.process
def test_another_version_s_provenance_is_none(tmp_path: Path) -> None:
    given = {
        "sim": "ttft=2ms,itl=1ms",
        "input": 8,
        "output": 4,
        "concurrency": 1,
        "requests": 4,
        "out": tmp_path,
    }
    folder = Path(bench(options_of(given, Options)).run_dir)
    info = run_folder.read_info(folder)
    assert info.settings.provenance.commands == ()
    info.settings = read_settings({"provenance": {"commands": 3}})
    assert info.settings.provenance == Provenance()
