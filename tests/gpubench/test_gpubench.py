"""A GPU's benchmark without a GPU: its file, its shapes, its order, and what is fitted to points of known origin."""

import math
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpubench_points import DECODE_FLOOR_S, H100, PRODUCT_FLOOR_S, TRUE, device, made, point
from loadstone import catalogue
from loadstone.core.errors import InputError
from loadstone.predict.calibrate.gpu import TRANSFER, fit, gpu_of, updated
from loadstone.predict.gpubench import engine_kernels, session, shapes
from loadstone.predict.gpubench.points import Bench, fastest, load, save
from loadstone.predict.step_time.coefficients import INDEX, PRIOR, SPREAD
from loadstone.predict.step_time.profile import load as load_profile
from loadstone.predict.step_time.profile import prior_profile
from loadstone.runs.calibrate_gpu import best, calibrate, document, lines

# --- the fit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_fit_finds_the_coefficients_that_the_points_were_made_with(seed: int) -> None:
    fitted = fit(made(noise=0.02, seed=seed))
    assert set(fitted.estimates) == set(TRUE) == set(TRANSFER)
    for name, estimate in fitted.estimates.items():
        off = abs(math.log(estimate.value / TRUE[name]))
        assert off < max(4 * estimate.spread, 0.02), name
        assert 0 < estimate.spread < 0.3, name
    assert fitted.estimates["gemm_memory_bf16"].scatter == pytest.approx(0.02, rel=0.6)
    assert fitted.floors_s["product_bf16"] == pytest.approx(PRODUCT_FLOOR_S, rel=0.3)
    assert fitted.floors_s["attention_decode"] == pytest.approx(DECODE_FLOOR_S, rel=0.3)


def test_outliers_do_not_move_it() -> None:
    bench = made(noise=0.01)
    spoilt = [
        msgspec.structs.replace(each, median_s=each.median_s * (3.0 if number % 10 == 0 else 1.0))
        for number, each in enumerate(bench.points)
    ]
    fitted = fit(msgspec.structs.replace(bench, points=spoilt))
    for name in ("gemm_compute_bf16", "gemm_memory_bf16"):
        assert fitted.estimates[name].value == pytest.approx(TRUE[name], rel=0.04)


def test_what_waited_for_the_host_is_not_fitted() -> None:
    bench = made()
    slow = [msgspec.structs.replace(each, method="eager", median_s=each.median_s + 20e-6) for each in bench.points]
    assert fit(msgspec.structs.replace(bench, points=bench.points + slow)) == fit(bench)


def test_more_noise_means_more_spread() -> None:
    quiet, loud = fit(made(noise=0.01)), fit(made(noise=0.1))
    for name in ("gemm_compute_bf16", "gemm_memory_bf16", "attention_prefill"):
        assert loud.estimates[name].spread > 2 * quiet.estimates[name].spread


def test_what_the_points_do_not_tell_is_left_out() -> None:
    """With one token alone nothing is bound by arithmetic."""
    fitted = fit(made(tokens=(1,)))
    assert "gemm_memory_bf16" in fitted.estimates
    assert "gemm_compute_bf16" not in fitted.estimates
    bare = made()
    bare.points = bare.of("copy")
    with pytest.raises(InputError, match="too few points"):
        fit(bare)


def test_a_layer_that_is_lost_in_its_products_gives_no_floor() -> None:
    bench = made()
    bench.points = [
        msgspec.structs.replace(each, median_s=each.median_s / 2) if each.operator == "layer" else each
        for each in bench.points
    ]
    assert "layer_s" not in fit(bench).estimates


