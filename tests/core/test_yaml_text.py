"""core/yaml_text.py: YAML is bounded before anything is built of it."""

import pytest

from loadstone.core.yaml_text import MOST_DEPTH, decode_yaml


def test_documents_as_they_are_written() -> None:
    text = "a: {b: [1, 2.5, x]}\nc: &c {d: 1}\ne: *c\nf:\n- <<: *c\n  g: 2026-01-02\n"
    document = decode_yaml(text)
    assert isinstance(document, dict)
    assert (document["a"], document["e"]) == ({"b": [1, 2.5, "x"]}, {"d": 1})
    assert document["f"][0]["d"] == 1
    assert decode_yaml("[" * MOST_DEPTH + "]" * MOST_DEPTH) is not None


def repeats(first: str, pattern: str, again: str) -> str:
    """Thirty lines, of which each repeats the one before nine times."""
    lines = [
        f"a{n}: &a{n} " + pattern.format(",".join([again.format(n - 1)] * 9)) for n in range(1, 30)
    ]
    return "\n".join([f"a0: &a0 {first}", *lines])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 200_000, "deep"),
        ("{a: " * 200_000, "deep"),
        ("- " * 200_000, "deep"),
        ("? " * 200_000, "deep"),
        ("\n".join(" " * n + "a:" for n in range(2000)), "deep"),
        ("\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))]), "deep"),
        ("a: &a [*a]", "stands for nothing"),
        ("a: *b", "stands for nothing"),
        (repeats("[x, x]", "[{}]", "*a{}"), "values"),
        (repeats("{x: 1}", "{{<<: [{}]}}", "*a{}"), "values"),
        (":".join(["1"] * 400_000), "digits"),
        (":".join(["1"] * 190) + ".5", "too large"),
        ("9" * 5000, "digits"),
        ("!!timestamp foo", "."),
        ('!!int ""', "."),
        ("!!bool x", "."),
        ("!!python/object:os.system x", "tag"),
        ("2026-13-45", "month"),
        ("[1, 2]: 3", "unhashable"),
        ("a\n---\nb", "single document"),
        ("a: \x1b[31m", "control characters"),
        ("a: \0", "control characters"),
    ],
)
def test_what_would_end_or_fill_the_process_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        decode_yaml(text)
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
