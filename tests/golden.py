"""The figures that the public functions give, one line a case in tests/golden/*.json.

    python tests/golden.py            compare, and name the figures that differ
    python tests/golden.py --write    write them anew, after a change of a number that is meant

Numbers are rounded to six digits, since processors differ in the last ones; of each sample of times
its mean, p50 and p99 are kept. `--full DIR` writes the whole documents, so that two commits can be
compared with `diff -r`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loadstone

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDER = HERE / "golden"
SHARED = ROOT.parent / "shared" / "data" / "results"

GPUS = ["h200", "b200", "mi300x"]
SIMULATED = [
    *(f"{model}@{gpus}/engine={engine}" for model, gpus in (
        ("llama-3.1-8b", "1xh100"), ("llama-3.1-8b", "1xh200"), ("llama-3.1-70b", "4xh100"),
        ("llama-3.1-70b:fp8", "2xh200"),
        ("llama-3.1-70b", "8xb200"), ("mixtral-8x7b", "2xh100"), ("qwen3-32b", "2xh200"), ("deepseek-v3", "8xh200"),
        ("deepseek-r1", "8xb200"), ("gpt-oss-120b", "1xh200"),
    ) for engine in ("vllm", "sglang", "tensorrt-llm")),
    "llama-3.1-405b:fp8@8xh200/tp8", "llama-3.1-405b@16xh200/tp8,pp2", "llama-3.1-70b@8xmi300x/tp4,dp2",
    "deepseek-r1@8xh200/dp8,attention-dp,ep8,engine=sglang", "llama-3.1-8b@1xl40s", "llama-3.1-8b@1xa100-80gb",
    "qwen3-235b-a22b@8xh200", "qwen3-30b-a3b@1xb200", "mistral-7b@1xh100/kv=fp8", "gemma-3-27b@1xh200",
]  # fmt: skip
LOADS: list[dict[str, Any]] = [
    {"input": "512", "output": "64", "concurrency": [1, 8], "requests": 24},
    {"input": "uniform:200:1200", "output": "uniform:16:64", "rate": [4], "requests": 40},
]
CLOCK = re.compile(r"\d{8}-\d{6}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?")
CLIENT = re.compile(r"^- client: .*$", re.M)
VOLATILE = frozenset({"run_dir", "run_id", "run", "client", "created", "file", "path"})


def plain(value: Any) -> Any:
    """`value` less clocks, paths and what machine this is, numbers to nine digits."""
    if isinstance(value, dict):
        # A finding's values are those of its words.
        left_out = VOLATILE | {"values"} if "evidence" in value else VOLATILE
        return {str(key): plain(each) for key, each in value.items() if key not in left_out}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, str):
        return CLIENT.sub("- client", CLOCK.sub("TIME", value))
    return value


def attempt(function: Any, *arguments: Any, **options: Any) -> Any:
    """Return the document or the value that a call gives, or the one line that it refuses with."""
    try:
        result = function(*arguments, **options)
        return result.document() if hasattr(result, "document") else result
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def sizes() -> Iterator[tuple[str, Any]]:
    from loadstone import catalogue

    for model in catalogue.models():
        yield model.name, attempt(loadstone.size, model.name, gpu=GPUS, gpus=[1, 8], batch=[1, 32])
    for engine in ("sglang", "tensorrt-llm", "llama.cpp"):
        for name in ("llama-3.1-8b", "deepseek-v3", "qwen3-32b", "gemma-3-27b", "gpt-oss-120b"):
            yield (
                f"{engine} {name}",
                attempt(loadstone.size, name, gpu=GPUS, gpus=[8], engine=[engine]),
            )


def simulations() -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for i, deployment in enumerate(SIMULATED):
            for j, load in enumerate(LOADS):
                if j and i % 4:
                    continue
                document = attempt(loadstone.simulate, deployment, out=folder, draws=4, **load)
                yield f"{deployment} {load['input']} {load['output']}", document


def validations() -> Iterator[tuple[str, Any]]:
    for name in ("public_points", "vendor_tables"):
        document = loadstone.validate_points(ROOT / "benchmarks" / f"{name}.csv").document()
        rows = document.pop("rows")
        yield f"{name} summary", document
        for start in range(0, len(rows), 40):
            yield f"{name} {start}", rows[start : start + 40]


def imports(paths: list[Path], base: Path, **options: Any) -> Iterator[tuple[str, Any]]:
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            runs = attempt(loadstone.import_files, [path], folder)
            document = (
                runs
                if isinstance(runs, dict)
                else [loadstone.open_run(run).summary().document() for run in runs]
            )
            text = json.dumps(document).replace(folder, "OUT").replace(str(path), path.name)
            yield path.relative_to(base).as_posix(), json.loads(text)


def dialects() -> Iterator[tuple[str, Any]]:
    yield from imports(sorted((HERE / "analyse" / "dialects").glob("*.json")), HERE / "analyse")


def shared() -> Iterator[tuple[str, Any]]:
    files = sorted(path for path in SHARED.rglob("*") if path.suffix in (".json", ".jsonl", ".csv"))
    yield from imports([path for path in files if path.stat().st_size < 3e6], SHARED)


def verbs() -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        load: dict[str, Any] = {
            "input": "256",
            "output": "32",
            "concurrency": [1, 8],
            "requests": 16,
            "draws": 4,
        }
        a, b = (
            loadstone.simulate(
                f"llama-3.1-70b@{gpus}", out=folder, slo="ttft<1s,tpot_p99<40ms", **load
            ).document()["run_dir"]
            for gpus in ("4xh100", "4xh200")
        )
        where = {a: "A", b: "B", Path(a).name: "A", Path(b).name: "B", folder: "OUT"}

        def named(text: str) -> str:
            for old, new in where.items():
                text = text.replace(old, new)
            return text

        yield (
            "compare",
            json.loads(
                named(json.dumps(loadstone.compare(a, b, price="h100=2,h200=3").document()))
            ),
        )
        yield (
            "query",
            loadstone.query_runs(
                "select status, count(*) from records group by all order by all", folder
            ).document(),
        )
        for kind in ("md", "csv"):
            (written,) = loadstone.write_report(
                [a, b], Path(folder) / f"report.{kind}", price="h100=2,h200=3"
            )
            yield f"report {kind}", named(written.read_text("utf-8"))
        for kind in ("csv", "vllm", "sglang"):
            text = named(
                loadstone.export_run(a, kind, Path(folder) / f"x.{kind}").read_text("utf-8")
            )
            yield (
                f"export {kind}",
                text if kind == "csv" else [json.loads(line) for line in text.splitlines()],
            )


GROUPS = {
    "sizes": sizes, "simulations": simulations, "validations": validations, "dialects": dialects, "shared": shared,
    "verbs": verbs,
}  # fmt: skip


DETAILS = frozenset(
    {"ci95", "worth", "std", "min", "max", "p90", "p95", "ttft_intended_s", "e2e_intended_s"}
)
"""Parts of a document that follow from what is kept, or tell little more."""


SIZE_FIGURES = (
    "gpu", "gpus", "tp", "ep", "dp", "batch", "weights_bytes", "kv_bytes_per_token", "activation_bytes",
    "free_bytes", "max_context_tokens", "max_concurrent_requests",
)  # fmt: skip


def figures(value: Any, place: str = "") -> dict[str, Any]:
    """Flatten a document into `place: figure`, less what is unknown; a text stands line by line."""
    if isinstance(value, str) and "\n" in value:
        value = value.splitlines()
    if isinstance(value, dict):
        parts = [(str(key), part) for key, part in value.items() if key not in DETAILS]
    elif isinstance(value, list | tuple):
        parts = [(str(i), part) for i, part in enumerate(value)]
    elif value in (None, False, ""):
        return {}
    else:
        return {place: float(f"{value:.6g}") if isinstance(value, float) else value}
    flat: dict[str, Any] = {}
    for key, part in parts:
        flat |= figures(part, f"{place}.{key}" if place else key)
    return flat


def compute(group: str, full: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the figures of each case of a group."""
    cases = {}
    for name, value in GROUPS[group]():
        document = plain(value)
        if group == "sizes" and "rows" in document:
            rows = [" ".join(str(row[key]) for key in SIZE_FIGURES) for row in document["rows"]]
            document = {"": " ".join(SIZE_FIGURES), **{str(i): row for i, row in enumerate(rows)}}
        cases[name] = figures(document)
        if full is not None:
            path = full / group / re.sub(r"[^\w.-]+", "_", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document, indent=1, sort_keys=True))
    return cases


