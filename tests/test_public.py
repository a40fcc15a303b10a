import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import loadstone
import preloaded
from loadstone.commands.bench import bench as bench_command
from loadstone.core import errors, run_folder, signals
from loadstone.core.errors import InputError
from loadstone.core.host import make_path
from loadstone.runs import bench
from loadstone.workload.option_fields import flags_of, json_schema
from loadstone.workload.options import Options, SimulateOptions
from loadstone.workload.request import Timeouts
from summary_documents import summarise
from test_summary import CLOSED, make_run


class Column:
    """As pandas shows one."""

    def __repr__(self) -> str:
        return "0    1\n1    2"


def test_the_public_names() -> None:
    assert loadstone.__all__ == [
        *(
            "InputError",
            "Interrupted",
            "LoadstoneError",
            "Run",
            "__version__",
            "bench",
            "calibrate_profile",
        ),
        *(
            "compare",
            "export_run",
            "import_files",
            "open_run",
            "query_runs",
            "recommend",
            "recover",
            "simulate",
            "size",
            "tune",
        ),
        *("validate_points", "write_report"),
    ]
    assert all(hasattr(loadstone, name) for name in loadstone.__all__)
    assert (loadstone.InputError, loadstone.LoadstoneError) == (
        errors.InputError,
        errors.LoadstoneError,
    )
    assert loadstone.Interrupted is signals.Interrupted
    assert not hasattr(loadstone, "InputErrors")


def test_options_have_a_json_schema_and_a_help_text() -> None:
    schema = json_schema(SimulateOptions)
    assert schema["required"] == ["deployment"]
    assert schema["properties"]["rate"]["anyOf"][0] == {
        "type": "array",
        "items": {"type": "number"},
    }
    assert schema["properties"]["grace"]["default"] == "30s"
    assert (
        schema["properties"]["top_p"] | {"exclusiveMinimum": 0, "maximum": 1}
        == schema["properties"]["top_p"]
    )
    assert "maximum" not in schema["properties"]["burstiness"]
    assert schema["properties"]["draws"]["description"].startswith(
        "simulations with varied coefficients"
    )
    assert not schema["additionalProperties"]
    of_bench = json_schema(Options)["properties"]
    assert of_bench["endpoint"]["description"].startswith("API to use: completions, chat, ")
    assert set(of_bench) == {each.name for each in flags_of(Options).values()}
    assert "url" not in schema["properties"]
    assert "think_time         pause between turns: 2s, " in str(Options.__doc__)


@pytest.mark.process
def test_importing_loadstone_takes_no_heavy_library() -> None:
    code = "import sys, loadstone; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    heavy = {
        "numpy",
        "pyarrow",
        "httpx",
        "msgspec",
        "asyncio",
        "duckdb",
        "rich",
        "scipy",
        "typer",
        "uvloop",
    }
    assert not modules & heavy
    assert {name for name in modules if name.startswith("loadstone.")} == set()


def test_results_are_imported_compared_and_reported(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, [CLOSED], {})
    comparison = loadstone.compare(tmp_path / "a", [tmp_path / "b"])
    assert comparison.document()["schema"] == comparison.schema == 1
    (page,) = loadstone.write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "both.md")
    assert page.read_text().startswith("#")
    with pytest.raises(InputError):
        loadstone.import_files(page, tmp_path)


def test_runs_are_queried_and_exported(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [CLOSED], {})
    for _ in range(2):  # the modules of the package are no names of its functions
        found = loadstone.query_runs(
            "select cell, count(*) as n from records group by all", tmp_path
        ).document()
        assert found == {"schema": 1, "columns": ["cell", "n"], "rows": [{"cell": 0, "n": 5}]}
    make_run(tmp_path / "b", [CLOSED], {})
    assert loadstone.query_runs("select distinct run from records", tmp_path / "b").rows == [("b",)]
    path = loadstone.export_run(tmp_path / "a", out=tmp_path / "a.csv")
    assert path.read_text().startswith("run,")
    with pytest.raises(InputError, match="--format"):
        loadstone.export_run(tmp_path / "a", "docx", tmp_path / "a.docx")


