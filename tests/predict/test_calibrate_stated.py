"""What a run says that it was measured on is believed by name: no file that it names is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadstone.analyse.run_facts import RunFacts
from loadstone.core.errors import InputError
from loadstone.runs import calibrate

FACTS = RunFacts(source="measured", stated="said")


@pytest.mark.parametrize(
    "name",
    [
        "llama-3-70b@8xh200/tp8,num_speculative_tokens=5,draft={path}",
        "llama-3-70b@8xh200/tp8,num_speculative_tokens=5,speculative_model={path}:fp8",
        "{path}@8xh200/tp8",
        "llama-3-70b@8x{path}",
    ],
)
def test_no_file_that_a_run_names_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="it names what only a file of yours describes"):
        calibrate._parse(tmp_path, name.format(path=path), FACTS)


@pytest.mark.parametrize("more", ["", ":fp8", "-instruct-awq"])
def test_what_the_catalogue_has_is_taken(tmp_path: Path, more: str) -> None:
    name = f"llama-3-70b{more}@8xh200/tp8,num_speculative_tokens=5,draft=llama-3-8b{more}"
    found = calibrate._parse(tmp_path, name, FACTS)
    assert found.decoder.draft is not None
    assert found.decoder.draft.model.name == "meta-llama/Meta-Llama-3-8B"
