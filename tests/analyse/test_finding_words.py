"""The words of all findings: each row of findings.toml with sample values, in finding_words.json.

python tests/analyse/test_finding_words.py --write    write the words anew, for review
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from loadstone.analyse.verdict.finding import finding, finding_rows

FILE = Path(__file__).with_name("finding_words.json")
SAMPLES: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text("utf-8"))


def words(row: str, values: dict[str, Any]) -> dict[str, Any]:
    made = finding(row, **values)
    return {"values": made.values, "evidence": made.evidence, "remedy": made.remedy}


def test_every_row_has_a_sample() -> None:
    assert [row for row in finding_rows() if not SAMPLES.get(row)] == []
    assert SAMPLES.keys() <= finding_rows().keys()


@pytest.mark.parametrize("row", SAMPLES)
def test_a_finding_is_written_in_these_words(row: str) -> None:
    for sample in SAMPLES[row]:
        assert words(row, sample["values"]) == sample
        assert f"{sample['evidence']}{sample['remedy']}".isprintable()
        assert sample["remedy"].endswith(".")


if __name__ == "__main__" and "--write" in sys.argv:
    anew = {row: [words(row, each["values"]) for each in SAMPLES[row]] for row in SAMPLES}
    FILE.write_text(f"{json.dumps(anew, indent=1, ensure_ascii=False)}\n", "utf-8")
