"""What the program prints, by the public functions alone, as digests: the net under what must
change no number.

    python tests/golden.py            compare with tests/golden/*.json, and name what differs
    python tests/golden.py --write    write them anew, after a change of a number that is meant

Numbers are rounded to nine digits before they are digested, since processors differ in the last
ones. `--full DIR` writes what was digested, so that two commits can be compared with `diff -r`.
"""

from __future__ import annotations

import argparse
import hashlib
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
        return {str(key): plain(each) for key, each in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, str):
        return CLIENT.sub("- client", CLOCK.sub("TIME", value))
    return value


def attempt(function: Any, *arguments: Any, **options: Any) -> Any:
    """What a call gives, or the one line that it refuses with."""
    try:
        return function(*arguments, **options)
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
        document = loadstone.validate_points(ROOT / "benchmarks" / f"{name}.csv")
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
                else [loadstone.open_run(run).summary() for run in runs]
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
            "requests": 64,
            "draws": 4,
        }
        a, b = (
            loadstone.simulate(
                f"llama-3.1-70b@{gpus}", out=folder, slo="ttft<1s,tpot_p99<40ms", **load
            )["run_dir"]
            for gpus in ("4xh100", "4xh200")
        )
        where = {a: "A", b: "B", Path(a).name: "A", Path(b).name: "B", folder: "OUT"}

        def named(text: str) -> str:
            for old, new in where.items():
                text = text.replace(old, new)
            return text

        yield (
            "compare",
            json.loads(named(json.dumps(loadstone.compare(a, b, price="h100=2,h200=3")))),
        )
        yield (
            "query",
            loadstone.query_runs(
                "select status, count(*) from records group by all order by all", folder
            ),
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


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()[:16]


def now(group: str, full: Path | None = None) -> dict[str, str]:
    """Name → digest of what the program gives today."""
    digests = {}
    for name, value in GROUPS[group]():
        digests[name] = digest(value)
        if full is not None:
            path = full / group / re.sub(r"[^\w.-]+", "_", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(plain(value), indent=1, sort_keys=True))
    return digests


def kept(group: str) -> dict[str, str]:
    digests: dict[str, str] = json.loads((FOLDER / f"{group}.json").read_text())
    return digests


def differing(group: str, full: Path | None = None) -> list[str]:
    """The names of a group whose digest is not the kept one, gone or new ones too."""
    before, after = kept(group), now(group, full)
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


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
            (FOLDER / f"{group}.json").write_text(
                json.dumps(now(group, given.full), indent=0) + "\n"
            )
        elif names := differing(group, given.full):
            status = 1
            print(f"{group}: {len(names)} differ: {'; '.join(names[:12])}")
        else:
            print(f"{group}: the same")
    sys.exit(status)


if __name__ == "__main__":
    main()
