"""What exporters say of GPUs, in their own words: read, joined, made into energy; and beside a
run."""

import csv
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import loadstone
from conftest import FAST, eventually
from loadstone.analyse.server_figures import gpu_figures
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.gpu_metrics import GPUS, POOLS, Readings, find_meaning, select_gpu_labels
from loadstone.core.machine_figures import GpuFigures
from loadstone.core.summary import Summary
from loadstone.core.units import show_number
from loadstone.core.verdict import Finding
from loadstone.measure.engines.observe import (
    GPU_SERIES,
    Observer,
    exporter,
    read_gpu_metrics,
    read_metrics,
)
from loadstone.measure.simulated_server import start
from loadstone.report.pages import terminal
from test_observe import serving
from test_verdict_server import Said, said, table
from verdict_cells import found, rows

DCGM = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",pci_bus_id="00000000:31:00.0",device="nvidia0",modelName="NVIDIA L4",\
Hostname="node",pod="chat-7d9",namespace="team-x",DCGM_FI_DRIVER_VERSION="580.105.08"} 1755
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA L4",Hostname="node"} 71.365000
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA L4",Hostname="node"} 30
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="node"} 4742776
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA L4",Hostname="node"} 20480
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA L4",Hostname="node"} 97
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA L4",Hostname="node",err_code="0"} 0
this is no line of metrics {
"""


def of(text: str) -> dict[str, dict[str, float]]:
    """The last value of each GPU that a page tells of, in our names and units."""
    rows = [
        (0.0, GPUS, name, msgspec.json.decode(labels), value)
        for name, labels, value in read_gpu_metrics(text)
    ]
    return {
        name: {gpu: series.value[-1] for gpu, series in by_gpu.items()}
        for name, by_gpu in Readings(table(rows)).series.items()
    }


def test_a_page_of_dcgms_exporter() -> None:
    assert of(DCGM) == {
        "sm_clock_mhz": {"GPU-a": 1755.0},
        "power_w": {"GPU-a": pytest.approx(71.365), "GPU-b": 30.0},
        "energy_j_total": {"GPU-a": pytest.approx(4742.776)},
        "memory_used_bytes": {"GPU-a": 20 * 2.0**30},
        "busy_share": {"GPU-a": pytest.approx(0.97)},
    }
    # Whose pods run there is nobody's business.
    assert not any(
        "chat-7d9" in sample.labels or "team-x" in sample.labels
        for sample in read_gpu_metrics(DCGM)
    )


def test_what_dcgm_does_not_know_is_no_value() -> None:
    """It has numbers for that: DCGM_INT64_NOT_SUPPORTED, DCGM_FP64_BLANK, DCGM_INT32_NOT_FOUND."""
    blanks = (
        ("DCGM_FI_DEV_GPU_TEMP", 9223372036854775794),
        ("DCGM_FI_DEV_POWER_USAGE", 140737488355328.0),
    )
    page = "".join(
        f'{name}{{gpu="0"}} {value}\n'
        for name, value in (*blanks, ("DCGM_FI_DEV_SM_CLOCK", 2147483633))
    )
    assert len(read_gpu_metrics(page)) == 3
    assert of(page) == {}


def test_amds_exporter_says_it_three_ways() -> None:
    """In capitals, with `amd_` before it, or plain; partitions of a GPU have no meter, memory has
    its clock."""
    labels = 'gpu_id="0",card_model="AMD Instinct MI300X",serial_number="SN-0",hostname="node"'
    page = f"""\
gpu_package_power{{{labels},partition_id="0"}} 748
gpu_package_power{{{labels},partition_id="1"}} 0
amd_gpu_used_vram{{{labels}}} 1024
GPU_GFX_ACTIVITY{{{labels}}} 50
gpu_energy_consumed{{{labels}}} 5000000
gpu_clock{{{labels},clock_type="GPU_CLOCK_TYPE_SYSTEM",clock_index="0"}} 1533
gpu_clock{{{labels},clock_type="GPU_CLOCK_TYPE_MEMORY",clock_index="8"}} 2292
"""
    assert of(page) == {
        "power_w": {"SN-0": 748.0},
        "memory_used_bytes": {"SN-0": 2.0**30},
        "busy_share": {"SN-0": 0.5},
        "energy_j_total": {"SN-0": 5.0},
        "sm_clock_mhz": {"SN-0": 1533.0},
    }


def test_other_exporters() -> None:
    page = 'nvidia_smi_power_draw_watts{uuid="a"} 300\nnvidia_smi_clocks_current_sm_clock_hz{uuid="a"} 1.98e9\n'
    assert of(page) == {"power_w": {"a": 300.0}, "sm_clock_mhz": {"a": 1980.0}}
    assert of(
        'nv_gpu_power_usage{gpu_uuid="GPU-a"} 43.5\nnv_energy_consumption{gpu_uuid="GPU-a"} 150\n'
    ) == {
        "power_w": {"GPU-a": 43.5},
        "energy_j_total": {"GPU-a": 150.0},
    }
    assert of('vllm:num_requests_running{engine="0"} 3\npower 7\n') == {}
    assert find_meaning("DCGM_FI_DEV_POWER_USAGE_OF_SOMETHING") is None


def test_gpus_of_two_machines_are_four() -> None:
    """Where nothing but a number names them, its machine does too."""
    page = "".join(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{n}",Hostname="{h}"}} 100\n' for n in "01" for h in "ab"
    )
    assert set(of(page)["power_w"]) == {"a 0", "a 1", "b 0", "b 1"}


def test_a_page_without_end_is_cut() -> None:
    page = "".join(f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-{n}"}} 1\n' for n in range(3 * GPU_SERIES))
    assert len(read_gpu_metrics(page)) == GPU_SERIES
    assert read_gpu_metrics('DCGM_FI_DEV_POWER_USAGE{UUID="' + "x" * 5000 + '"} 1\n') == []
    assert read_gpu_metrics('DCGM_FI_DEV_POWER_USAGE{UUID="' + "x" * 600 + '"} 1\n') == []
    assert select_gpu_labels([("clock_type", "GPU_CLOCK_TYPE_VIDEO")]) is None


# --- energy ---------------------------------------------------------------------------------------


def gpu(name: str, values: list[float], *, uuid: str = "a", start_s: float = 0.0) -> list[Said]:
    return said(f"DCGM_FI_DEV_{name}", values, replica=GPUS, start_s=start_s, UUID=uuid)


def readings(*series: list[Said]) -> Readings:
    return Readings(table([each for one in series for each in one]))


def held(values: list[float], many: int) -> list[float]:
    """Each repeated, as by an exporter that collects more seldom than it is asked."""
    return [value for value in values for _ in range(many)]


def test_energy_is_what_the_counters_gained() -> None:
    """300 W, then 500 W, by a counter in millijoules; of the second GPU 100 W all along."""
    counter = np.cumsum([0.0, *[300e3] * 10, *[500e3] * 10]).tolist()
    found = readings(gpu("TOTAL_ENERGY_CONSUMPTION", counter))
    assert found.sum_energy_j(0, 20) == pytest.approx(8000)
    assert found.sum_energy_j(5, 15) == pytest.approx(4000)
    assert found.sum_energy_j(8.5, 12.5) == pytest.approx(1.5 * 300 + 2.5 * 500)
    second = gpu("TOTAL_ENERGY_CONSUMPTION", [k * 100e3 for k in range(21)], uuid="b")
    both = readings(gpu("TOTAL_ENERGY_CONSUMPTION", counter), second)
    assert both.sum_energy_j(0, 20) == pytest.approx(10_000)
    # A twentieth that nobody read is taken to be like the rest; a quarter is not.
    assert found.sum_energy_j(0, 21) == pytest.approx(8000 * 21 / 20)
    assert found.sum_energy_j(0, 26) is None


def test_an_exporter_that_collects_seldom_tells_no_short_loads_energy() -> None:
    """DCGM's default: every 30 s, asked every second. 200 W in the first two minutes, 600 W in the
    next."""
    counter = np.cumsum([0.0, *[200e3 * 30] * 4, *[600e3 * 30] * 4]).tolist()
    found = readings(gpu("TOTAL_ENERGY_CONSUMPTION", held(counter, 30)))
    assert found.sum_energy_j(120, 235) == pytest.approx(600 * 115, rel=0.01)
    assert found.sum_energy_j(60, 180) == pytest.approx(200 * 60 + 600 * 60, rel=0.01)
    assert found.sum_energy_j(130, 170) is None  # one new reading


def test_without_a_counter_power_serves() -> None:
    power = [400.0, 500.0, 600.0, 500.0, 500.0]
    assert readings(gpu("POWER_USAGE", power)).sum_energy_j(0, 4) == pytest.approx(500 * 4)
    assert readings(gpu("POWER_USAGE", held([400.0, 500.0], 30))).sum_energy_j(0, 60) is None


def test_a_gap_in_the_readings_leaves_no_energy() -> None:
    """Watts every second, and 4 s of which nobody read any; a counter bridges them."""
    early, late = (gpu("POWER_USAGE", [290.0, 291.0, 292.0, 290.7], start_s=at) for at in (0, 7))
    gapped = readings(early, late)
    assert gapped.sum_energy_j(0, 10) is None
    assert gapped.sum_energy_j(0, 3) is not None
    figures = gpu_figures(gapped, 0, 10)
    assert figures is not None
    assert figures.power_gap_s == 4
    assert list(found(rows(), gpus=figures)) == ["power_gap"]
    counter = gpu("TOTAL_ENERGY_CONSUMPTION", [291e3 * at for at in range(11)])
    assert readings(early, late, counter).sum_energy_j(0, 10) == pytest.approx(2910)


def test_joules_are_of_all_tokens_where_it_says_so() -> None:
    """One A100 at 290.7 W, 830.8 tokens/s of input and output together: 0.350 J; and the GPUs idle
    beside it are in it."""
    power = readings(gpu("POWER_USAGE", [290.6, 290.7, 290.8, 290.7]))
    joules = power.sum_energy_j(0, 3)
    assert joules is not None
    assert joules / (830.8 * 3) == pytest.approx(0.350, abs=5e-4)


def test_a_counter_that_contradicts_the_power_is_not_believed() -> None:
    power = gpu("POWER_USAGE", [500.0, 501.0, 499.0, 500.0])
    assert (
        readings(power, gpu("TOTAL_ENERGY_CONSUMPTION", [0.0, 5e5, 1e6, 1.5e6])).sum_energy_j(0, 3)
        == 1500.0
    )
    wild = gpu("TOTAL_ENERGY_CONSUMPTION", [0.0, 5e8, 1e9, 1.5e9])  # in microjoules, say
    assert readings(power, wild).sum_energy_j(0, 3) == pytest.approx(1500.0)
    reset = gpu("TOTAL_ENERGY_CONSUMPTION", [1e9, 1.0005e9, 10.0, 5e5])
    assert readings(power, reset).sum_energy_j(0, 3) == pytest.approx(1500.0)


def test_one_gpu_that_tells_nothing_leaves_no_sum() -> None:
    known = gpu("TOTAL_ENERGY_CONSUMPTION", [0.0, 5e5, 1e6, 1.5e6])
    assert readings(known, gpu("POWER_USAGE", [70.0], uuid="b")).sum_energy_j(0, 3) is None
    assert readings().sum_energy_j(0, 3) is None


def test_an_exporter_goes_before_this_machines_driver_and_that_before_the_engine() -> None:
    engine = said("nv_gpu_power_usage", [1.0, 2.0], gpu_uuid="GPU-a")
    driver = said("nvml:power_w", [10.0, 20.0], replica=GPUS, gpu="0")
    named = said("DCGM_FI_DEV_POWER_USAGE", [100.0, 200.0], replica=GPUS, UUID="GPU-a")
    for series, most in (
        ([engine], 2.0),
        ([engine, driver], 20.0),
        ([engine, driver, named], 200.0),
    ):
        found = gpu_figures(readings(*series), 10, 12)
        assert found is not None
        assert found.power_w is not None
        assert found.gpus == 1
        assert found.power_w.max == most


def test_two_exporters_are_never_read_at_once() -> None:
    one, two = (
        gpu("POWER_USAGE", [100.0, 200.0, 300.0]),
        gpu("POWER_USAGE", [50.0] * 3, uuid="b", start_s=0.5),
    )
    found = gpu_figures(readings(one, two), 0, 3)
    assert found is not None
    assert found.power_w is not None
    assert found.power_w.max == 350.0
    assert found.power_w.mean == pytest.approx(50 + np.mean([100, 150, 200, 250, 300, 300]))


def read_seldom(figures: GpuFigures | None) -> Finding | None:
    return found(rows(), gpus=figures).get("gpu_read_seldom")


def test_seldom_readings_are_told() -> None:
    figures = gpu_figures(readings(gpu("POWER_USAGE", held([400.0, 500.0], 30))), 0, 60)
    assert figures is not None
    assert figures.energy_j is None
    finding = read_seldom(figures)
    assert finding is not None
    assert finding.severity == "info"
    assert "every 30 s" in finding.evidence
    assert "-c 1000" in finding.remedy
    fresh = gpu_figures(readings(gpu("POWER_USAGE", [1.0, 2.0, 3.0])), 0, 3)
    assert read_seldom(fresh) is None
    assert read_seldom(None) is None
    assert (
        read_seldom(GpuFigures(gpus=1, samples=9, throttled={}, energy_j=5.0, new_every_s=3.0))
        is None
    )


# --- beside a run ---------------------------------------------------------------------------------


def node(heard: list[dict[str, str]] | None = None, times: int = 1) -> AbstractContextManager[str]:
    """An exporter of two GPUs, at 400 and 100 W, or so many `times` it."""
    begun_s = time.monotonic()

    def page(number: int) -> bytes:
        past_s = time.monotonic() - begun_s
        return "".join(
            f'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-{name}"}} {watts + number % 2}\n'
            f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="GPU-{name}"}} {1e9 + watts * past_s * 1e3}\n'
            for name, watts in (("a", 400 * times), ("b", 100 * times))
        ).encode()

    return serving(page, heard=heard)


def bench(tmp_path: Path, **options: Any) -> dict[str, Any]:
    with start(FAST) as server:
        return loadstone.bench(
            server.url, input="8", output="4", concurrency=[2], warmup=0, out=tmp_path, **options
        ).document()


@pytest.mark.process
def test_a_run_tells_what_its_tokens_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's key is not the exporter's."""
    monkeypatch.setenv("LOADSTONE_API_KEY", "sk-secret-of-the-engine")
    heard: list[dict[str, str]] = []
    with node(heard) as url:
        document = bench(
            tmp_path, requests=600, gpu_metrics=url.removesuffix("/metrics").removeprefix("http://")
        )
    (cell,) = document["cells"]
    assert cell["gpu"]["gpus"] == 2
    assert cell["gpu"]["power_w"]["mean"] == pytest.approx(501, abs=1)
    for window in (cell["metrics"], cell["metrics"]["steady"]):
        for kind in ("output", "total"):
            assert window[f"j_per_{kind}_token"] == pytest.approx(
                500 / window[f"{kind}_tokens_per_s"], rel=0.02
            )
    assert run_folder.read_info(Path(document["run_dir"])).settings.gpu_metrics == [url]
    assert heard
    assert not [
        headers for headers in heard if "authorization" in headers or "secret" in str(headers)
    ]


def test_power_of_each_pool_is_of_its_own_exporters() -> None:
    def drawn(watts: float, replica: int) -> list[Said]:
        return said(
            "DCGM_FI_DEV_POWER_USAGE", [watts, watts + 1, watts + 2], replica, 0.0, UUID="GPU-a"
        )

    samples = table(
        [*drawn(100, GPUS), *drawn(200, POOLS["prefill"]), *drawn(300, POOLS["decode"])]
    )
    by_pool = {role: each.sum_energy_j(0, 2) for role, each in Readings.of_pools(samples).items()}
    assert by_pool == {"prefill": 402.0, "decode": 602.0}
    assert Readings.of_pools(table(drawn(100, GPUS))) == {}


@pytest.mark.process
def test_an_exporter_of_one_pool_alone_tells_of_that(tmp_path: Path) -> None:
    where = "llama-3.1-8b@prefill=1xh100/tp1+decode=1xh100/tp1"
    with node() as one, node(times=3) as two:
        document = bench(
            tmp_path, requests=600, gpu_metrics=[one, f"decode={two}"], deployment=where
        )
        with pytest.raises(InputError, match="--gpu-metrics decode=: no pools are declared"):
            bench(tmp_path, requests=4, gpu_metrics=[f"decode={two}"])
    prefill, decode = document["cells"][0]["pools"]
    assert prefill["j_per_token"] is None
    assert decode["j_per_token"] == pytest.approx(1500 / decode["tokens_per_s"], rel=0.02)
    assert run_folder.read_info(Path(document["run_dir"])).settings.gpu_metrics == [
        one,
        f"decode={two}",
    ]
    told = [
        line
        for line in terminal.render(Summary.of(document))
        if isinstance(line, str) and "J a token" in line
    ]
    assert [line.count("J a token") for line in told] == [1]


@pytest.mark.process
def test_tables_reports_and_comparisons_tell_of_it(tmp_path: Path) -> None:
    documents = []
    for times in (1, 3):
        with node(times=times) as url:
            documents.append(
                bench(tmp_path, requests=600, gpu_metrics=[url], label=f"{500 * times} W")
            )
    lines = terminal.render(Summary.of(documents[1]))[2:]
    (said,) = [line for line in lines if isinstance(line, str) and " W" in line]
    joules = [
        cell["metrics"]["steady"]["j_per_output_token"]
        for each in documents
        for cell in each["cells"]
    ]
    (total,) = (cell["metrics"]["steady"]["j_per_total_token"] for cell in documents[1]["cells"])
    spent = f"{show_number(joules[1])} J per output token · {show_number(total)} J per total token"
    assert said == f"2 GPUs drew {show_number(1501)} W · {spent}"

    one, two = (Path(document["run_dir"]) for document in documents)
    (cell,) = loadstone.compare(one, two).document()["cells"]
    (row,) = [row for row in cell["metrics"] if row["metric"] == "j_per_output_token"]
    assert (row["a"], row["b"]) == (joules[0], joules[1])
    assert row["ratio"] == pytest.approx(joules[1] / joules[0])
    (rate,) = [row for row in cell["metrics"] if row["metric"] == "output_tokens_per_s"]
    # A busy machine may leave throughput without an interval, and so the joules that follow from it.
    assert (row["low"] is None) == (rate["low"] is None)
    assert row["low"] is None or row["low"] < row["ratio"] < row["high"]
    assert row["p"] is None
    assert row["conclusion"] is None

    loadstone.write_report(tmp_path, tmp_path / "cells.csv")
    rows = list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))
    assert [float(each["j_per_output_token"]) for each in rows] == pytest.approx(joules)
    assert all(
        float(each["j_per_output_token_low"]) < joule < float(each["j_per_output_token_high"])
        for each, joule in zip(rows, joules, strict=True)
        if each["output_tokens_per_s_low"]
    )
    assert float(rows[1]["j_per_total_token"]) == pytest.approx(total)
    assert [float(each["gpu_power_w"]) for each in rows] == pytest.approx([501, 1501], abs=1)


