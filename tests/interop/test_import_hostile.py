"""Files made to break an import: it names what is wrong in one line, and reads what else there
is."""

import gzip
import io
import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.interop.read import detect, files, import_files
from loadstone.interop.read.folders import run_folders
from summary_documents import summarise
from test_import import SGLANG, VLLM, document, kinds, save
from test_import_fuzz import AIPERF, AIPERF_ROW, GUIDELLM

ONE = {
    "num_prompts": 1,
    "completed": 1,
    "ttfts": [0.5],
    "itls": [[0.25, 0.25]],
    "errors": [""],
    "output_lens": [3],
}
TEXT = json.dumps(SGLANG)


# --- a folder with one odd file -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("odd", "evidence"),
    [
        ({"output_lens": [-1], "input_lens": [10]}, "output_lens is -1"),
        ({"input_lens": [10**9]}, "1 of 1 requests state more than"),
        ({"input_lens": [10], "output_lens": [10**18]}, "1 of 1 requests state more than"),
        ({"completed": -5}, "completed is -5"),
        ({"total_input_tokens": -1, "duration": -4.0}, "duration is -4, total_input_tokens is -1"),
    ],
)
def test_numbers_that_cannot_be_are_named_and_the_rest_is_read(
    tmp_path: Path, odd: dict[str, Any], evidence: str
) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    save(inside, "a.json", VLLM | {"model_id": "good"})
    save(inside, "b.json", VLLM | ONE | odd)
    imported = import_files([inside], tmp_path / "runs")
    assert len(imported.runs) == 2
    (finding,) = (
        finding for finding in imported.findings if finding["kind"] == "impossible_number"
    )
    assert finding["evidence"].startswith("b.json: ")
    assert evidence in finding["evidence"]
    for run in imported.runs:
        summarise(run)
        run_folder.read_plan(run)


