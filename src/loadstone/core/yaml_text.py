"""Decodes YAML that anybody may have written, with bounds that are checked before anything is built
of it.

PyYAML builds by recursion in C, which ends the process where a text of a few kilobytes is nested
deeply enough.
"""

from typing import Any

import msgspec

MOST_DEPTH = 100
MOST_VALUES = 5_000_000
"""With what aliases repeat."""
_LONGEST_NUMBER = 400
_NUMERIC = frozenset("0123456789:_+-.")


class RefusedYamlError(ValueError):
    """Something that a document may not have. `line`, `column`: where, from 1; None: not known."""

    def __init__(self, problem: str, mark: Any = None) -> None:
        super().__init__(problem)
        self.line: int | None = None if mark is None else mark.line + 1
        self.column: int | None = None if mark is None else mark.column + 1


def decode_yaml(content: str) -> object:
    """Decode a YAML document to dicts, lists, text, numbers, …. Raises ValueError, with the reason
    in one line."""
    import yaml  # type: ignore[import-untyped]

    try:
        check_yaml(content)
        decoded: object = msgspec.yaml.decode(content)
    except (
        yaml.YAMLError,
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        ValueError,
    ) as error:
        # All but the first two of these PyYAML raises over a tag that its text does not fit.
        raise ValueError(
            " ".join(str(error).split())[:200] or "a tag that its text does not fit"
        ) from None
    return decoded


def check_yaml(content: str, most_depth: int = MOST_DEPTH, aliases: bool = True) -> None:
    """Check depth and size of the document, with its aliases written out: from its events, which
    take no recursion.

    Raises RefusedYamlError, and yaml.YAMLError where it is no YAML. Without `aliases` one is
    refused.
    """
    import yaml

    # Of every collection that is open: its anchor, the depth below it, the values in it.
    opened: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    anchors: dict[str, tuple[int, int]] = {}
    for event in yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 0, 0))
            depth = values = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, depth, values = opened.pop()
            depth, values = depth + 1, values + 1
            if anchor is not None:
                anchors[anchor] = depth, values
        elif isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise RefusedYamlError(
                    "anchors and aliases are not read; write it out", event.start_mark
                )
            if event.anchor not in anchors:
                problem = f"*{event.anchor} stands for nothing before it, or for what it is in"
                raise RefusedYamlError(problem, event.start_mark)
            depth, values = anchors[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > _LONGEST_NUMBER and _NUMERIC.issuperset(event.value):
                raise RefusedYamlError(f"a number of {len(event.value):,} digits", event.start_mark)
            depth, values = 0, 1
            if event.anchor is not None:
                anchors[event.anchor] = depth, values
        else:
            continue
        anchor, inner_depth, inside = opened[-1]
        opened[-1] = anchor, max(inner_depth, depth), inside + values
        if len(opened) - 1 + depth > most_depth:
            raise RefusedYamlError(f"nested more than {most_depth} deep", event.start_mark)
        if inside + values > MOST_VALUES:
            raise RefusedYamlError(f"more than {MOST_VALUES:,} values", event.start_mark)