def test_a_profile_moves_towards_what_was_measured_and_becomes_surer() -> None:
    family = PRIOR.copy()
    family[INDEX["gemm_memory_bf16"]] += 0.1
    before = msgspec.structs.replace(prior_profile(), held_out={"llama": tuple(family.tolist())})
    fitted = fit(made())
    after = updated(before, fitted, "mine", "2026-01-01")
    used = set(fitted.estimates) & set(INDEX)
    assert used >= {name for name in TRANSFER if not name.endswith("_s")}
    for name in used:
        estimate, at = fitted.estimates[name], INDEX[name]
        # With a diagonal covariance: the mean of both, weighted by their precisions.
        noise = estimate.spread**2 + TRANSFER[name] ** 2
        weight = SPREAD[at] ** 2 / (SPREAD[at] ** 2 + noise)
        assert after.logarithms[at] == pytest.approx(PRIOR[at] + weight * (math.log(estimate.value) - PRIOR[at]))
        assert after.covariance[at][at] == pytest.approx(SPREAD[at] ** 2 * (1 - weight))
        gap = family[at] - PRIOR[at]
        assert after.held_out["llama"][at] - after.logarithms[at] == pytest.approx(gap * (1 - weight))
    untouched = INDEX["collective_s"]
    assert after.logarithms[untouched] == pytest.approx(PRIOR[untouched])
    assert np.linalg.eigvalsh(np.array(after.covariance)).min() > 0
    assert after.name == "mine"
    assert "measured on NVIDIA H100" in after.provenance.note


def test_what_correlates_with_it_moves_too() -> None:
    covariance = np.diag(SPREAD**2)
    one, other = INDEX["gemm_memory_bf16"], INDEX["expert_memory"]
    covariance[one, other] = covariance[other, one] = 0.9 * SPREAD[one] * SPREAD[other]
    before = msgspec.structs.replace(prior_profile(), covariance=tuple(map(tuple, covariance.tolist())))
    after = updated(before, fit(made()), "mine", "2026-01-01")
    assert after.logarithms[one] > PRIOR[one]
    assert after.logarithms[other] > PRIOR[other]


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"), ("NVIDIA B200", "b200"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"), ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA L4", "l4"),
        ("Tesla T4", "t4"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"), ("NVIDIA H20-3e", "h20-141gb"),
        ("NVIDIA H20", "h20"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("NVIDIA A10 PCIe", "a10"),
    ],
)  # fmt: skip
def test_a_drivers_name_means_a_catalogued_gpu(name: str, gpu: str) -> None:
    assert gpu_of(name) == catalogue.gpu(gpu)


@pytest.mark.parametrize(
    "name",
    [
        "Tesla",
        "",
        "llvmpipe",
        "NVIDIA X999",
        "NVIDIA H20 NVL",
        "NVIDIA H800 PCIe",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    ],
)
def test_an_unknown_gpu_is_one_line(name: str) -> None:
    with pytest.raises(InputError) as raised:
        gpu_of(name)
    assert "\n" not in str(raised.value)


# --- the file -----------------------------------------------------------------------------------------------------


def test_a_benchmark_is_read_as_it_was_written(tmp_path: Path) -> None:
    bench = made()
    save(bench, tmp_path / "gpu.json")
    assert load(tmp_path / "gpu.json") == bench
    assert [path.name for path in tmp_path.iterdir()] == ["gpu.json"]