def test_a_run_that_cannot_be_written_leaves_nothing_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    for name in "abc":
        save(inside, f"{name}.json", VLLM | {"model_id": name})
    written: Callable[..., Any] = run_folder.assemble
    calls: list[Path] = []

    def assemble(folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 2:
            raise InputError("numbers that do not fit")
        written(folder)

    monkeypatch.setattr(run_folder, "assemble", assemble)
    imported = import_files([inside], tmp_path / "runs")
    assert sorted((tmp_path / "runs").iterdir()) == sorted(imported.runs)
    assert len(imported.runs) == 2
    (finding,) = (finding for finding in imported.findings if finding["kind"] == "broken")
    assert finding["evidence"] == "b.json: left out (numbers that do not fit)"
    calls[:] = [tmp_path]
    with pytest.raises(InputError, match="do not fit"):
        import_files([inside / "a.json"], tmp_path / "others")
    assert not list((tmp_path / "others").iterdir())


# --- contents that are no result ------------------------------------------------------------------


def zipped(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", b"", "empty"),
        ("a.json", b"\n" * 1_000_000, "empty"),
        ("a.json", b"\xef\xbb\xbf", "empty"),
        ("a.json", b"\0" * 1_000_000, "binary"),
        ("a.json", b"{" + b"\0" * 1_000_000, "binary"),
        (
            "a.json",
            random.Random(1).randbytes(1000).replace(b"\0", b"") + b"\0",
            "binary|CSV|no column|only text",
        ),
        ("a.json", TEXT.encode()[:-20], "no JSON"),
        ("a.json", TEXT.encode("utf-16")[:-1], "no JSON|not a result"),
        ("a.json", b"[" * 100_000, "nested too deep|no JSON"),
        ("a.json", b'{"a":' * 100_000, "nested too deep|no JSON"),
        ("a.json", b"[" + b"[]," * 1000 + b"[]]", "not a result"),
        ("a.json", b'{"duration": 1' + b"0" * 5000 + b"}", "no JSON|not a result"),
        ("a.json", b"[1, 2, 3]", "not a result"),
        ("a.json", b"NaN", "no column|not a result"),
        ("a.json", b'"text"', "no column|not a result"),
        ("a.jsonl", TEXT.encode() + b"\n[1]\n", "line 2: not a JSON object"),
        ("a.yaml", b"- " * 200_000, "deep"),
        ("a.yaml", b"a: &a [*a]", "stands for nothing"),
        ("a.yaml", b"{a: " * 200_000, "no JSON|deep"),
        ("a.yaml", b"x: !!timestamp y", "no YAML"),
        ("a.yaml", b"a: b\n" * 4_000_000, "too large"),
        ("a.csv", b'concurrency,ttft_p50_ms\n"' + b"x" * 300_000, "no CSV"),
        ("a.csv", b"a" * 300_000, "no CSV"),
        ("a.csv", b",".join(b"a" for _ in range(100_000)), "no column"),
        ("a.json.gz", gzip.compress(TEXT.encode()), "gzip, and only text is read; unpack"),
        ("a.json", gzip.compress(b"\n" * 10_000_000), "gzip, and only text is read; unpack"),
        ("a.json", zipped(b"0" * 10_000_000), "a ZIP archive"),
    ],
)
def test_contents_that_are_no_result(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as raised:
        import_files([path], tmp_path / "runs")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000
    assert not (tmp_path / "runs").exists()


def test_files_with_more_than_memory_should_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(files, "MAX_VALUES", 1000)
    monkeypatch.setattr(files, "MAX_LINES", 1000)
    monkeypatch.setattr(files, "MAX_RESULTS", 10)
    for name, content, reason in (
        (
            "rows.csv",
            "concurrency,ttft_p50_ms\n" + "4,500\n" * 11,
            "more than 10 results; split it",
        ),
        ("rows.jsonl", "{}\n" * 11, "more than 10 results; split it"),
        ("large.json", "{" + " " * (2 << 20), "more than 1 MiB; split it"),
        ("values.json", "[" + "{}," * 1000 + "{}]", "more than 1,000 values; split it"),
        ("lines.jsonl", "{}\n" + "\n" * 1000 + "{}", "more than 1,000 lines; split it"),
        ("lines.csv", "a,b\n" + "\n" * 1001 + "1,2", "more than 1,000 lines; split it"),
    ):
        with pytest.raises(InputError, match=reason):
            import_files([save(tmp_path, name, content)], tmp_path / "runs")


# --- files that are none --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "gone", "unreadable"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "unreadable":
        path.write_text(TEXT)
        path.chmod(0)
        if os.geteuid() == 0:
            pytest.skip("root reads every file")
    with pytest.raises(InputError, match="cannot be read") as raised:
        import_files([path], tmp_path / "runs")
    assert str(raised.value).isprintable()


def test_of_a_folder_only_files_are_read(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    save(inside, "a.json", SGLANG)
    os.mkfifo(inside / "b.json")
    (inside / "c.json").symlink_to(inside / "c.json")
    (inside / "d").symlink_to(inside)
    (inside / "e.json").mkdir()
    (inside / "f.json").symlink_to("/dev/zero")
    (inside / "profile_export_aiperf.json").write_text(json.dumps(AIPERF))
    os.mkfifo(inside / "profile_export.jsonl")
    imported = import_files([inside], tmp_path / "runs")
    assert len(imported.runs) == 2


def test_names_reach_no_terminal(tmp_path: Path) -> None:
    inside = tmp_path / "in\x1b[31m\n"
    inside.mkdir()
    save(inside, "a\x1b]0;x\x07\nb.json", SGLANG | {"backend": "\x1b[2J\u202e"})
    save(inside, "c\rd.json", "{")
    imported = import_files([inside], tmp_path / "runs")
    assert all(finding["evidence"].isprintable() for finding in imported.findings)
    assert "\x1b" not in (imported.runs[0] / "run.json").read_text()
    with pytest.raises(InputError) as raised:
        import_files([inside / "c\rd.json"], tmp_path / "runs")
    assert str(raised.value).isprintable()


# --- contents that are results all the same -------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        json.dumps(SGLANG, indent=1).replace("\n", "\r\n").encode(),
        b"\n\n \t" + TEXT.encode() + b"\n\n",
        TEXT.replace('{"backend"', '{"backend": "x", "backend": "y", "backend"', 1).encode(),
        f"[{TEXT}]".encode(),
        TEXT.replace('"duration"', '"unknown": ' + "[" * 400 + "]" * 400 + ', "duration"').encode(),
        (TEXT + "\r\n").encode(),
    ],
)
def test_other_spellings_of_the_same(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    (cell,) = document(import_files([path], tmp_path / "runs"))["cells"]
    assert cell["metrics"]["ttft_s"]["p50"] == 0.5


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_tables_by_any_end_of_line(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        end.join(["concurrency,ttft_p50_ms,duration_s", "4,500,1", '8,"600",-3']).encode()
    )
    imported = import_files([path], tmp_path / "runs")
    cells = document(imported)["cells"]
    assert [cell["metrics"]["ttft_s"]["p50"] for cell in cells] == [0.5, 0.6]
    assert kinds(imported) >= {"impossible_number"}


def test_mixed_kinds_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2: not a result"):
        import_files(
            [save(tmp_path, "a.jsonl", SGLANG, AIPERF_ROW | {"metrics": None, "metadata": 1})],
            tmp_path,
        )
    with pytest.raises(InputError, match="does not state the load"):
        import_files([save(tmp_path, "b.jsonl", AIPERF_ROW)], tmp_path)


def test_times_that_go_backwards(tmp_path: Path) -> None:
    times = {
        "start_times": [5.0, 3.0, -1.0], "ttfts": [0.5, -0.5, 1e12], "itls": [[0.25, 0.25], [-5.0, 1], [1e300, 1]],
    }  # fmt: skip
    imported = import_files([save(tmp_path, "a.json", VLLM | times)], tmp_path / "runs")
    rows = [row for batch in run_folder.read_records(imported.runs[0]) for row in batch.to_pylist()]
    assert sorted(row["status"] for row in rows) == ["error", "error", "ok"]
    for row in rows:
        assert row["arrival_s"] == sorted(row["arrival_s"])
    benchmark = GUIDELLM["benchmarks"][0]
    (request,) = benchmark["requests"]["successful"]
    late = request | {"request_end_time": 1.0, "inter_token_latency_ms": -3.0}
    changed = benchmark | {"requests": benchmark["requests"] | {"successful": [late]}}
    imported = import_files(
        [save(tmp_path, "b.json", GUIDELLM | {"benchmarks": [changed]})], tmp_path / "runs"
    )
    json.dumps(document(imported), allow_nan=False)


def test_a_broken_file_beside_is_named(tmp_path: Path) -> None:
    save(tmp_path, "profile_export_aiperf.json", AIPERF)
    (tmp_path / "profile_export.jsonl").write_bytes(b"\0" * 100)
    imported = import_files([tmp_path / "profile_export_aiperf.json"], tmp_path / "runs")
    assert "broken" in kinds(imported)


def test_a_report_of_a_folder_reads_what_it_can(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    save(inside, "a.json", SGLANG)
    save(inside, "deep.yaml", "- " * 200_000)
    with run_folders([inside]) as folders:
        assert len(folders.runs) == 1
        (line,) = folders.passed_over
        assert "deep.yaml" in line


def test_every_reader_survives_documents_of_the_right_keys_and_wrong_values() -> None:
    from loadstone.interop.read.values import Value

    def filled(path: str, value: object) -> object:
        for step in reversed(path.split("|", maxsplit=1)[0].split(".")):
            value = [value] if step.isdigit() else {step: value}
        return value

    forms = [form for reader in detect.load_readers() for form in reader.documents]
    assert len(forms) == 14
    for parts, reader in forms:
        for value in (None, [], {}, "", -1, 1e400, [[]], [{}], [None], {"a": None}):
            whole: dict[str, object] = {}
            for part in parts:
                filled_part = filled(part, value)
                if isinstance(filled_part, dict):
                    for key, inner in filled_part.items():
                        before = whole.get(key)
                        both = isinstance(before, dict) and isinstance(inner, dict)
                        whole[key] = {**before, **inner} if both else inner  # type: ignore[dict-item]
            reader(Value(whole), "x")