@pytest.mark.process
def test_without_an_exporter_there_is_no_energy(tmp_path: Path) -> None:
    (cell,) = bench(tmp_path, requests=4)["cells"]
    assert "gpu" not in cell
    assert "j_per_output_token" not in cell["metrics"]


def test_an_exporter_that_stops_ends_nothing(tmp_path: Path) -> None:
    with node() as url:
        page = exporter(url)
    with Observer(tmp_path, [], time.monotonic_ns(), interval_s=0.01, exporters=[page]) as observer:
        assert eventually(lambda: observer.notes)
    assert observer.notes == [
        f"{url}: no answer (ConnectError); its metrics of GPUs are missing meanwhile"
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("127.0.0.1:1", "no answer (ConnectError); name one that runs"),
        ("user:hunter2@node:9400", "without a name or password"),
        ("ftp://node:9400", "this URL cannot be used"),
        ("node:port", "this URL cannot be used"),
    ],
)
@pytest.mark.parametrize("named", ["gpu_metrics", "worker_metrics"])
def test_a_page_that_cannot_be_is_one_line(
    tmp_path: Path, asked: str, said: str, named: str
) -> None:
    with pytest.raises(InputError) as raised:
        bench(tmp_path, requests=4, **{named: [asked]})
    assert str(raised.value).startswith(f"--{named.replace('_', '-')}")
    assert said in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_an_engines_page_is_no_exporter(tmp_path: Path) -> None:
    with (
        serving(lambda _: b"vllm:num_requests_running 3\n") as url,
        pytest.raises(InputError, match="no known GPU metrics there; name DCGM's"),
    ):
        bench(tmp_path, requests=4, gpu_metrics=url)


