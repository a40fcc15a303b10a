"""The scripts for a GPU machine: what they would run, the models they make, and how predictions are scored."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import script

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "gpu"
VLLM = ROOT / ".cache" / "engines" / "vllm" / "bin" / "python"
SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 8192,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def run(name: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPTS / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_a_dry_run_prints_every_command_and_what_is_missing(tmp_path: Path) -> None:
    done = run(
        "engines", "--dry-run", "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--engine", "vllm",
        "transformers", "--model", "llama-3.1-8b", "llama-3.1-8b:fp8", "--prefix-cache", "off,on",
    )  # fmt: skip
    # This Python has neither engine.
    assert done.returncode == 1
    assert "cannot import vllm" in done.stderr
    cases = [line.removeprefix("# ") for line in done.stdout.splitlines() if line.startswith("# ")]
    assert cases == [
        "vllm-llama-3.1-8b-bf16-nocache", "vllm-llama-3.1-8b-bf16-cache", "transformers-llama-3.1-8b-bf16",
        "vllm-llama-3.1-8b-fp8-nocache", "vllm-llama-3.1-8b-fp8-cache",
    ]  # fmt: skip
    starts = [line for line in done.stdout.splitlines() if "vllm.entrypoints" in line]
    assert all("--load-format dummy" in line for line in starts)
    assert [" --quantization fp8 " in line for line in starts] == [False, False, True, True]
    asks = [line for line in done.stdout.splitlines() if " bench " in line]
    assert len(asks) == 2 * len(cases)
    # Both settings of the cache are asked the same.
    assert all("--prefix 512 " in line or "--prefix 256 " in line for line in asks)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("gpu", "loads", "left_out"),
    [
        ("h200", ["1,8,32,128", "1,8,32,128"], []),
        # 80 GB: 65.5 of weights leave room for 27 requests of 1,152 tokens and a few more of 768.
        ("h100", ["1,8", "1,8,32"], ["1024/128", "512/256"]),
        ("l40s", [], ["1024/128", "512/256"]),
    ],
)
def test_what_a_gpu_has_no_room_for_is_left_out_and_said(
    gpu: str, loads: list[str], left_out: list[str], tmp_path: Path
) -> None:
    done = run(
        "engines", "--dry-run", "--gpu", gpu, "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--model",
        "qwen3-32b", "--concurrency", "1,8,32,128",
    )  # fmt: skip
    words = [line.split() for line in done.stdout.splitlines() if " bench " in line]
    assert [each[each.index("--concurrency") + 1] for each in words] == loads
    said = [line for line in done.stderr.splitlines() if "only the loads" in line]
    assert [line.split()[1].rstrip(":") for line in said] == left_out
    assert all(f"on a {gpu} " in line for line in said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "no-such-model"), "no model 'no-such-model'"),
        (("--prefix-cache", "maybe"), "--prefix-cache maybe"),
    ],
)
def test_bad_input_is_told_before_anything_starts(tmp_path: Path, arguments: tuple[str, str], said: str) -> None:
    done = run("engines", "--dry-run", "--out", str(tmp_path / "out"), "--work", str(tmp_path), *arguments)
    assert done.returncode in (1, 2)
    assert said in done.stderr


@pytest.mark.usefixtures("scripts")
def test_a_model_folder_has_a_token_for_every_id(tmp_path: Path) -> None:
    made = script(SCRIPTS / "model_folder.py")
    made.write(tmp_path, made.config_of("llama-3.1-8b", layers=2))
    config, tokenizer = (json.loads((tmp_path / name).read_text()) for name in ("config.json", "tokenizer.json"))
    assert config["num_hidden_layers"] == 2
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == 128256
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(128256))
    # Another engine's reader of the same folder: ours.
    from loadstone import catalogue

    assert catalogue.model(str(tmp_path / "config.json")).hidden == 4096


@pytest.mark.usefixtures("scripts")
def test_a_vocabulary_too_small_is_one_line(tmp_path: Path) -> None:
    made = script(SCRIPTS / "model_folder.py")
    with pytest.raises(Exception, match="at least"):
        made.write(tmp_path, SMALL | {"vocab_size": 100})


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("stem", "deployment"),
    [
        ("vllm-llama-3.1-8b-bf16-nocache-1024-128", "llama-3.1-8b@1xh200/engine=vllm"),
        ("vllm-qwen3-32b-fp8-cache-512-256", "qwen3-32b:fp8@1xh200/engine=vllm,prefix_caching=1"),
        ("transformers-llama-3.1-8b-bf16-1024-128", "llama-3.1-8b@1xh200/engine=transformers"),
        ("vllm-llama-3.1-8b-bf16-nocache-1024-128.run", None),
        ("gpu", None),
    ],
)
def test_a_files_name_says_what_was_deployed(stem: str, deployment: str | None) -> None:
    score = script(SCRIPTS / "score.py")
    found = score._NAME.fullmatch(stem)
    assert (None if found is None else score.deployment_of(found, "h200")) == deployment


@pytest.mark.usefixtures("scripts")
def test_errors_are_of_the_prediction() -> None:
    def cells(ttft: float, tpot: float, rate: float) -> dict[str, Any]:
        metrics = {"ttft_s": {"p50": ttft}, "tpot_s": {"p50": tpot}, "output_tokens_per_s": rate}
        return {"cells": [{"load": {"value": 8}, "verdict": {"trusted": True}, "metrics": metrics}]}

    (row,) = script(SCRIPTS / "score.py").rows_of(cells(0.1, 0.02, 400.0), cells(0.11, 0.01, 400.0))
    assert row["ttft_s"]["error"] == pytest.approx(0.1)
    assert row["tpot_s"]["error"] == pytest.approx(-0.5)
    assert row["output_tokens_per_s"] == {"measured": 400.0, "predicted": 400.0, "error": 0.0}


def test_what_was_simulated_is_predicted_without_error(tmp_path: Path) -> None:
    """The same model over the same plan: scoring adds nothing of its own."""
    done = subprocess.run(
        [
            sys.executable, "-m", "loadstone.commands", "simulate", "llama-3.1-8b@1xh200/engine=vllm",
            "--input", "64", "--output", "8", "--concurrency", "1,4", "--requests", "8", "--json",
            "--out", str(tmp_path / "runs"),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    kept = tmp_path / "vllm-llama-3.1-8b-bf16-nocache-64-8.json"
    kept.write_text(done.stdout)
    shutil.copyfile(Path(json.loads(done.stdout)["run_dir"]) / "plan.parquet", kept.with_suffix(".plan.parquet"))
    scored = run("score", str(tmp_path), "--gpu", "h200")
    assert scored.returncode == 0, scored.stderr
    (one,) = json.loads(scored.stdout)["runs"]
    assert one["profile"] == "shipped"
    assert [cell["load"] for cell in one["cells"]] == [1, 4]
    for cell in one["cells"]:
        for metric in ("ttft_s", "tpot_s", "output_tokens_per_s"):
            assert cell[metric]["measured"] > 0
            assert cell[metric]["error"] == pytest.approx(0.0, abs=1e-6)
    slower = json.loads(kept.read_text())
    for cell in slower["cells"]:
        cell["metrics"]["tpot_s"]["p50"] *= 2
    kept.write_text(json.dumps(slower))
    # The papers say on which GPU it was, unless told otherwise.
    bare = run("score", str(tmp_path))
    assert bare.returncode == 2
    assert "name it with --gpu" in bare.stderr
    papers = {"settings": {"gpus": [{"gpu": 0, "name": "NVIDIA H200"}]}}
    kept.with_suffix(".run.json").write_text(json.dumps(papers))
    again = run("score", str(tmp_path))
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["gpu"] == "h200"
    (one,) = document["runs"]
    assert one["cells"][0]["tpot_s"]["error"] == pytest.approx(-0.5, abs=1e-6)


def test_nothing_to_score_is_one_line(tmp_path: Path) -> None:
    done = run("score", str(tmp_path), "--gpu", "h200")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "cases"),
    [
        ("2", ["vllm-llama-3.1-8b-bf16-nocache", "vllm-llama-3.1-8b-fp8-nocache"]),
        ("3", ["vllm-qwen3-32b-bf16-nocache", "vllm-llama-3.1-8b-bf16-cache", "transformers-llama-3.1-8b-bf16"]),
    ],
)
def test_a_round_is_what_the_page_says(number: str, cases: list[str], tmp_path: Path) -> None:
    command = [SCRIPTS / "round", number, tmp_path / "out", "", "--dry-run"]
    env = os.environ | {"SITE": str(tmp_path / "none"), "PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert [line.removeprefix("# ") for line in done.stdout.splitlines() if line.startswith("# ")] == cases
    # Nothing can import these engines here, and a round goes on after what fails.
    assert done.returncode == 1
    assert (tmp_path / "out" / f"engines-{number}.tar.xz").is_file()


@pytest.mark.parametrize(("number", "cases"), [("2", 2), ("3", 3)])
def test_a_round_whose_time_is_up_starts_no_engine(number: str, cases: int, tmp_path: Path) -> None:
    command = [SCRIPTS / "round", number, tmp_path / "out", "", "--dry-run"]
    env = os.environ | {"SITE": str(tmp_path / "none"), "PYTHON": sys.executable, "ROUND_S": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("no time left") == cases


def test_what_one_engine_left_outlives_a_round_that_is_killed(tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"#!/bin/sh\nif [ -e {tmp_path}/second ]; then exec sleep 60; fi\n"
        f'touch {tmp_path}/second; mkdir -p "$3"; echo here > "$3/kept"\n'
    )
    stand_in.chmod(0o755)
    env = os.environ | {"SITE": str(tmp_path / "none"), "PYTHON": str(stand_in), "TMPDIR": str(tmp_path)}
    kept = tmp_path / "out" / "engines-2.tar.xz"
    with subprocess.Popen([SCRIPTS / "round", "2", kept.parent], env=env, start_new_session=True) as going:
        deadline = time.monotonic() + 30
        while not kept.is_file() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(going.pid, signal.SIGKILL)
    with tarfile.open(kept) as packed:
        assert "engines/kept" in packed.getnames()


def test_no_such_round_is_told(tmp_path: Path) -> None:
    done = subprocess.run([SCRIPTS / "round", "4", tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "scripts/gpu/round 1|2|3" in done.stderr


def test_without_time_nothing_starts(tmp_path: Path) -> None:
    done = run("engines", "--out", str(tmp_path / "out"), "--work", str(tmp_path), "--budget", "0")
    assert done.returncode == 1
    assert done.stderr.count("no time left") == 3


def test_weights_are_made_within_the_budget(tmp_path: Path) -> None:
    config, slow = tmp_path / "small.json", tmp_path / "python"
    config.write_text(json.dumps(SMALL))
    slow.write_text("#!/bin/sh\nexec sleep 20\n")
    slow.chmod(0o755)
    done = run(
        "engines", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--device", "cpu", "--engine",
        "transformers", "--model", str(config), "--python", str(slow), "--budget", "1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "timed out after" in done.stderr
    assert not list((tmp_path / "out").iterdir())  # no engine was started


@pytest.mark.usefixtures("scripts")
def test_a_sweep_that_is_cut_short_tells_what_it_has() -> None:
    asked = ["bash", "-c", "trap 'echo kept; exit 130' TERM; while :; do sleep 0.05; done"]
    assert script(SCRIPTS / "engines.py").measure(asked, 1.0) == (130, "kept\n")
    assert script(SCRIPTS / "engines.py").measure(["echo", "all"], float("inf")) == (0, "all\n")


@pytest.mark.parametrize("name", ["microbench", "engines", "score"])
def test_a_script_runs_from_anywhere(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPTS / name, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_packed_wheels_come_out_as_installed(tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("thing/__init__.py", "word = 'here'\n")
        file.writestr("thing/large.so", "x" * 1000)
        file.writestr("thing/kernels.so", fat_binary((2, 80, b"a" * 64), (2, 90, b"b" * 64)))
        file.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        file.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("thing-1.dist-info/RECORD", "")
    packed, site, leave = tmp_path / "parts", tmp_path / "site", tmp_path / "leave.txt"
    leave.write_text("*/large.so\n")
    command = [SCRIPTS / "pack", "--gpu", "90", "--leave", leave, "--mib", "1", packed, wheel]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert [path.name for path in packed.iterdir()] == ["part.00"]
    site.mkdir()
    subprocess.run(["tar", "--extract", "--xz", "--directory", site, "--file", packed / "part.00"], check=True)
    assert sorted(path.name for path in (site / "thing").iterdir()) == ["__init__.py", "kernels.so"]
    kept = (site / "thing" / "kernels.so").read_bytes()
    assert b"b" * 64 in kept
    assert b"a" not in kept


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """As CUDA 13 writes them: entries of (kind, capability, payload)."""
    body = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(payload), capability) + payload
        for kind, capability, payload in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


PTX, CODE = 1, 2


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("there", "left"),
    [
        (((CODE, 80), (CODE, 90), (CODE, 100), (PTX, 90)), [(CODE, 90)]),
        (((CODE, 90), (CODE, 80), (CODE, 90)), [(CODE, 90), (CODE, 90)]),
        (((CODE, 80), (PTX, 75), (PTX, 80), (PTX, 100)), [(PTX, 80)]),  # a driver translates the newest that it may
        (((CODE, 100), (CODE, 75)), [(CODE, 100)]),
    ],
)
def test_a_library_keeps_what_one_gpu_would_take(there: tuple[tuple[int, int], ...], left: list[Any]) -> None:
    one_gpu = script(SCRIPTS / "one_gpu.py")
    before, between, after = b"program", b"data", b"more"
    fat = fat_binary(*((kind, capability, bytes([capability]) * 16) for kind, capability in there))
    library = bytearray(before + fat + between + fat + after)
    length = len(library)
    kept, cleared = one_gpu.clear(library, 90)
    assert kept + cleared == 2 * (len(fat) - 16)
    assert len(library) == length
    for at in (len(before), len(before + fat + between)):
        assert library[at - len(between) : at] in (before[-4:], between)
        found = one_gpu.entries_at(library, at)
        assert [(each.kind, each.capability) for each in found] == left
        assert [bytes(library[each.end - 16 : each.end]) for each in found] == [bytes([c]) * 16 for _, c in left]
        end = found[-1].end
        assert not any(library[end : at + len(fat)])  # the rest is zeros
    assert library.endswith(after)


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    "broken",
    [fat_binary((7, 90, b"x" * 16)), fat_binary((CODE, 90, b"x" * 16))[:-4], fat_binary((CODE, 80, b""))[:40]],
)
def test_a_library_that_makes_no_sense_stays_as_it_is(broken: bytes) -> None:
    library = bytearray(fat_binary((CODE, 80, b"x" * 16), (CODE, 90, b"y" * 16)) + broken)
    before = bytes(library)
    with pytest.raises(ValueError, match="fat binary"):
        script(SCRIPTS / "one_gpu.py").clear(library, 90)
    assert library == before


@pytest.mark.slow
@pytest.mark.skipif(not VLLM.exists(), reason="no vLLM: scripts/engines/vllm puts one into .cache/engines")
def test_a_real_engine_with_random_weights_is_measured(tmp_path: Path) -> None:
    """vLLM on the processor, from a config.json alone."""
    config = tmp_path / "small.json"
    config.write_text(json.dumps(SMALL))
    done = run(
        "engines", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--device", "cpu", "--model",
        str(config), "--python", str(VLLM), "--lengths", "64/16", "--concurrency", "1,2", "--duration", "2s",
        timeout_s=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "vllm-small-bf16-nocache-64-16.json").read_text())
    for cell in summary["cells"]:
        assert cell["requests"]["ok"] == cell["requests"]["sent"] > 0
        assert cell["metrics"]["output_tokens_per_s"] > 0
    assert summary["target"]["engine"] == "vLLM"
    assert (tmp_path / "out" / "vllm-small-bf16-nocache-64-16.plan.parquet").is_file()