def kept(group: str) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = json.loads((FOLDER / f"{group}.json").read_text())
    return cases


def write(group: str, cases: dict[str, dict[str, Any]]) -> None:
    """Write a case a line, so that a difference names its case."""
    lines = (f"{json.dumps(name)}: {json.dumps(flat)}" for name, flat in cases.items())
    (FOLDER / f"{group}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differing(group: str, full: Path | None = None) -> list[str]:
    """Return `case: figure: kept → today` of each figure that differs, came or went."""
    old, new = kept(group), compute(group, full)
    return [
        f"{case}: {place}: {before} → {today}"
        for case in sorted({*old, *new})
        for place in {**old.get(case, {}), **new.get(case, {})}
        for before, today in [(old.get(case, {}).get(place), new.get(case, {}).get(place))]
        if before != today
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", default=[], help=", ".join(GROUPS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--full", type=Path)
    given = parser.parse_args()
    status = 0
    for group in given.groups or GROUPS:
        if group == "shared" and not SHARED.exists():
            print(
                "shared: skipped, the shared results are not beside this checkout", file=sys.stderr
            )
        elif given.write:
            FOLDER.mkdir(exist_ok=True)
            write(group, compute(group, given.full))
        elif names := differing(group, given.full):
            status = 1
            print(f"{group}: {len(names)} differ", *names[:12], sep="\n  ")
        else:
            print(f"{group}: the same")
    sys.exit(status)


if __name__ == "__main__":
    main()