def test_a_run_is_opened(tmp_path: Path) -> None:
    make_run(tmp_path / "r", [CLOSED], {})
    for path in (tmp_path / "r", str(tmp_path / "r")):
        run = loadstone.open_run(path)
        assert isinstance(run, loadstone.Run)
        assert (run.folder, run.info.run_id, len(run.plan)) == (tmp_path / "r", "r", 5)
        assert run.info.plan_id == run.plan.plan_id
        table = run.records()
        assert isinstance(table, pa.Table)
        assert table.schema.equals(run_folder.records_schema())
        assert (table.num_rows, table["tokens"].to_pylist()) == (5, [[1, 2, 3]] * 5)
        assert run.summary().document() == summarise(tmp_path / "r")


def test_a_run_is_read_wherever_the_notebook_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "r", [CLOSED], {})
    monkeypatch.chdir(tmp_path)
    run = loadstone.open_run("r")
    monkeypatch.chdir("/")
    assert run.records().num_rows == 5
    assert run.summary().run_id == "r"


def test_a_run_shows_what_it_is_and_stands_for_its_folder(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name, [CLOSED], {}) for name in "ab")
    run = loadstone.open_run(a)
    assert repr(run) == "<Run a: measured, done; concurrency 1>"
    assert loadstone.compare(run, [loadstone.open_run(b)]) == loadstone.compare(a, b)
    assert loadstone.write_report(run, tmp_path / "a.md") == [tmp_path / "a.md"]
    assert loadstone.recover(run) == run.summary()


def test_what_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        loadstone.open_run(tmp_path)


def test_a_summary_is_told_from_its_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "r", [CLOSED], {})
    summary: Any = loadstone.open_run(tmp_path / "r").summary()
    uses: list[Callable[[], Any]] = [
        lambda: loadstone.open_run(summary),
        lambda: loadstone.compare(summary, [tmp_path / "r"]),
        lambda: loadstone.compare(tmp_path / "r", [summary]),
        lambda: loadstone.write_report(summary, tmp_path / "r.md"),
        lambda: loadstone.export_run(summary),
    ]
    for use in uses:
        with pytest.raises(InputError, match=r"of type Summary; of a summary, give its run_dir$"):
            use()


def test_a_bound_may_be_one_text(tmp_path: Path) -> None:
    a, b = (make_run(tmp_path / name, [CLOSED], {}) for name in "ab")
    one = loadstone.compare(a, b, fail_on="ttft_p50>+5%")
    assert one == loadstone.compare(a, b, fail_on=["ttft_p50>+5%"])
    assert len(one.fail_on) == 1


