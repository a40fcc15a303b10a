"""Loadstone: size, simulate, measure and compare LLM inference serving.

    summary = loadstone.bench("http://localhost:8000", concurrency=[1, 8], output="128")
    print(summary.cells[0].metrics.output_tokens_per_s)
    run = loadstone.open_run(summary.run_dir)
    run.records()

Results are types with fields; their `document()` is what the command prints with `--json`.
Importing it takes no time: each function imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from loadstone.analyse.compare.result import Comparison
    from loadstone.analyse.query import QueryResult
    from loadstone.calibrate.validate import Validation
    from loadstone.core.errors import InputError, LoadstoneError
    from loadstone.core.plan import Plan
    from loadstone.core.ranked_runs import RankedRuns
    from loadstone.core.record import RunInfo
    from loadstone.core.signals import Interrupted
    from loadstone.core.summary import Summary
    from loadstone.core.version import __version__
    from loadstone.predict.sizing.deployments import Sizes
    from loadstone.recommend.tell.document import Recommendation
    from loadstone.runs.calibrate import CalibratedProfile
    from loadstone.studies.tuning.result import TuneResult


__all__ = [
    "InputError",
    "Interrupted",
    "LoadstoneError",
    "Run",
    "__version__",
    "bench",
    "calibrate_profile",
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
    "validate_points",
    "write_report",
]
_MODULES = {
    "InputError": "errors",
    "LoadstoneError": "errors",
    "Interrupted": "signals",
    "__version__": "version",
}
"""Modules of loadstone.core that have the names which are imported when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'loadstone' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"loadstone.core.{_MODULES[name]}"), name)


def bench(url: str | Sequence[str] | None = None, **options: Any) -> Summary:
    """Measure a live engine, or an embedded one without `url`; returns the summary, with `find_max`
    a SearchSummary.

    Several URLs are a fleet of servers with the same model behind them.

    `options` are named as the flags (`duration`, `timeout_first`;
    help("loadstone.workload.options.Options") lists them) and take what these take, as text or as
    values: `rate=[1, 2]`, `duration="20s"` or `duration=20`; `header` and `extra_body` may be
    dictionaries. Raises loadstone.InputError, one line, where there is no such option or it cannot
    be done, and loadstone.Interrupted, a KeyboardInterrupt, once what was measured is saved;
    requests that fail are records.
    """
    from loadstone.runs.run import run
    from loadstone.workload.option_fields import options_of
    from loadstone.workload.options import Options

    return run(options_of({"url": url, **options}, Options))  # type: ignore[return-value]


def size(models: str | Sequence[str], **options: Any) -> Sizes:
    """Compute whether models fit, their longest context and batch: `rows`.

    `models` as the command takes them; `options` as the flags, single values or lists;
    help("loadstone.predict.sizing.options.SizeOptions") lists them. Raises loadstone.InputError,
    one line.
    """
    from loadstone.predict.sizing.deployments import Sizes, sizes
    from loadstone.predict.sizing.options import SizeOptions
    from loadstone.workload.option_fields import options_of

    return Sizes(rows=sizes(options_of({"models": models, **options}, SizeOptions)))


def simulate(deployment: str, **options: Any) -> Summary | RankedRuns:
    """Simulate a deployment, as `llama-3.1-70b@8xh200`; returns the summary. Of several in one
    text, `llama-3.1-70b@4xh200/tp={2,4}`: their `runs` and `ranking`.

    `options` are those of bench() that are not about a server, and `acceptance`, `draws`, `profile`
    as the flags of `loadstone simulate`; help("loadstone.workload.options.SimulateOptions") lists
    them. Raises as bench() does.
    """
    from loadstone.runs.run import run
    from loadstone.workload.option_fields import options_of
    from loadstone.workload.options import SimulateOptions

    return run(options_of({"deployment": deployment, **options}, SimulateOptions))


def recommend(model: str, **options: Any) -> Recommendation:
    """Plan what to deploy for a model's traffic; typed, with the fields of `loadstone recommend
    --json`; for `mix` or `classes` the fleets, recommend.tell.mixed.MixRecommendation.

    `options` as the flags (`rate=20, slo="ttft_p99<1s", gpus="h200,b200"`); `--with` is `measured`.
    help("loadstone.recommend.demand.options.RecommendOptions") lists them. Raises
    loadstone.InputError, one line.
    """
    from importlib import import_module

    planner: Any = import_module("loadstone.recommend")
    advice: Recommendation = planner(model, **options)
    return advice


def tune(target: str, **options: Any) -> TuneResult:
    """Find the best flags of an engine by launching it; typed, with the fields of `loadstone tune
    --json`.

    `options` as the flags (`concurrency=16, set=["max_num_seqs=64,256"], time="1h"`), and
    `simulate=True`. help("loadstone.studies.tuning.options.TuneOptions") lists them. Raises
    loadstone.InputError, one line.
    """
    from loadstone.studies.tuning.options import TuneOptions
    from loadstone.studies.tuning.tune import tune as race
    from loadstone.workload.option_fields import options_of

    simulate = bool(options.pop("simulate", False))
    return race(options_of({"target": target, **options}, TuneOptions), simulate)


def recover(path: str | PathLike[str]) -> Summary:
    """Finish a run folder that a crash left; returns the summary. Harmless to repeat. Raises
    InputError."""
    from loadstone.runs import execution

    return execution.recover(_folder(path))


