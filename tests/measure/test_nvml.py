"""GPUs as NVML tells of them: a provider of made-up answers in the place of hardware."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import loadstone
from conftest import FAST, eventually
from fake_nvml import FakeNvml, h100
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import reasons_in
from loadstone.measure.engines.observe import GPUS, Observer
from loadstone.measure.nvml import Gpus
from loadstone.measure.simulated_server import start


def test_what_a_gpu_says_in_our_units() -> None:
    nvml = FakeNvml(h100())
    with Gpus(nvml) as gpus:
        values = {each.name: each.value for each in gpus.read()}
        (described,) = gpus.describe()
        assert gpus.driver == "580.159.04"
    assert values == pytest.approx(
        {
            "nvml:power_w": 512.345,
            "nvml:energy_j_total": 9e6,
            "nvml:sm_clock_mhz": 1755,
            "nvml:memory_clock_mhz": 2619,
            "nvml:memory_used_bytes": 7e10,
            "nvml:temperature_c": 54,
            "nvml:busy_share": 0.97,
            "nvml:clock_reasons": 4,
        }
    )
    assert described == (
        0, "NVIDIA H100 80GB HBM3", "GPU-11111111-2222-3333-4444-555555555555", 85_520_809_984, 700.0, 1980.0,
    )  # fmt: skip
    assert nvml.open == 0


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    """A virtual GPU; and a package so old that it calls throttle reasons by that name, and names
    are bytes."""
    old = FakeNvml(
        {"Name": b"GRID\nA100", "PowerUsage": None, "CurrentClocksThrottleReasons": 0x28}
    )
    old.nvmlDeviceGetCurrentClocksEventReasons = None  # type: ignore[attr-defined]
    with Gpus(old) as gpus:
        assert [tuple(each) for each in gpus.read()] == [("nvml:clock_reasons", 0, 40.0)]
        (described,) = gpus.describe()
    assert described == (0, "GRID A100", "", None, None, None)
    assert reasons_in(40.0) == ["hardware_slowdown", "thermal"]
    assert reasons_in(0.0) == []


@pytest.mark.parametrize(
    ("nvml", "said"),
    [
        (FakeNvml(h100(), init=False), "no NVIDIA driver answers (Driver Not Loaded)"),
        (FakeNvml(), "shows no GPU"),
    ],
)
def test_without_a_gpu_there_is_one_line(nvml: FakeNvml, said: str) -> None:
    with pytest.raises(InputError) as raised:
        Gpus(nvml)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert nvml.open == 0


def test_without_the_package_the_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InputError, match="pip install nvidia-ml-py"):
        Gpus()


# --- beside a run ---------------------------------------------------------------------------------


def test_gpus_are_watched_on_the_runs_clock(tmp_path: Path) -> None:
    power = [100_000, 200_000, 300_000]
    nvml = FakeNvml(h100(PowerUsage=power), h100(PowerUsage=50_000))
    origin_ns = time.monotonic_ns()
    with (
        Gpus(nvml) as gpus,
        Observer(tmp_path, [None], origin_ns, interval_s=0.01, gpus=gpus) as observer,
    ):
        assert eventually(lambda: len(power) == 1)
    assert observer.notes == []
    table = run_folder.read_server(tmp_path)
    assert table is not None
    rows = [row for row in table.to_pylist() if row["name"] == "nvml:power_w"]
    assert {row["replica"] for row in rows} == {GPUS}
    first = [row["value"] for row in rows if row["labels"] == '{"gpu":"0"}']
    assert first[:3] == [100.0, 200.0, 300.0]
    assert {row["value"] for row in rows if row["labels"] == '{"gpu":"1"}'} == {50.0}
    times = [row["time_s"] for row in rows]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] < (time.monotonic_ns() - origin_ns) * 1e-9


def test_a_gpu_that_falls_off_the_bus_ends_the_watching_not_the_run(tmp_path: Path) -> None:
    class Broken(Gpus):
        def read(self, only: int | None = None) -> list:  # type: ignore[type-arg]
            raise OSError("lost")

    with (
        Broken(FakeNvml(h100())) as gpus,
        Observer(tmp_path, [], time.monotonic_ns(), gpus=gpus) as observer,
    ):
        assert eventually(lambda: observer.notes)
    assert observer.notes == ["GPUs: no longer read (OSError)"]
    assert run_folder.read_server(tmp_path) is None


def test_answers_of_odd_types_are_no_values() -> None:
    odd = h100(PowerUsage="much", MemoryInfo=SimpleNamespace(used=None), UtilizationRates=None)
    with Gpus(FakeNvml(odd)) as gpus:
        names = {each.name for each in gpus.read()}
    assert not names & {"nvml:power_w", "nvml:memory_used_bytes", "nvml:busy_share"}


def bench(tmp_path: Path, **options: Any) -> dict[str, Any]:
    with start(FAST) as server:
        return loadstone.bench(
            server.url,
            input="8",
            output="4",
            concurrency=[2],
            warmup=0,
            out=tmp_path,
            **({"requests": [8]} | options),
        ).document()


@pytest.mark.process
def test_a_run_beside_its_server_tells_of_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being asked: the server is on this machine, and a driver answers."""
    nvml = FakeNvml(h100(CurrentClocksEventReasons=0x40))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    document = bench(tmp_path, requests=[260])  # two seconds and more: two readings
    (cell,) = document["cells"]
    info = run_folder.read_info(Path(document["run_dir"]))
    assert [each["name"] for each in info.settings.gpus] == ["NVIDIA H100 80GB HBM3"]
    assert info.settings.gpus[0]["driver"] == "580.159.04"
    assert cell["gpu"]["throttled"] == {"hardware_thermal": 1.0}
    assert cell["gpu"]["power_w"]["max"] == pytest.approx(512.345)
    assert [
        each["severity"] for each in cell["verdict"]["findings"] if each["kind"] == "gpu_throttled"
    ] == ["warning"]
    assert not cell["verdict"]["trusted"]
    assert nvml.open == 0


@pytest.mark.process
def test_no_telemetry_where_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(h100()))  # type: ignore[arg-type]
    document = bench(tmp_path, gpu_telemetry=False)
    assert "gpu" not in document["cells"][0]


@pytest.mark.process
def test_telemetry_that_is_wanted_and_cannot_be_had_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init=False))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no NVIDIA driver"):
        bench(tmp_path, gpu_telemetry=True)
    assert not list(tmp_path.iterdir())
    assert "gpu" not in bench(tmp_path)["cells"][0]
