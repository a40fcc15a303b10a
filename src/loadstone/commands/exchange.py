"""`loadstone import` and `loadstone export`: results of other tools in, results for other tools
out."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands.flags import Out, json_flag
from loadstone.commands.output import print_json


def import_(
    files: Annotated[list[Path], typer.Argument(help="result files, or folders of them")],
    out: Out = Path("runs"),
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="a fact missing from the files: model=…, gpu=h200, gpus=8, tp=8, concurrency=16 …",
        ),
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help='for plain CSV: which column is what, e.g. ttft_p50_ms="Median TTFT"'
        ),
    ] = None,
    json: Annotated[bool, json_flag("run folders and findings")] = False,
) -> None:
    """Make run folders from other tools' results. Of vLLM, SGLang, AIPerf, GuideLLM,
    inference-perf, CSV …"""
    from loadstone.interop.read import import_files

    imported = import_files(
        files, out, mapped=mapped or (), given=given or (), command=["loadstone", *sys.argv[1:]]
    )
    if json:
        print_json(imported.to_json())
        return
    for run in imported.runs:
        print(run)
    for finding in imported.findings:
        print(f"{finding['severity']}: {finding['evidence']}", file=sys.stderr)


def export(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    form: Annotated[
        str, typer.Option("--format", help="vllm, sglang, llm-d, csv, parquet or otlp (spans)")
    ] = "csv",
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="file to write, or with otlp a collector's URL [default: stdout; for Parquet, or"
            " with --json: RUN.FORMAT]",
        ),
    ] = None,
    json: Annotated[bool, json_flag("what was written")] = False,
) -> None:
    """Write a run for other tools. As JSON of vLLM, SGLang or llm-d, CSV (per load), Parquet (per
    request), spans of OpenTelemetry."""
    from loadstone.interop.write import export_run, file_name

    if output is None and (json or form == "parquet"):
        output = file_name(run, form)
    url = output if output is not None and output.startswith(("http://", "https://")) else ""
    body = export_run(run, form, Path(output) if output is not None and not url else None, url)
    if body is not None:
        sys.stdout.buffer.write(body)
    elif json:
        print_json({"schema": 1, "run": str(run), "format": form, "file": str(output)})
    else:
        print(output)