def broken(**changed: object) -> bytes:
    document = msgspec.to_builtins(made())
    document["points"] = [document["points"][0] | changed]
    return msgspec.json.encode(document)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a GPU benchmark"),
        (b"[]", "not a GPU benchmark"),
        (b"[" * 100_000, "not a GPU benchmark"),
        (broken(median_s=-1.0), "impossible"),
        (broken(median_s=0.0), "impossible"),
        (broken(flops=-5.0), "impossible"),
        (broken(bytes=1e31), "impossible"),
        (broken(shape={"tokens": -1}), "impossible"),
        (broken(p10_s=1.0, p90_s=0.5), "contradicts"),
        (broken(n=0), "contradicts"),
        (broken(median_s="1"), "not a GPU benchmark"),
        (broken(more=1), "not a GPU benchmark"),
        (msgspec.json.encode(msgspec.to_builtins(made()) | {"schema": 2}), "schema 2"),
    ],
)
def test_another_file_is_one_line(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "gpu.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="calibrate --gpu"):
        load(tmp_path / "gpu.json")


def test_the_fastest_kernel_of_each_shape() -> None:
    a, b = {"tokens": 1}, {"tokens": 2}
    points = [
        point("x", a, 2.0, kernel="slow"), point("x", a, 1.0, kernel="quick"), point("x", b, 3.0),
        point("x", a, 5.0, method="host"), point("x", a, 9.0, dtype="fp8"),
    ]  # fmt: skip
    assert [each.median_s for each in fastest(points)] == [1.0, 3.0, 5.0, 9.0]


def test_what_is_told_of_it() -> None:
    bench = made()
    assert best(bench)["copy_bytes_per_s"] == pytest.approx(3.0e12)
    fitted = fit(bench)
    told = "\n".join(lines(bench, H100, fitted))
    assert "NVIDIA H100 80GB HBM3" in told
    assert "90% of the data sheet" in told
    assert "gemm_compute_bf16" in told
    shown = document(bench, fitted, "gpu.json")
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
    assert shown["points"] == len(bench.points)


# --- what is measured ---------------------------------------------------------------------------------------------


def test_products_are_joined_as_engines_join_them() -> None:
    model = catalogue.model("llama-3.1-8b")
    whole = {(each.inputs, each.outputs) for each in shapes.products(model, 1)}
    assert whole == {(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256)}
    halves = {(each.inputs, each.outputs) for each in shapes.products(model, 2)}
    assert halves == {(4096, 3072), (2048, 4096), (4096, 14336), (7168, 4096), (4096, 64128)}
    # Sixteen ranks share eight KV heads: each keeps a whole one.
    assert (4096, 4096 // 16 + 2 * 128) in {(each.inputs, each.outputs) for each in shapes.products(model, 16)}
    assert shapes.heads(model, 4) == [shapes.Heads(8, 2, 128)]
    assert shapes.dense_layer(model) == (shapes.Heads(32, 8, 128), 14336)


def test_the_order_is_by_what_matters_most() -> None:
    wanted = session.jobs()
    names = [job.name for job in wanted]
    assert len(names) == len(set(names))
    assert [job.rank for job in wanted] == sorted(job.rank for job in wanted)
    assert names[0] == "memory bandwidth"
    assert names[1].startswith("product 8192³ bf16")
    of_8b = max(place for place, name in enumerate(names) if "llama-3.1-8b" in name and "between" not in name)
    assert of_8b < min(place for place, name in enumerate(names) if "between" in name)


def test_an_engines_kernels_come_after_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They can end the process."""
    monkeypatch.setattr(engine_kernels, "installed", lambda: True)
    names = [job.name for job in session.jobs() if not job.name.endswith("between")]
    assert [name.startswith("engine's") for name in names] == sorted(name.startswith("engine's") for name in names)
    assert names[-1].startswith("engine's")


def test_without_torch_or_gpu_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="torch is missing"):
        session.run(tmp_path / "gpu.json")
    with pytest.raises(InputError, match="above 0"):
        session.run(tmp_path / "gpu.json", 0.0)
    assert not list(tmp_path.iterdir())


def test_a_device_is_what_it_says() -> None:
    bench = Bench(created="", loadstone="", device=device(), budget_s=1.0)
    assert (bench.complete, bench.points, bench.of("copy")) == (False, [], [])


# --- into a profile -----------------------------------------------------------------------------------------------


def test_a_file_measured_elsewhere_becomes_a_profile(tmp_path: Path) -> None:
    save(made(), tmp_path / "gpu.json")
    said: list[str] = []
    shown = calibrate(
        tmp_path / "unused.json", say=said.append, name="my-h100", engine="vllm",
        measured=tmp_path / "gpu.json", folder=tmp_path,
    )  # fmt: skip
    profile = load_profile(Path(shown["profile_file"]))
    assert profile.name == "my-h100"
    at = INDEX["gemm_memory_bf16"]
    # What 30 points with 2 % of noise say goes before what a profile of another's engines says.
    assert profile.logarithms[at] == pytest.approx(math.log(TRUE["gemm_memory_bf16"]), abs=0.06)
    assert profile.covariance[at][at] <= (TRANSFER["gemm_memory_bf16"] * 1.2) ** 2
    assert shown["fit"]["gpu"] == "h100"
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
    assert any("gemm_memory_bf16" in line for line in said)
    assert not (tmp_path / "unused.json").exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_a_profiles_name_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="--profile"):
        calibrate(tmp_path / "gpu.json", name=name)
