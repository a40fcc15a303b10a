"""The command line. Exit codes: 0 done; 1 ran, but the result is not trusted or a bound was missed (`--strict`);
2 bad input, one line on stderr; 130 interrupted, with what was measured saved.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from loadstone.errors import InputError, LoadstoneError
from loadstone.units import parse_counts, parse_list, parse_seconds

app = typer.Typer(
    help="A laboratory for LLM inference serving: measure a live engine, and know how far to trust the numbers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_WORKLOAD, _LOAD, _TARGET, _RUN = "Workload", "Load", "Target", "Run"
Endpoint = Literal["completions", "chat", "sglang", "triton", "triton-grpc"]
Route = Literal["round-robin", "least-busy", "sticky"]
Engine = Literal["llama.cpp"]


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=more.pop("show_default", True), **more)


@app.command()
def bench(
    target: Annotated[
        list[str] | None,
        typer.Argument(help="URL of a server, or several: a fleet; with --sim: the law, e.g. ttft=30ms,itl=5ms"),
    ] = None,
    sim: Annotated[
        bool, _option(_TARGET, "measure the embedded timing server (the default without a URL)", "--sim")
    ] = False,
    engine: Annotated[
        Engine | None, _option(_TARGET, "start this engine with a small random model and measure it")
    ] = None,
    model: Annotated[str | None, _option(_TARGET, "model name to ask for (default: the server's first)")] = None,
    endpoint: Annotated[
        Endpoint | None, _option(_TARGET, "default: what the server offers, completions first")
    ] = None,
    route: Annotated[
        Route | None,
        _option(_TARGET, "how a fleet's requests are spread [default: round-robin; sessions: sticky]"),
    ] = None,
    tokenizer: Annotated[str | None, _option(_TARGET, "tokenizer.json, or its folder, to count prompts with")] = None,
    header: Annotated[
        list[str] | None, _option(_TARGET, "'Name: value', sent with every request", "--header", "-H")
    ] = None,
    extra_body: Annotated[str | None, _option(_TARGET, "JSON object merged into every request body")] = None,
    timeout_connect: Annotated[str, _option(_TARGET, "to connect")] = "10s",
    timeout_first: Annotated[str, _option(_TARGET, "from sending to the first output")] = "600s",
    timeout_idle: Annotated[str, _option(_TARGET, "between outputs")] = "300s",
    timeout_total: Annotated[str, _option(_TARGET, "from sending to the end")] = "6h",
    input: Annotated[
        str | None,
        _option(
            _WORKLOAD,
            "prompt tokens: 1024, uniform:512:1024, normal:1024:128, lognormal:1024:0.5 [default: 1024]",
        ),
    ] = None,
    output: Annotated[
        str | None, _option(_WORKLOAD, "answer tokens, likewise [default: 128; datasets: as they say]")
    ] = None,
    range_ratio: Annotated[float, _option(_WORKLOAD, "draw lengths uniformly from [ratio·n, n]")] = 1.0,
    prefix: Annotated[int, _option(_WORKLOAD, "tokens of each prompt that its group shares, e.g. 2000 of 3200")] = 0,
    prefix_groups: Annotated[int, _option(_WORKLOAD, "groups of prompts that share a prefix")] = 1,
    dataset: Annotated[
        Path | None, _option(_WORKLOAD, "ShareGPT, OpenAI messages or plain prompts; JSONL, JSON or text")
    ] = None,
    turns: Annotated[
        str | None, _option(_WORKLOAD, "sessions of so many turns, e.g. 4 or uniform:2:6; loads then count sessions")
    ] = None,
    think_time: Annotated[
        str | None, _option(_WORKLOAD, "between turns: 2s, uniform:1s:3s, exponential:2s, lognormal:2s:0.5")
    ] = None,
    trace: Annotated[
        Path | None, _option(_WORKLOAD, "Azure, Mooncake or BurstGPT trace, or plain CSV or JSONL, at its own times")
    ] = None,
    time_scale: Annotated[
        str | None, _option(_LOAD, "a trace's times × this, a cell each: 0.1 is ten times as fast [default: 1]")
    ] = None,
    trace_window: Annotated[str | None, _option(_LOAD, "replay only FROM:TO of a trace, e.g. 0s:10m")] = None,
    trace_sample: Annotated[float | None, _option(_LOAD, "replay this share of a trace's requests, e.g. 0.1")] = None,
    length_scale: Annotated[
        float | None, _option(_WORKLOAD, "a trace's lengths × this, with the same sharing of prefixes")
    ] = None,
    skip_bad: Annotated[
        bool, _option(_WORKLOAD, "leave out bad lines of a trace, and count them", "--skip-bad")
    ] = False,
    plan: Annotated[Path | None, _option(_WORKLOAD, "replay the plan of a run folder, or a plan.parquet")] = None,
    seed: Annotated[int, _option(_WORKLOAD, "same seed, same plan")] = 0,
    salt: Annotated[
        str, _option(_WORKLOAD, "makes prompts new to every prefix cache: auto, none, or a run's own to repeat it")
    ] = "auto",
    flush_cache: Annotated[
        bool | None,
        _option(
            _WORKLOAD,
            "empty the engine's prefix cache before each cell [default: if --salt makes no new prompts]",
            "--flush-cache/--no-flush-cache",
        ),
    ] = None,
    temperature: Annotated[float | None, _option(_WORKLOAD, "sampling temperature (default: the server's)")] = None,
    top_p: Annotated[float | None, _option(_WORKLOAD, "nucleus sampling (default: the server's)")] = None,
    sampling_seed: Annotated[int | None, _option(_WORKLOAD, "the engine's own sampling seed")] = None,
    stop: Annotated[list[str] | None, _option(_WORKLOAD, "end an answer at this text (may be repeated)")] = None,
    structured: Annotated[
        str | None, _option(_WORKLOAD, "constrain answers: json-schema:FILE, grammar:FILE or regex:PATTERN")
    ] = None,
    stream: Annotated[
        bool, _option(_WORKLOAD, "answers in one piece instead: E2E only", "--stream/--no-stream")
    ] = True,
    concurrency: Annotated[
        str | None, _option(_LOAD, "closed loop: requests under way, a cell each [default: 1,4,16]")
    ] = None,
    rate: Annotated[
        str | None, _option(_LOAD, "open loop: requests/s, a cell each; inf: all of --requests at once")
    ] = None,
    burstiness: Annotated[
        float, _option(_LOAD, "of arrivals: 1 Poisson, below bunched, above evener, inf constant")
    ] = 1.0,
    ramp: Annotated[
        str | None,
        _option(_LOAD, "rate in pieces: 1:20:60s,20:30s (1 to 20 in a minute, then 20); or concurrency=1:64:60s"),
    ] = None,
    max_concurrency: Annotated[int | None, _option(_LOAD, "cap of an open loop; waiting counts as latency")] = None,
    requests: Annotated[str | None, _option(_LOAD, "measured requests per cell (a list with --rate inf)")] = None,
    requests_per_rate: Annotated[float | None, _option(_LOAD, "measured requests per cell = this × rate")] = None,
    duration: Annotated[str | None, _option(_LOAD, "measure a cell for this long instead, e.g. 60s")] = None,
    grace: Annotated[str, _option(_LOAD, "after --duration: time to end for what is under way")] = "30s",
    warmup: Annotated[
        int | None, _option(_LOAD, "requests before the measured ones [default: the concurrency; 0: none]")
    ] = None,
    slo: Annotated[str | None, _option(_RUN, "bounds, e.g. ttft<500ms,tpot<30ms (goodput) or ttft_p99<1s")] = None,
    dialect: Annotated[
        str | None,
        _option(_RUN, "the same records by another tool's definitions too: vllm, sglang, aiperf, guidellm, mlperf …"),
    ] = None,
    proxy: Annotated[
        str | None, _option(_TARGET, "http://host:port to go through; proxies in the environment are ignored")
    ] = None,
    workers: Annotated[int | None, _option(_RUN, "client processes (default: as many as the load needs)")] = None,
    out: Annotated[Path, _option(_RUN, "where run folders go")] = Path("runs"),
    json: Annotated[bool, _option(_RUN, "print the summary as JSON on stdout", "--json")] = False,
    strict: Annotated[
        bool, _option(_RUN, "exit 1 unless every cell is trusted and every bound met", "--strict")
    ] = False,
) -> None:
    """Measure a live engine: TTFT, ITL, TPOT, E2E and throughput over a sweep of loads."""
    from loadstone.client.protocol import Timeouts
    from loadstone.measure import DEFAULT_LAW, Interrupted
    from loadstone.measure import bench as run
    from loadstone.options import Options
    from loadstone.progress import Display
    from loadstone.summary import trusted

    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: must be at least 1")
    options = Options(
        url=None if sim else target or (),
        sim=(target or [DEFAULT_LAW])[0] if sim else None,
        route=route,
        engine=engine,
        model=model,
        endpoint=endpoint,
        tokenizer=tokenizer,
        input=input,
        output=output,
        range_ratio=range_ratio,
        prefix=prefix,
        prefix_groups=prefix_groups,
        dataset=dataset,
        trace=trace,
        time_scale=_scales(time_scale),
        trace_window_s=_window(trace_window),
        trace_sample=trace_sample,
        length_scale=length_scale,
        skip_bad=skip_bad,
        turns=turns,
        think_time=think_time,
        plan=plan,
        rate=parse_list(rate, "--rate") if rate is not None else (),
        burstiness=burstiness,
        ramp=ramp,
        concurrency=parse_counts(concurrency, "--concurrency") if concurrency is not None else (),
        max_concurrency=max_concurrency,
        requests=parse_counts(requests, "--requests") if requests is not None else (),
        requests_per_rate=requests_per_rate,
        duration_s=parse_seconds(duration, "--duration") if duration is not None else None,
        grace_s=parse_seconds(grace, "--grace"),
        warmup=warmup,
        slo=slo,
        dialect=dialect,
        seed=seed,
        salt=salt,
        flush_cache=flush_cache,
        temperature=temperature,
        top_p=top_p,
        sampling_seed=sampling_seed,
        stop=stop or (),
        structured=structured,
        stream=stream,
        headers=[_header(text) for text in header or ()],
        extra_body=_extra_body(extra_body),
        timeouts=Timeouts(
            parse_seconds(timeout_connect, "--timeout-connect"),
            parse_seconds(timeout_first, "--timeout-first"),
            parse_seconds(timeout_idle, "--timeout-idle"),
            parse_seconds(timeout_total, "--timeout-total"),
        ),
        workers=workers,
        proxy=proxy,
        out=out,
        command=["loadstone", *sys.argv[1:]],
    )
    try:
        with Display() as display:
            document = run(options, display)
    except Interrupted as interrupted:
        _show(interrupted.document, json)
        print(f"interrupted; what was measured is in {interrupted.folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    _show(document, json)
    if document["status"] == "failed":
        raise typer.Exit(1)
    if strict and not trusted(document):
        raise typer.Exit(1)


@app.command()
def recover(
    run: Annotated[Path, typer.Argument(help="a run folder that was cut off")],
    json: Annotated[bool, typer.Option("--json", help="print the summary as JSON on stdout")] = False,
) -> None:
    """Finish a run folder that a crash left: records and summary from its journals. Harmless to repeat."""
    from loadstone.measure import recover as finish

    _show(finish(run), json)


@app.command()
def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="the three small levels only, some 12 s")] = False,
    json: Annotated[bool, typer.Option("--json", help="print the figures as JSON on stdout")] = False,
) -> None:
    """Measure how exact the client is on this host; later runs quote it."""
    from loadstone.selftest import LEVELS, QUICK_LEVELS, render, run, save

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    found = run(QUICK_LEVELS if quick else LEVELS, not quick, say)
    kept = save(found)
    if json:
        import msgspec

        _print_json(msgspec.to_builtins(found))
        return
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(render(found))
    console.print(f"kept in {kept}; later runs quote it", markup=False, soft_wrap=True)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    dialect: Annotated[
        str | None, typer.Option(help="by another tool's definitions too: vllm, sglang, aiperf, guidellm, mlperf …")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the summary as JSON on stdout")] = False,
) -> None:
    """Show a run again: its numbers, computed anew from its records."""
    from loadstone.summary import summarise

    _show(summarise(run, dialect), json)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help='e.g. "select run, cell, count(*) from records group by all"')],
    runs: Annotated[Path, typer.Option(help="folder of run folders")] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="print rows as JSON on stdout")] = False,
) -> None:
    """SQL over all runs: tables `records` (one row a request), `cells` (one row a cell), `runs` (one row a run)."""
    from loadstone.query import rows_of
    from loadstone.report.table import print_rows

    columns, rows = rows_of(sql, runs)
    if json:
        _print_json({"schema": 1, "columns": columns, "rows": [dict(zip(columns, row, strict=True)) for row in rows]})
    else:
        print_rows(columns, rows)


def _show(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(document)
        return
    from rich.console import Console

    from loadstone.report.table import render

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(render(document))
    console.print(document["run_dir"], markup=False, soft_wrap=True)


def _print_json(document: dict[str, Any]) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise InputError("--header: write 'Name: value'")
    return name.strip(), value.strip()


def _scales(text: str | None) -> list[float]:
    """`0.1` or `1/10`, several with commas."""
    scales = []
    for part in (text or "").split(",") if text is not None else ():
        number, slash, divisor = part.partition("/")
        values = parse_list(f"{number},{divisor}" if slash else number, "--time-scale")
        if slash and values[1] == 0:
            raise InputError(f"--time-scale: {part!r} divides by zero; write 0.1 or 1/10")
        scales.append(values[0] / values[1] if slash else values[0])
    return scales


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    start, colon, end = text.partition(":")
    if not colon:
        raise InputError(f"--trace-window: {text!r} is no stretch of time; write FROM:TO, e.g. 0s:10m")
    window = parse_seconds(start or "0", "--trace-window"), parse_seconds(end, "--trace-window")
    if window[0] >= window[1]:
        raise InputError(f"--trace-window: {text!r} ends before it begins; write FROM:TO, e.g. 0s:10m")
    return window


def _extra_body(text: str | None) -> dict[str, Any]:
    import msgspec

    if text is None:
        return {}
    try:
        fields = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(f"--extra-body: no JSON ({error}); write e.g. '{{\"top_k\": 40}}'") from None
    if not isinstance(fields, dict):
        raise InputError("--extra-body: not a JSON object; write e.g. '{\"top_k\": 40}'")
    return fields


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    try:
        code = app(standalone_mode=False)
    except (LoadstoneError, OSError) as error:
        print(f"loadstone: {_one_line(error)}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, LoadstoneError) else 1)
    except (KeyboardInterrupt, typer.Abort):
        print("loadstone: interrupted before anything was measured", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        # What typer's parser raises lives in click, or in its own copy of click: told by its methods, not its class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        usage = type(error).__name__ == "NoArgsIsHelpError"
        print(message() if usage else f"loadstone: {_one_line(message())}; see --help", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _one_line(said: object) -> str:
    return " ".join(str(said).split())


if __name__ == "__main__":
    main()
