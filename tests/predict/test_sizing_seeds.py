"""docs/seeds.md, "Memory", and its table of contexts: every number is computed anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadstone import catalogue
from loadstone.catalogue import parse_worker
from loadstone.engines import rules_of
from loadstone.predict.sizing.size import size

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text()
CONTEXTS = (ROOT / "benchmarks" / "results" / "seeds_contexts.md").read_text()
LADDER = (4, 8, 16, 32, 64, 128)
MODELS = (
    "neuralmagic/Meta-Llama-3.1-8B-FP8",
    "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8",
    "NousResearch/Hermes-3-Llama-3.1-405B-FP8",
    "mistral-7b",
    "mixtral-8x7b",
    "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "mistral-nemo",
    "mistral-large",
)


def contexts() -> list[tuple[str, str, int, int]]:
    """(GPUs, model, what 003 says, what the page says of ours)."""
    table = CONTEXTS.partition("<!-- 003 -->")[2].partition("\n\n")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.match(r"[1-8]×[ah]100", cells[0]):
            for model, cell in zip(MODELS, cells[1:], strict=True):
                theirs, ours = cell.split("/")
                found.append((cells[0].replace("×", "x"), model, int(theirs), int(ours)))
    return found


def longest(gpus: str, model: str, version: str) -> int:
    """The last rung that fits, in 1,024 tokens; tried as a person would, rung by rung."""
    deployment = parse_worker(f"{model}@{gpus}/tp{gpus[0]},version={version}")
    limit = rules_of(deployment).context_limit or 0
    return max(
        (n for n in LADDER if n * 1024 <= limit and size(deployment, n * 1024).fits), default=0
    )


def test_all_of_003_is_there() -> None:
    assert len(contexts()) == 64


@pytest.mark.parametrize(("gpus", "model", "theirs", "ours"), contexts())
def test_003s_longest_contexts(gpus: str, model: str, theirs: int, ours: int) -> None:
    found = longest(gpus, model, "0.6.0")
    assert found == ours
    rungs = (0, *LADDER)
    assert abs(rungs.index(found) - rungs.index(theirs)) <= 1


def test_003_by_todays_rules() -> None:
    differ = {
        (gpus, model): found
        for gpus, model, _, ours in contexts()
        if (found := longest(gpus, model, "0.32.0")) != ours
    }
    assert differ == {
        ("1xa100", "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8"): 8,
        ("4xa100", "mistralai/Mixtral-8x22B-Instruct-v0.1"): 64,
        ("4xh100", "mistralai/Mixtral-8x22B-Instruct-v0.1"): 32,
    }


@pytest.mark.parametrize(
    ("row", "name", "kv_per_token", "query_heads"),
    [
        ("Llama-3 8B", "llama-3.1-8b", 131_072, 32),
        ("Llama-3 70B", "llama-3.1-70b", 327_680, 64),
        ("Llama-3 405B", "llama-3.1-405b", 516_096, 128),
        ("Mixtral 8×22B", "mixtral-8x22b", 229_376, 48),
    ],
)
def test_001s_table(row: str, name: str, kv_per_token: int, query_heads: int) -> None:
    cells = re.search(
        rf"^\| {row} \| [^|]* \| ([\d,.]+) \| [^|]* \| ([\d,.]+) \| ([\d,.]+) \| ",
        PAGE,
        re.MULTILINE,
    )
    assert cells
    weights, formula, kv = (float(cell.replace(",", "")) for cell in cells.groups())
    model = catalogue.model(name)
    tokens = 131_072 * 32
    assert model.kv_bytes_per_token("bf16") == kv_per_token
    assert weights == pytest.approx(model.weights_bytes() / 1e9, abs=0.05)
    assert kv == pytest.approx(kv_per_token * tokens / 1e9, abs=0.05)
    assert formula == pytest.approx(kv_per_token / 8 * query_heads * tokens / 1e9, abs=0.5)


def test_what_fits_in_its_place() -> None:
    def held(name: str, gpus: int, context: int) -> int:
        return size(
            parse_worker(f"{name}@{gpus}xh200/tp{gpus}"), context, 32
        ).max_concurrent_requests

    assert size(parse_worker("llama-3.1-8b@8xh200"), 131_072, 32).fits
    assert not size(parse_worker("llama-3.1-8b@4xh200"), 131_072, 32).fits
    assert [held(name, 8, 131_072) for name in ("llama-3.1-70b", "llama-3.1-405b")] == [21, 3]
    assert held("mixtral-8x22b", 8, 65_536) == 52
    assert "beyond the 8,192" in size(parse_worker("llama-3-70b@8xh200"), 131_072).why


def test_000s_bf16_does_not_fit_one_node() -> None:
    one = size(parse_worker("deepseek-v3:bf16@8xh200/engine=sglang"))
    assert (one.fits, round(one.weights_bytes / 1e9), round(one.usable_bytes / 1e9)) == (
        False,
        1356,
        1201,
    )
    assert size(parse_worker("deepseek-v3@8xh200/engine=sglang")).fits
    assert size(parse_worker("deepseek-v3:bf16@16xh200/engine=sglang")).fits
    assert not size(parse_worker("deepseek-v3@8xh100/engine=sglang")).fits
    assert size(parse_worker("llama-3.1-405b@8xh200/engine=sglang")).fits