def compare(
    a: str | PathLike[str] | Sequence[str | PathLike[str]],
    b: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    fail_on: str | Sequence[str] = (),
    allow_errors: bool = False,
    price: str | Sequence[str] = (),
    seed: int = 0,
) -> Comparison:
    """Compare two sides, each a run folder or several repeats; ratios are B over A.

    `fail_on`: bounds such as `ttft_p99>+5%`, which a cell of B with an error finding passes by
    `allow_errors` alone; `price`: dollars per GPU and hour, such as `h200=3.2`. Raises InputError,
    one line.
    """
    from loadstone.analyse.compare import compare as compare_sides

    bounds = [fail_on] if isinstance(fail_on, str) else fail_on
    return compare_sides(
        _folders(a), _folders(b), fail_on=bounds, allow_errors=allow_errors, price=price, seed=seed
    )


def import_files(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]], out: str | PathLike[str] = "runs"
) -> list[Path]:
    """Make run folders, in `out`, of other tools' result files; what is odd in them is in their
    verdicts.

    Raises InputError, one line.
    """
    from loadstone.interop.read import import_files as import_results

    return import_results(_folders(paths), _folder(out)).runs


def write_report(
    runs: str | PathLike[str] | Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    price: str | Sequence[str] = (),
) -> list[Path]:
    """Write the report of `runs` (run folders, folders of them, other tools' results), of the kind
    that the name of `out` says: .html, .md, .csv; .png and .svg are a folder of pictures. Returns
    the files. `price`: dollars per GPU and hour, such as `h200=3.2`. Raises InputError.
    """
    from loadstone.interop.read.folders import run_folders
    from loadstone.report.write import report

    with run_folders(_folders(runs)) as (folders, passed_over):
        return report(folders, _folder(out), passed_over=passed_over, price=price).files


def export_run(
    run: str | PathLike[str], format: str = "csv", out: str | PathLike[str] | None = None
) -> Path:
    """Write a run for other tools; returns the file, `out` or RUN.FORMAT. `format`: csv, parquet,
    vllm, sglang, llm-d or otlp.

    Raises InputError, one line.
    """
    from loadstone.interop import write

    folder = _folder(run)
    path = Path(write.file_name(folder, format)) if out is None else _folder(out)
    write.export_run(folder, format, path)
    return path


def query_runs(sql: str, runs: str | PathLike[str] = "runs") -> QueryResult:
    """Query the run folders in `runs`, or one of them, by SQL. Raises InputError, one line."""
    from loadstone.analyse import query

    return query.rows_of(sql, _folder(runs))


def validate_points(
    points: str | PathLike[str], *, profile: str | PathLike[str] | None = None
) -> Validation:
    """Predict every measurement of a CSV. Raises InputError."""
    from loadstone.calibrate.points import read_points
    from loadstone.calibrate.validate import score, validation

    rows = score(read_points(_folder(points)), None if profile is None else str(_folder(profile)))
    return validation(rows)


def calibrate_profile(
    runs: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    deployment: str | None = None,
    profile: str = "mine",
    out: str | PathLike[str] | None = None,
    force: bool = False,
) -> CalibratedProfile:
    """Fit a profile to your own runs and keep it by the name `profile`.

    `deployment`: what they ran on, where they do not tell. `out`: the folder to keep it in.
    `force`: also from cells that are not trusted. Raises InputError.
    """
    from loadstone.runs.calibrate import calibrate

    return calibrate(
        _folders(runs), deployment, profile, None if out is None else _folder(out), force=force
    )


def _folders(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> list[Path]:
    """Read one path or several."""
    if isinstance(paths, str | PathLike | Mapping) or not hasattr(paths, "__iter__"):
        return [_folder(paths)]
    return [_folder(path) for path in paths]


def _folder(path: Any) -> Path:
    """Read a path. Raises InputError where it is none, such as a run's summary."""
    from loadstone.core.errors import InputError
    from loadstone.core.host import make_path

    try:
        return make_path(path)
    except TypeError:
        problem = f"a path is needed, and this is of type {type(path).__name__}"
        raise InputError(f"{problem}; of a summary, give its run_dir") from None


def open_run(path: str | PathLike[str]) -> Run:
    """Open a run folder, for reading. Raises InputError where it is none."""
    from loadstone.core import run_folder

    folder = _folder(path).absolute()
    return Run(folder, run_folder.read_info(folder), run_folder.read_plan(folder))


class Run:
    """A run folder: `info` (everything needed to repeat it), `plan` (what was asked), and what came
    of it.

    It stands for its folder wherever a run is asked for: `compare(run, other)`.
    """

    def __init__(self, folder: Path, info: RunInfo, plan: Plan) -> None:
        self.folder = folder
        self.info = info
        self.plan = plan

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        loads = ", ".join(load.label for load in self.plan.cells)
        return f"<Run {self.folder.name}: {self.info.source}, {self.info.status}; {loads}>"

    def records(self) -> pa.Table:
        """Return a row per request, columns as core.record.RequestRecord. Raises InputError where
        there are none."""
        import pyarrow as pa

        from loadstone.core import run_folder

        return pa.Table.from_batches(
            run_folder.read_records(self.folder), schema=run_folder.records_schema()
        )

    def summary(self) -> Summary:
        """Compute the numbers from the records. Raises InputError where there are none."""
        from loadstone.analyse.summary import summary_of

        return summary_of(self.folder)