@pytest.mark.process
def test_a_routers_page_is_no_workers(tmp_path: Path) -> None:
    with (
        serving(
            lambda _: (
                b"# TYPE vllm_router_pd_requests_total counter\nvllm_router_pd_requests_total 2\n"
            )
        ) as url,
        pytest.raises(InputError, match="no engine's metrics there; name workers, not the router"),
    ):
        bench(tmp_path, requests=4, worker_metrics=url)


@pytest.mark.process
def test_workers_behind_a_router_are_read_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has counters of its own, of which nothing is said then; the workers get its
    key."""
    monkeypatch.setenv("LOADSTONE_API_KEY", "sk-secret")
    counter = "vllm:prompt_tokens_by_source_total"
    heard: list[dict[str, str]] = []

    def page(number: int) -> bytes:
        return f'# TYPE {counter} counter\n{counter}{{source="external_kv_transfer"}} {100 * number}\n'.encode()

    with serving(page, heard=heard) as one, serving(page) as two:
        document = bench(tmp_path, requests=100, worker_metrics=[one.removesuffix("/metrics"), two])
    (cell,) = document["cells"]
    assert cell["server"]["transferred_tokens"] >= 200
    assert "write_late_s" not in cell["server"]
    assert run_folder.read_info(Path(document["run_dir"])).settings.worker_metrics == [one, two]
    assert all(headers["authorization"] == "Bearer sk-secret" for headers in heard)


def test_tritons_own_page_tells_of_gpus_too() -> None:
    samples = read_metrics(
        '# TYPE nv_gpu_power_usage gauge\nnv_gpu_power_usage{gpu_uuid="GPU-a"} 43.5\n'
    )
    rows = [(0.0, 0, each.name, msgspec.json.decode(each.labels), each.value) for each in samples]
    assert Readings(table(rows)).select("power_w", 0, 1)[0].series.value.tolist() == [43.5]