def test_the_home_folder_is_meant_by_its_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    summary = loadstone.simulate(
        "llama-3.1-8b@1xh100", concurrency=1, requests=2, draws=0, out="~/runs"
    )
    assert Path(summary.run_dir).parent == tmp_path / "home" / "runs"
    assert loadstone.write_report("~/runs", "~/all.csv") == [tmp_path / "home" / "all.csv"]
    assert list(Path().iterdir()) == []
    assert make_path("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_a_run_is_recovered(tmp_path: Path) -> None:
    make_run(tmp_path / "r", [CLOSED], {})
    summary = loadstone.recover(str(tmp_path / "r"))
    assert summary.cells[0].requests.sent == 4
    assert (tmp_path / "r" / "summary.json").exists()
    assert loadstone.recover(tmp_path / "r") == summary


@pytest.mark.process
def test_bench_takes_options_as_the_flags_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(options: bench.Options) -> dict[str, Any]:
        asked.append(options)
        return {"schema": 1}

    monkeypatch.setattr(bench, "bench", lambda options, on_event: answer(options))
    assert loadstone.bench("http://x", concurrency=[2], output="4", seed=7) == {"schema": 1}
    assert loadstone.bench() == {"schema": 1}
    assert asked == [
        bench.Options.read(url="http://x", concurrency=[2], output="4", seed=7),
        bench.Options.read(),
    ]
    for verb in (
        loadstone.bench,
        lambda **options: loadstone.simulate("llama-3.1-8b@1xh100", **options),
    ):
        with pytest.raises(InputError, match=r"^no_such_option: no such option$"):
            verb(no_such_option=1)
        with pytest.raises(
            InputError, match=r"^durations: no such option; the nearest is duration$"
        ):
            verb(durations=1)
        with pytest.raises(InputError, match=r"^--request-rate: here it is --rate$"):
            verb(request_rate=1)
        with pytest.raises(InputError, match=r"^strict: of the command alone; "):
            verb(strict=True)
        with pytest.raises(InputError, match=r"^duration_s: given twice, by two names; give one$"):
            verb(duration="1s", duration_s=1)


@pytest.mark.process
def test_options_are_taken_as_a_notebook_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "bench", lambda options, on_event: options)

    def asked(**options: Any) -> Any:
        return loadstone.bench(**options)

    plain = {
        "input": "64",
        "output": "8",
        "turns": "2",
        "think_time": "0.5",
        "requests": [8],
        "rate": [0.5],
    }
    assert asked(
        input=64, output=8, turns=2, think_time=0.5, requests=8, rate=0.5
    ) == bench.Options.read(**plain)
    assert (
        asked(concurrency="1,2")
        == asked(concurrency=range(1, 3))
        == bench.Options.read(concurrency=[1, 2])
    )
    assert asked(rate=[float("inf")], time_scale="0.1,1").load.rate == [float("inf")]
    assert asked(headers={"X-Team": "a", "X-Run": 7}, stop="\n").client.headers == [
        ("X-Team", "a"),
        ("X-Run", "7"),
    ]
    assert asked(stop="ab").sampling.stop == ["ab"]
    assert asked(plan="runs/r").workload.plan == Path("runs/r")
    assert asked(concurrency=[], rate=None) == bench.Options.read(concurrency=[])
    assert asked(concurrency=np.array(2), warmup=np.array(3)) == bench.Options.read(
        concurrency=[2], warmup=3
    )
    assert asked(stream=np.bool_(False)).client.stream is False
    assert asked(url=np.array(["http://a", "http://b"])).target.urls == ["http://a", "http://b"]
    for wrong in (
        {"requests": 0}, {"concurrency": [1.5]}, {"rate": "fast"}, {"concurrency": True}, {"seed": "x"},
        {"duration": "soon"}, {"trace_window": "5s"}, {"timeout_first": "never"}, {"header": "none"}, {"out": 5},
        {"extra_body": "["}, {"endpoint": "speech"}, {"prefix": "1.5"}, {"grace": -1}, {"stop": 5}, {"header": 5},
        {"header": [5]}, {"header": [("a", "b", "c")]}, {"dataset": ["a\n"]}, {"url": []}, {"url": ()},
        {"duration": np.timedelta64(2_000_000_000, "ns")}, {"out": Column()},
    ):  # fmt: skip
        with pytest.raises(
            InputError, match=f"^--{next(iter(wrong)).replace('_', '-')}: "
        ) as raised:
            asked(**wrong)
        assert "\n" not in str(raised.value)
    with pytest.raises(
        InputError, match=r"^--route: .*; choose one of round-robin, least-busy, sticky, prefix$"
    ):
        asked(route="nearest")


