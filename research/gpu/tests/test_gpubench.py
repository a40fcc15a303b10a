"""The benchmarks' own code: its order, and where $PYTHON has torch, all of it on the processor,
with tiny shapes; the Triton kernels by Triton's interpreter, which runs them without a GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpubench import engine_kernels, session
from gpubench.points import Bench, best
from loadstone.core.errors import InputError

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[2]
PYTHON = os.environ.get("PYTHON", sys.executable)


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    needs = "torch, triton" if "TRITON_INTERPRET" in env else "torch"
    if subprocess.run(
        [PYTHON, "-c", f"import {needs}"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"no {needs}: name a Python that has it, PYTHON=…")
    path = ":".join(map(str, (ROOT / "src", TESTS.parent, ROOT / "tests/core")))
    return subprocess.run(
        [PYTHON, *command], env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""} | env,
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def read(path: Path) -> Bench:
    return msgspec.json.decode(path.read_bytes(), type=Bench)


def test_the_order_is_by_what_matters_most() -> None:
    wanted = session.jobs()
    names = [job.name for job in wanted]
    assert len(names) == len(set(names))
    assert [job.rank for job in wanted] == sorted(job.rank for job in wanted)
    assert names[0] == "memory bandwidth"
    assert names[1].startswith("product 8192³ bf16")
    of_8b = max(
        place
        for place, name in enumerate(names)
        if "llama-3.1-8b" in name and "between" not in name
    )
    assert of_8b < min(place for place, name in enumerate(names) if "between" in name)


def test_an_engines_kernels_come_after_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They can end the process."""
    monkeypatch.setattr(engine_kernels, "installed", lambda: True)
    names = [job.name for job in session.jobs() if not job.name.endswith("between")]
    assert [name.startswith("engine's") for name in names] == sorted(
        name.startswith("engine's") for name in names
    )
    assert names[-1].startswith("engine's")


def test_without_torch_or_gpu_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="torch is missing"):
        session.run(tmp_path / "gpu.json")
    with pytest.raises(InputError, match="above 0"):
        session.run(tmp_path / "gpu.json", 0.0)
    assert not list(tmp_path.iterdir())


def test_every_operator_is_right_and_timed_on_a_processor(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    done = run("-m", "gpubench", str(out), "--device", "cpu", "--budget", "200")
    assert done.returncode == 0, done.stderr
    bench = read(out)
    assert bench.complete, done.stderr
    assert bench.skipped == []
    assert {point.operator for point in bench.points} == {
        "copy", "read", "launch", "product", "experts", "attention_decode", "attention_prefill", "norm", "silu_mul",
        "rotary", "kv_write", "quantise", "layer",
    }  # fmt: skip
    assert {point.dtype for point in bench.of("product")} == {"bf16", "fp8", "fp8-rows"}
    assert {(p.shape["new"], p.shape["cached"]) for p in bench.of("attention_prefill")} == {
        (16, 0),
        (8, 24),
    }
    # Every result but launches was compared with float64.
    assert [point.operator for point in bench.points if point.error is None] == ["launch"]
    product = bench.of("product", "bf16")[0]
    assert product.flops == 2 * 64 * 96
    assert product.bytes == 2 * (64 * 96 + 64 + 96)
    rates = best(bench)
    assert rates["bf16_flops_per_s"] == max(
        point.flops / point.median_s for point in bench.of("product", "bf16")
    )
    assert "bf16_sustained_flops_per_s" not in rates
    assert all(f"{name} " in done.stderr for name in rates)


def test_a_spent_budget_keeps_what_there_is_and_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json"
    done = run("-m", "gpubench", str(out), "--device", "cpu", "--budget", "1e-9")
    assert done.returncode == 0, done.stderr
    bench = read(out)
    assert not bench.complete
    assert bench.points == []
    assert {"memory bandwidth", "launch floors"} <= {each.what for each in bench.skipped}
    assert all("budget" in each.why for each in bench.skipped)


def test_without_a_gpu_there_is_one_line(tmp_path: Path) -> None:
    done = run("-m", "gpubench", str(tmp_path / "gpu.json"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "torch sees no GPU" in done.stderr


def test_paged_attention_and_block_sums_are_right_by_tritons_interpreter() -> None:
    done = run(str(TESTS / "interpreted_kernels.py"), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout.splitlines()[-1])
    assert len(errors) == 6
    assert all(error < 1e-5 for error in errors.values()), errors


def test_the_code_for_gpus_runs_with_a_stand_in_for_cuda() -> None:
    done = run(str(TESTS / "fake_cuda.py"), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    kinds = {(operator, kernel, method) for operator, kernel, method, _, _ in found["points"]}
    assert kinds >= {
        ("read", "triton", "graph"), ("launch", "torch", "host"), ("graph_launch", "torch", "host"),
        ("product", "cublas", "graph"), ("product", "scaled_mm", "graph"), ("attention_prefill", "flash", "graph"),
        ("attention_decode", "flash", "graph"), ("layer", "torch", "graph"), ("layer", "torch", "host"),
        ("attention_decode", "flash3", "graph"), ("attention_prefill", "flash3", "graph"),
        ("product", "cutlass", "graph"),
        ("sustained_product", "cublas", "graph"), ("experts", "torch", "graph"), ("uncapturable", "torch", "eager"),
    }  # fmt: skip
    # A processor has no cuDNN, and Triton's interpreter no products of bf16: told, and the rest
    # went on.
    skipped = [what for what, _ in found["skipped"]]
    assert [what.split()[2] for what in skipped if what.startswith("attention")] == [
        "cudnn",
        "paged",
    ]
    assert sum("not enough free memory" in why for _, why in found["skipped"]) == 3
    # The GPU's word while it ran, but where the host alone was timed.
    assert {(method == "host", clock) for _, _, method, _, clock in found["points"]} == {
        (True, None),
        (False, 1755.0),
    }
    assert found["moments"][:2] == ["before", "sustained product: before"]
    assert found["device"] == ["NVIDIA H100 80GB HBM3", "580.159.04", 700.0]
    for _, _, method, calls, _ in found["points"]:
        assert 1 <= calls <= 1000, method


def test_a_kernel_that_is_wrong_is_not_timed() -> None:
    done = run("-c", WRONG)
    assert done.returncode == 0, done.stderr
    points, skipped = json.loads(done.stdout.splitlines()[-1])
    assert points == ["right"]
    assert [what.split()[0] for what, _ in skipped] == ["wrong", "nan", "breaks"]
    assert "wrong result" in skipped[0][1]
    assert "wrong result" in skipped[1][1]
    assert "no such kernel" in skipped[2][1]


WRONG = """
import json, math
from gpubench.lab import describe_device
from gpubench.lab import Lab, Operation
from gpubench.points import Bench
bench = Bench(created="", loadstone="", device=describe_device("cpu", None), budget_s=60)
lab = Lab(bench, "cpu", 60, spend_s=0.01)
def breaks(_):
    raise RuntimeError("no such kernel")
lab.measure(Operation("right", {}), "torch", lambda _: None, error=lambda: 1e-3)
lab.measure(Operation("wrong", {}), "torch", lambda _: None, error=lambda: 0.5)
lab.measure(Operation("nan", {}), "torch", lambda _: None, error=lambda: math.nan)
lab.measure(Operation("breaks", {}), "torch", breaks)
print(json.dumps([[p.operator for p in bench.points], [[s.what, s.why] for s in bench.skipped]]))
"""
