"""Commands about runs that are there, and about this host: recover, show, query, selftest,
doctor."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadstone.commands.flags import PlainExplain, json_flag
from loadstone.commands.output import print_json, print_rows, print_text, show_result


def recover(
    run: Annotated[Path, typer.Argument(help="a run folder that was cut off")],
    json: Annotated[bool, json_flag("the summary")] = False,
    explain: PlainExplain = False,
) -> None:
    """Finish a run folder after a crash. Makes records and summary from its journals; harmless to
    repeat."""
    from loadstone.runs.execution import recover as finish

    show_result(finish(run), json, explain)


def selftest(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="only the three smallest levels, about 12 s instead of 80 s"),
    ] = False,
    json: Annotated[bool, json_flag("the results")] = False,
) -> None:
    """Measure how exact the client is on this host. Later runs quote the result."""
    from loadstone.analyse.client_accuracy import save
    from loadstone.commands.progress import working
    from loadstone.report.pages.selftest import render
    from loadstone.runs.selftest import LEVELS, QUICK_LEVELS, run

    with working("measuring the client") as change:

        def say(text: str) -> None:
            change(text)
            if not sys.stderr.isatty():
                print(text, file=sys.stderr, flush=True)

        result = run(QUICK_LEVELS if quick else LEVELS, not quick, say)
    # Shown first: where it cannot be kept, it is measured all the same.
    if json:
        import msgspec

        print_json(msgspec.to_builtins(result))
    else:
        print_text(*render(result))
    path = save(result)
    if not json:
        print(f"kept in {path}; later runs quote this self-test")


def doctor(
    out: Annotated[Path, typer.Option(help="where runs are to be kept")] = Path("runs"),
    json: Annotated[bool, json_flag("what was found")] = False,
) -> None:
    """Look at what this machine has: engines, GPUs, clocks, limits. Says what to install; starts
    nothing."""
    from loadstone.report.pages.selftest import render_checks
    from loadstone.runs.doctor import examine

    checks = examine(out)
    if json:
        print_json({"schema": 1, "checks": [check._asdict() for check in checks]})
    else:
        print_text(render_checks(checks))


def show(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    dialect: Annotated[
        str | None,
        typer.Option(
            help=(
                "other tools' numbers: vllm, sglang, sglang-oai, aiperf, guidellm, inference-perf,"
                " llmperf"
            )
        ),
    ] = None,
    json: Annotated[bool, json_flag("the summary")] = False,
    explain: PlainExplain = False,
) -> None:
    """Show a run again, recomputed from its records."""
    from loadstone.analyse.summary import summary_of

    show_result(summary_of(run, dialect), json, explain)


def query(
    sql: Annotated[
        str, typer.Argument(help='e.g. "select run, cell, count(*) from records group by all"')
    ],
    runs: Annotated[Path, typer.Option(help="folder of run folders, or one run folder")] = Path(
        "runs"
    ),
    json: Annotated[bool, json_flag("rows")] = False,
) -> None:
    """Query all runs with SQL. Tables: `records` (a row per request), `cells` (a row per load),
    `classes` (of traffic), `runs`, and `server` (samples of the servers' /metrics and of GPUs).
    """
    from loadstone.analyse.query import find_unsealed, rows_of

    found = rows_of(sql, runs)
    unsealed = find_unsealed(runs)
    if unsealed:
        names = ", ".join(unsealed)
        print(f"warning: not sealed, and perhaps changed since: {names}", file=sys.stderr)
    if json:
        print_json(found.document())
    else:
        print_rows(*found)
