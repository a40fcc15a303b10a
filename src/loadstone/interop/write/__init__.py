"""Writes runs for other tools: as vLLM's and SGLang's result files, as llm-d's benchmark report, as
CSV with a row per cell, as Parquet per request, as spans in OTLP."""

from pathlib import Path

from loadstone.analyse import imported_run
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.files import check_file, explain_os_error
from loadstone.interop.write import bench_json, llmd, otlp, tables

__all__ = ["FORMATS", "export_run", "file_name"]

FORMATS = {
    "vllm": "vllm.json",
    "sglang": "sglang.jsonl",
    "llm-d": "llm-d.json",
    "csv": "csv",
    "parquet": "parquet",
    "otlp": "otlp.json",
}
"""The formats, each with the name of its files."""
_OF_SUMS = ("csv", "llm-d")
"""Those that need no requests."""


def file_name(folder: Path, form: str) -> str:
    """Name a file of the run in `folder` where nobody does. Raises InputError: no such form."""
    _check_format(form)
    return f"{folder.resolve().name}.{FORMATS[form]}"


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise InputError(f"--format {form}: unknown; choose one of {', '.join(FORMATS)}")


def export_run(folder: Path, form: str, out: Path | None = None, url: str = "") -> bytes | None:
    """Export the run in `folder` as `form`, of FORMATS: to `out`, else as bytes (not Parquet, which
    needs a file). `url`: of a collector that takes spans.

    Raises InputError, one line, where there is no such form, or the run lacks the requests it
    needs; TargetError where the collector does not take them.
    """
    _check_format(form)
    if url and form != "otlp":
        raise InputError(f"--output {url}: only --format otlp is sent to a URL; name a file")
    if out is not None:
        check_file(out)
    info = run_folder.read_info(folder)
    if form not in _OF_SUMS and imported_run.is_summary_only(folder, info):
        raise InputError(
            f"{folder}: imported without its requests, which {form} needs; use --format csv or"
            " llm-d"
        )
    if form == "parquet":
        if out is None:
            raise InputError("--format parquet: not text; name a file with -o")
        tables.write_parquet(folder, info, out)
        return None
    if url:
        otlp.send(folder, info, url)
        return None
    if form == "llm-d":
        body = llmd.lines(folder)
    elif form == "otlp":
        body = otlp.document(folder, info)
    else:
        body = (
            tables.cells_csv(folder, info)
            if form == "csv"
            else bench_json.lines(folder, info, form)
        )
    if out is None:
        return body
    with explain_os_error(f"{out}: cannot be written", "give another file with -o"):
        out.write_bytes(body)
    return None
