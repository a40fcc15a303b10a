"""What this machine has, and what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from conftest import Loadstone
from fake_nvml import FakeNvml, h100


def test_what_is_there_and_what_is_not_on_one_screen(
    loadstone: Loadstone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    vllm = tmp_path / "vllm"
    vllm.write_text("#!/bin/sh\nexit 1\n")
    vllm.chmod(0o755)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(h100(), h100()))
    done = loadstone("doctor", "--json")
    checks = {(each["group"], each["name"]): each for each in done.document["checks"]}
    assert (done.code, done.document["schema"]) == (0, 1)
    there = checks["engines", "vLLM"]
    assert (there["state"], there["found"], there["remedy"]) == ("ok", str(vllm), None)
    assert checks["engines", "SGLang"]["state"] == "missing"
    assert checks["engines", "SGLang"]["remedy"] == "pip install sglang"
    assert "clock" in checks["GPUs", "GPU 1"]["found"]
    assert "driver 580.159.04" in checks["GPUs", "GPU 0"]["found"]
    assert checks["client", "clock"]["found"] == ("kernel" if sys.platform == "linux" else "user")
    assert {each["state"] for each in checks.values()} <= {"ok", "missing", "warning"}

    shown = loadstone("doctor").out.splitlines()
    assert len(shown) <= 48
    assert max(map(len, shown)) <= 80


def test_a_gpu_whose_clock_is_held_down_and_a_machine_without_any(
    loadstone: Loadstone, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttled = h100(CurrentClocksEventReasons=0x20)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(throttled))
    (gpu,) = [
        each for each in loadstone("doctor", "--json").document["checks"] if each["group"] == "GPUs"
    ]
    assert gpu["state"] == "warning"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init=False))
    (gpu,) = [
        each for each in loadstone("doctor", "--json").document["checks"] if each["group"] == "GPUs"
    ]
    assert gpu["state"] == "missing"
    assert "no NVIDIA driver answers" in gpu["found"]
