"""An article's observations, derived again from its own numbers (DeepSeek-R1 on MI300X and H200,
dstack, 2025).

docs/reports.md has the same in words: what the data bears out, and what it does not.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadstone.interop.read import import_files
from loadstone.report.data.runs import read_runs
from loadstone.report.pages.document import Report, build

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "results" / "dstack"
FILES = [DATA / "online_results.csv", DATA / "offline_results.csv"]

pytestmark = pytest.mark.skipif(
    not FILES[0].exists(), reason=f"the article's results are not at {DATA}"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    out = tmp_path_factory.mktemp("dstack")
    found = import_files(FILES, out, given=["model=deepseek-ai/DeepSeek-R1", "gpus=8"])
    runs, passed_over = read_runs(found.runs)
    assert not passed_over
    return build(runs, inside=False)


PICTURES = {
    "online throughput against latency": ("throughput-e2e", "DeepSeek-R1"),
    "offline throughput against latency": ("offline-throughput-latency", "800 out"),
    "online throughput by output length": ("total_tok_s-by-output", "concurrency 128"),
    "online latency by output length": ("e2e-by-output", "concurrency 128"),
    "offline throughput by output length, batch 256": (
        "offline-total_tok_s-by-output",
        "batch 256",
    ),
    "offline latency by output length, batch 256": ("offline-batch_s-by-output", "batch 256"),
    "TTFT by concurrency": ("ttft-by-load", "800 out"),
    "TPOT by concurrency": ("tpot-by-load", "800 out"),
    "TTFT by output length": ("ttft-by-output", "concurrency 128"),
    "TTFT by output length, without those that tower": ("ttft-by-output", "concurrency 128"),
    "TPOT by output length": ("tpot-by-output", "concurrency 128"),
    "shared prefix: throughput": ("prefix-output_tok_s", "DeepSeek-R1"),
    "shared prefix: TTFT": ("prefix-ttft", "DeepSeek-R1"),
    "shared prefix: TPOT": ("prefix-tpot", "DeepSeek-R1"),
    "shared prefix: latency": ("prefix-e2e", "DeepSeek-R1"),
}


@pytest.mark.parametrize("picture", PICTURES)
def test_each_of_the_fifteen_pictures_is_drawn(report: Report, picture: str) -> None:
    key, word = PICTURES[picture]
    found = [figure for figure in report.figures if re.sub(r"-\d+$", "", figure.key) == key]
    assert any(word in " ".join([figure.title, *figure.notes]) for figure in found), [
        f.key for f in report.figures
    ]


def test_what_towers_does_not_press_the_others_flat(report: Report) -> None:
    """The article has a second chart, without the two of them; a logarithmic axis shows all."""
    figure = next(figure for figure in report.figures if figure.key == "ttft-by-output")
    scales = [layer["encoding"]["y"].get("scale") or {} for layer in figure.spec["layer"]]
    assert "log" in {scale.get("type") for scale in scales}


CLAIMS = {
    "TensorRT-LLM reaches the highest online throughput on H200, 4,176 tok/s": [
        "Highest online throughput on 8×H200",
        "TensorRT-LLM on 8×H200 with 4,176 tok/s of input and output (835.2 of output)",
        "not clearly above the next, SGLang on 8×H200 (4,013",
    ],
    "below concurrency 128, vLLM leads online on H200, in throughput": [
        "On 8×H200, vLLM has the highest output throughput at concurrency 4 to 64",
    ],
    "below concurrency 128, vLLM leads online on H200, in latency": [
        "On 8×H200, vLLM has the lowest E2E latency at concurrency 4 to 64", "TensorRT-LLM at concurrency 128",
    ],
    "offline, SGLang on H200 is highest with 6,311 tok/s": [
        "Highest offline throughput",
        "SGLang on 8×H200 with 6,311 tok/s of input and output (1,262 of output) at batch 512",
    ],
    "vLLM on MI300X reaches 4,574 tok/s, the highest online": [
        "Highest online throughput: ", "vLLM on 8×MI300X with 4,574 tok/s of input and output (914.7 of output)",
    ],
    "vLLM leads SGLang offline on MI300X at every batch": [
        "On 8×MI300X, vLLM has the highest output throughput at every batch size measured (32 to 1024)", "800 out",
    ],
    "online on MI300X SGLang leads below 32, vLLM from 64": [
        "On 8×MI300X, SGLang has the highest output throughput at concurrency 4 to 16",
        "vLLM at concurrency 64 and 128",
    ],
    "longer answers: SGLang leads online on H200, by far more than slightly": [
        "On 8×H200, SGLang has the highest output throughput at output length 1600 to 6400", "a factor of 2.55",
    ],
    "longer answers: vLLM leads online on MI300X": [
        "On 8×MI300X, vLLM has the highest output throughput at every output length measured (800 to 6400)",
    ],
    "TTFT on H200: TensorRT-LLM is lowest from 16 on, to 128 too": [
        "On 8×H200, TensorRT-LLM has the lowest TTFT at concurrency 16 to 128", "told apart at 4 and 8",
    ],
    "TPOT on H200: vLLM is lowest but for 16, where nothing tells": [
        "On 8×H200, vLLM has the lowest TPOT at concurrency 4, 8 and 32 to 128", "told apart at 16",
    ],
    "TPOT on MI300X: SGLang to 16, vLLM from 64": [
        "On 8×MI300X, SGLang has the lowest TPOT at concurrency 4 to 16",
        "vLLM at concurrency 64 and 128", "told apart at 32",
    ],
    "TTFT by output length: SGLang on H200 steady, vLLM and TensorRT-LLM rise": [
        "TTFT at concurrency 128 from 800 to 6,400 output tokens", "steady for SGLang on 8×H200",
        "TensorRT-LLM on 8×H200's grows 98.1×", "vLLM on 8×H200's grows 15.4×",
    ],
    "TPOT by output length: vLLM on H200 jumps at 6,400": [
        "TPOT at concurrency 128 from 800 to 6,400 output tokens", "vLLM on 8×H200's grows 1.92×",
        "most of it from 3,200 to 6,400 (2.06×)",
    ],
    "shared prefix on H200: vLLM leads in throughput": [
        "On 8×H200, vLLM has the highest output throughput at every concurrency measured (32 to 128)",
        "a prefix shared",
    ],
    "shared prefix: vLLM's TPOT rises at 128, but falls at 32": [
        "vLLM on 8×H200 with a prefix shared", "TPOT 39% (27–53) higher at 128", "TPOT 7.3% (3.9–11) lower at 32",
    ],
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_the_data_shows_is_said(report: Report, claim: str) -> None:
    texts = [sentence.whole for sentence in report.sentences]
    assert any(all(part in text for part in CLAIMS[claim]) for text in texts), "\n".join(texts)


def test_what_the_data_does_not_show_is_not_said(report: Report) -> None:
    """The article: vLLM leads SGLang on MI300X online, and has the lowest TPOT on H200 at all
    concurrencies."""
    texts = [sentence.text for sentence in report.sentences]
    online = [text for text in texts if "batch size" not in text and "output length" not in text]
    everywhere = [text for text in online if "at every concurrency measured" in text]
    assert everywhere
    assert not [text for text in everywhere if "MI300X" in text]
    assert not [text for text in everywhere if "lowest TPOT" in text]


def test_no_throughput_is_said_without_its_kind(report: Report) -> None:
    for sentence in report.sentences:
        for found in re.finditer(r"[\d,.]+ tok/s", sentence.text):
            rest = sentence.text[found.end() : found.end() + 40]
            before = sentence.text[: found.start()]
            said = (
                "of input and output" in rest
                or "of output" in rest
                or "output throughput" in before
            )
            assert said, sentence.text
