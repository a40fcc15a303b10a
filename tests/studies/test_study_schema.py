"""The JSON Schema of study files takes what Loadstone takes, and refuses what is misspelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conftest import Loadstone
from loadstone.studies.file import LOAD_FLAGS, WORKLOAD_FLAGS, read_study
from test_study_file import STUDY

SMALL = "study: s\ndeployments: {engine: [llama.cpp]}\nworkloads: {a: {WORKLOAD}}\nloads: {LOAD}\n"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    from loadstone.studies.schema import study_schema

    found = study_schema()
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def accepts(schema: dict[str, Any], text: str) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(yaml.safe_load(text))


def test_it_is_printed_as_json(schema: dict[str, Any], loadstone: Loadstone) -> None:
    shown = loadstone("study", "schema")
    assert shown.code == 0
    assert json.loads(shown.out) == json.loads(json.dumps(schema, allow_nan=False))


def test_it_has_every_option_of_workloads_and_loads(schema: dict[str, Any]) -> None:
    study = schema["$defs"]["Study"]["properties"]
    assert set(study["workloads"]["additionalProperties"]["properties"]) == set(WORKLOAD_FLAGS)
    assert set(study["loads"]["anyOf"][0]["properties"]) == set(LOAD_FLAGS)


@pytest.mark.parametrize(
    "text",
    [
        STUDY,
        *(path.read_text() for path in sorted(Path("examples").glob("*.yaml"))),
        SMALL.replace("WORKLOAD", "input: 1024, output: 1k, stream: false").replace("LOAD", "rate: [1, inf]"),
        SMALL.replace("WORKLOAD", "input: 8k").replace("LOAD", 'concurrency: "1,4", duration: 30s'),
        SMALL.replace("WORKLOAD", "").replace("{LOAD}", "[{concurrency: 4}, {rate: 2.5, requests: [16]}]"),
        SMALL.replace("WORKLOAD", "").replace("LOAD", "rate: 1") + "limits: {ready: 90, errors: 0.1, total: 2h}\n",
    ],
)  # fmt: skip
def test_it_takes_what_is_read(schema: dict[str, Any], tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    read_study(tmp_path / "s.yaml")
    assert accepts(schema, text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("restart: repeat", "restart: sometimes"),
        ("restart: repeat", "restrat: repeat"),
        ("range-ratio", "range-rato"),
        ("{concurrency: [4", "{concurency: [4"),
        ("repeats: 3", "repeats: three"),
        ("[vllm, sglang]", "{vllm: 1}"),
        ("{local: true}", "{local: maybe}"),
        ("image:", "imagee:"),
        ("study: r1-engines", "study: ../r1"),
    ],
)  # fmt: skip
def test_it_refuses_what_is_misspelled(schema: dict[str, Any], before: str, after: str) -> None:
    assert before in STUDY
    assert not accepts(schema, STUDY.replace(before, after, 1))
