"""What the program prints is what it printed: digests in tests/golden, written by
tests/golden.py."""

import pytest

import golden


@pytest.mark.slow
@pytest.mark.parametrize("group", golden.GROUPS)
def test_outputs_are_those_that_are_kept(group: str) -> None:
    if group == "shared" and not golden.SHARED.exists():
        pytest.skip("the shared results are not beside this checkout")
    assert golden.differing(group) == [], (
        "see `python tests/golden.py --full DIR` on both commits, and diff -r"
    )