@pytest.mark.process
def test_every_option_is_named_as_its_flag_and_takes_what_the_flag_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "bench", lambda options, on_event: options)

    def asked(**options: Any) -> Any:
        return loadstone.bench(**options)

    assert asked(duration="20s", grace="1m", trace_window="0s:10m") == bench.Options.read(
        duration_s=20, grace_s=60, trace_window_s=(0, 600)
    )
    assert asked(duration=20, grace=0.5, trace_window=(0, 600)) == bench.Options.read(
        duration_s=20, grace_s=0.5, trace_window_s=(0, 600)
    )
    assert asked(duration_s=20, trace_window_s=(0, 600)) == asked(
        duration="20s", trace_window="0s:10m"
    )
    assert asked(timeout_first="1m", timeout_idle=2).client.timeouts == Timeouts(
        first_s=60, idle_s=2
    )
    assert (
        asked(header="X-Team: a").client.headers
        == asked(headers=[("X-Team", "a")]).client.headers
        == [("X-Team", "a")]
    )
    assert (
        asked(extra_body='{"top_k": 4}').client.extra_body
        == asked(extra_body={"top_k": 4}).client.extra_body
        == {"top_k": 4}
    )
    assert asked(time_scale="1/10").workload.time_scale == [0.1]
    assert asked(prefix="1k", seed="7", warmup=np.int64(3)) == bench.Options.read(
        prefix=1024, seed=7, warmup=3
    )
    assert [asked(sim=given).target.sim for given in (True, False)] == ["llama-3.1-8b@1xh100", None]
    of_the_command = set(inspect.signature(bench_command).parameters) - {
        "target",
        "json",
        "strict",
        "explain",
        "report",
    }
    for name in of_the_command - {"sim"}:
        assert asked(**{name: None}) == bench.Options.read()


@pytest.mark.process
def test_bench_measures(tmp_path: Path) -> None:
    summary = loadstone.bench(
        sim="ttft=5ms,itl=1ms",
        input="8",
        output="4",
        concurrency=[2],
        requests=[4],
        warmup=0,
        out=tmp_path,
    )
    assert summary.cells[0].requests.ok == 4
    run = loadstone.open_run(summary.run_dir)
    assert run.records()["output_tokens"].to_pylist() == [4] * 4
    assert run.summary() == summary
    assert run.info.status == "done"


def test_folders_may_be_text(tmp_path: Path) -> None:
    options = {"input": "16", "output": "4", "concurrency": [1], "requests": [1]}
    summary = loadstone.simulate("llama-3.1-8b@1xh100", out=str(tmp_path / "runs"), **options)
    assert Path(summary.run_dir).parent == tmp_path / "runs"


def test_simulate_takes_what_the_command_takes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "input": "16",
        "output": "40",
        "concurrency": [1],
        "requests": [2],
        "out": tmp_path,
    }
    deployment = "llama-3.1-8b@1xh100/num_speculative_tokens=3"

    def tpot(**more: Any) -> Any:
        return loadstone.simulate(deployment, **options, **more).document()["cells"][0]["metrics"][
            "tpot_s"
        ]

    lucky, unlucky = tpot(acceptance=1.0, draws=0), tpot(acceptance=0.0, draws=0)
    assert lucky["p50"] < unlucky["p50"] / 3
    assert (lucky["low"], lucky["high"]) == (None, None)
    assert "low" in tpot(draws=3)
    with pytest.raises(InputError, match="nobodys"):
        tpot(profile=tmp_path / "nobodys")
    assert tpot(acceptance="0.5", draws="0") == tpot(acceptance=0.5, draws=np.int64(0))
    for wrong in ({"draws": 1.5}, {"acceptance": "likely"}):
        with pytest.raises(InputError, match=f"^--{next(iter(wrong))}: "):
            tpot(**wrong)
    with pytest.raises(InputError, match=r"^deployment: "):
        loadstone.simulate(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^draw: no such option; the nearest is draws$"):
        tpot(draw=3)


@pytest.mark.process
def test_a_file_named_as_a_module_of_pythons_is_none_of_a_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(preloaded.OFF, "")  # a forked one has imported all before
    Path("queue.py").write_text("raise RuntimeError('a notebook has begun again')")
    summary = loadstone.bench(sim="ttft=5ms,itl=1ms", input=8, output=4, concurrency=1, requests=2)
    assert summary.status == "done"
