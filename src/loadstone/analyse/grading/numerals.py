"""Reads numbers as people write them: with marks of thousands of several kinds, as fractions, with
words that multiply. Every pattern takes linear time."""

import re
import unicodedata
from collections.abc import Callable, Iterator
from fractions import Fraction

MARKS_OF_THOUSANDS = "'’_\u00a0\u2009\u202f"
SPACES = re.compile(rf"(?<=\d)[ {MARKS_OF_THOUSANDS}](?=\d{{3}}(?!\d))")
"""Separators of thousands other than commas and full stops."""
SPELLING = re.compile(rf"(?<=\d)[ ,{MARKS_OF_THOUSANDS}](?=\d{{3}}(?!\d))|(?<=\d)\.0+(?!\.?\d)")
"""What can be left out of a whole number."""
_LETTERS = {"k": 10**3, "K": 10**3, "M": 10**6, "bn": 10**9}
"""What multiplies as part of a number: `1.5k`."""
_WORDS = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "tausend": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "millionen": 10**6,
    "mio": 10**6,
    "mn": 10**6,
    "crore": 10**7,
    "billion": 10**9,
    "bn": 10**9,
    "mrd": 10**9,
    "trillion": 10**12,
}
"""What multiplies, or is the unit in which a question asks: `1.2 million`."""
_SCALE = (
    rf"(?:(?<=\d)(?P<letter>{'|'.join(_LETTERS)})|[\s\\~-]{{0,3}}(?:\\(?:text|mathrm)\{{\s*)?"
    rf"(?i:(?P<word>{'|'.join(_WORDS)})s?))(?![^\W_])\}}?"
)
_SCALED = re.compile(rf"(?:{_SCALE})\.?\Z")
_DOTTED = (
    r"[0-9]{1,3}(?:(?:\.[0-9]{3}){2,9}(?:,[0-9]+)?|(?:\.[0-9]{3}){1,9},[0-9]{1,2})(?![.,]?\d)"
    r"|0,[0-9]+(?![.,]?\d)"
)
"""Full stops between thousands, or a decimal comma, where it can be nothing else."""
NUMBER = re.compile(
    r"(?:(?<![\w.)\]])-)?\$?(?=\.?[0-9])"
    r"(?:[0-9]{1,9}\s{1,3}(?:and\s{1,3})?[0-9]{1,4}/[1-9][0-9]{0,3}(?![/\d])"
    rf"|{_DOTTED}"
    rf"|(?:[0-9]{{1,3}}(?:[ {MARKS_OF_THOUSANDS}][0-9]{{3}}){{1,9}}(?!\d)"
    r"|[0-9]{1,3}(?:,[0-9]{2,3}){0,9},[0-9]{3}(?!\d)|[0-9]+)?"
    rf"(?:\.[0-9]+|/[1-9][0-9]*(?![/\d]))?)(?:{_SCALE})?"
)
_COMMA_IS_POINT = re.compile(rf"-?\$?(?:{_DOTTED})")
_VALUE = re.compile(r"-?(?:\d{1,100}(?:/0{0,99}[1-9]\d{0,99})?|\d{0,100}\.\d{1,100})")
_MIXED = re.compile(r"(-?)(\d{1,100})\+(\d{1,100}/0{0,99}[1-9]\d{0,99})")
_WHOLE_BEFORE = re.compile(
    r"(?<=\d)\s*(?:\\[,;: ]\s*)?(?=\\[dtc]?frac\s*(?:\{\d+\}|\d)\s*(?:\{\d+\}|\d))"
    r"|(?<=\d)\s+(?:and\s+)?(?=\d+\s*[/⁄]\s*\d)"
)
"""The place between the two parts of a mixed number."""


def readings(
    text: str, value: Callable[[str], Fraction | str] | None = None
) -> Iterator[Fraction | str]:
    """Yield what a number may mean, and what multiplies it: a word may be a unit, then either."""
    value = value or number_of
    scale = _SCALED.search(text)
    if scale is None:
        yield value(text)
        return
    plain, letter = value(text[: scale.start()]), scale["letter"]
    if not letter:
        yield plain
    if isinstance(plain, Fraction):
        yield plain * (_LETTERS[letter] if letter else _WORDS[scale["word"].lower()])


def value_of(text: str) -> Fraction | str:
    """Return the value of digits, a fraction, or a whole number, `+` and a fraction; a text as it
    is."""
    mixed = _MIXED.fullmatch(text)
    if mixed is not None:
        value = int(mixed[2]) + Fraction(mixed[3])
        return -value if mixed[1] else value
    return Fraction(text) if _VALUE.fullmatch(text) else text


def plain_number(text: str) -> str:
    """Return a number as it is compared as text: without commas, dollars, one full stop at the end,
    and what comes before the answer's mark."""
    return text.rpartition("#### ")[2].replace(",", "").replace("$", "").removesuffix(".").lower()


def number_of(text: str) -> Fraction | str:
    """Return a number's value, without separators of thousands; its text where it is none."""
    return value_of(SPACES.sub("", plain_number(mark_parts(text))))


def mark_parts(text: str) -> str:
    """Write `+` between the two parts of a mixed number, and a decimal comma as a point, without
    full stops between thousands."""
    if _COMMA_IS_POINT.fullmatch(text):
        text = text.replace(".", "").replace(",", ".")
    return _WHOLE_BEFORE.sub("+", spell_fractions(text))


def spell_fractions(text: str) -> str:
    """Write ½ as 1/2, apart from a number before it."""
    return re.sub(
        "[¼-¾⅐-⅞]",
        lambda found: " " + unicodedata.normalize("NFKC", found[0]).replace("\u2044", "/"),
        text,
    )


def spell_out(text: str) -> str:
    """Write whole numbers that have full stops between thousands, or are multiplied, in digits."""

    def spell(found: re.Match[str]) -> str:
        if not (_SCALED.search(found[0]) or _COMMA_IS_POINT.fullmatch(found[0])):
            return found[0]
        *_, value = readings(found[0])
        return str(value) if isinstance(value, Fraction) and value.denominator == 1 else found[0]

    return NUMBER.sub(spell, text)
