"""Tells what an answer says that it is not. Every rule takes linear time: what it looks at is
bounded."""

import re

_WRONG = r"(?:wrong|incorrect|false|impossible|untrue|invalid|mistaken|too|ruled out|excluded)\b"
_MISTAKE = r"(?:the|an?)\s+(?:\w+\s+)?(?:mistake|misconception|myth|trap|error)\b"
_NEAR = 80
"""Characters before a value in which it may be denied."""

_BESIDE = r"\b(?:rather than|instead of|unlike)"
"""Denials in passing."""
_BEFORE = (
    r"\b(?:not(?!\s+(?:only|just|merely|least|doubt|deny))|never|neither|nor|cannot|no longer)\b",
    r"\b\w+n['’]t\b(?!\s+(?:doubt|deny))",
    r"\b(?:anything but|(?:I|we) (?:\w+ly )?doubt)\b",
    r"\b(?:by no means|in no way|no way|under no circumstances|hardly(?!\s+surpris))\b",
    r"(?<!\bnone )\bother than\b",
    r"\b(?:nicht|keine?|n['’]est pas|no es|non è)\b|不是",
    r"\b(?:wrong|incorrect|false) (?:answer|option|choice|one|guess|value)"
    r"(?: is| was| would be|:)(?=\s)",
    r"\b(?:wrong|incorrect|false|untrue|a mistake) (?:that|to (?:say|think|claim|answer))\b",
    r"\b(?:we|I|let['’]s) (?:(?:can|could|must) )?(?:\w+ly )?"
    r"(?:rule out|ruled out|(?:eliminat|exclud)ed?|discard(?:ed)?|reject(?:ed)?)\b",
)
"""Ways to say before a value that it is not the answer."""
_THINKS = r"(?:,[^,.;:\n]{1,30},)?(?:\s+(?:think|believe|say|agree|true|the case)(?:\s+that)?\b)?"
_GAP = (
    r"(?:\s+(?!(?:but|so|and|hence|then|therefore|thus|because|since|as|if|than)\b)[^\W\d]+){0,3}"
    r"\s*[(\"'“‘$*]*(?:\\boxed\{)?\Z"
)
"""What may stand between such words and the value."""
_DENIED = re.compile(
    rf"(?:(?P<beside>{_BESIDE})|{'|'.join(_BEFORE)}){_THINKS}{_GAP}", re.IGNORECASE
)

_ALTERNATIVES = r"(?:\s*(?:,|/|and|or|nor){1,2}\s*\(?[A-J]\)?){0,9}"
_CLOSED = r"[)}\"'”’*$]{0,4}"
_BEHIND = (
    rf"{_ALTERNATIVES}\s+(?:(?:is|are|was|were|(?:would|must|has to) be|ha(?:s|ve) been|seems?"
    rf"|looks?)\s+(?:\w+ly\s+)?(?:(?:(?:the|an?)\s+)?{_WRONG}|{_MISTAKE})|fails?\b)",
    rf"{_ALTERNATIVES}\s+(?:(?:is|are|was|were|can|could|does|do|will|would|may)\s+(?:\w+ly\s+)?not"
    r"|cannot|\w+n['’]t)(?:\s+(?:\w+ly\s+)?(?:be\s+)?(?:the|right|correct|true|it|so|what|fit|work"
    r"|hold|match|possible|valid|an?\s+(?:\w+\s+)?(?:answer|solution))\b|\s*(?:[.,;!]|\Z))",
    r"\s*\?\s*(?:no|nope|not|wrong|it (?:is not|isn['’]t))\b",
    r"[.,;:!—–-]{0,2}\s+(?:(?:but|no|wait|hmm|actually|however)[\s,.:—–-]{1,3}){0,3}"
    rf"(?:that|this|it|which)(?:['’]s| is| was| would be)\s+(?:\w+ly\s+)?(?:{_WRONG}|{_MISTAKE}"
    r"|not\s+(?:\w+ly\s+)?(?:right|correct|true|so|it|the)\b)",
    r"\s?[.,;:!?…—–-]{0,3}\s+(?:(?:oh|hmm|uh|er|ah|but)[\s,.]{1,3}){0,2}"
    r"(?:no[,:;—–-]|no\.(?=\s+(?:it|the|that)\b)|no wait\b|wait,? no\b|nope\b|oops\b|or rather\b"
    r"|(?:scratch|strike|make) that\b|correction:|on second thoughts?\b"
    r"|I mean\b(?!,|\s+(?:it|that)\b)"
    r"|sorry\b[,:—–-]?\s+(?:I meant|(?:it|that)(?:['’]s| is| should)|the answer|make)\b"
    r"|actually,?(?=\s+[^\s.]{1,30}\.?\s*\Z))"
    r"(?!\W{0,3}(?:wait\W{1,3})?(?:really|seriously|doubt|yes|right|correct|true|I(?:['’]m| am)"
    r"|(?:that|it)(?:['’]s| is) (?:right|correct|indeed)))",
)
"""Ways to say behind a value that it is not; the last is a correction of oneself."""
_REFUTED = re.compile(rf"{_CLOSED}(?:{'|'.join(_BEHIND)})", re.IGNORECASE)
_REFUTED_LETTER = re.compile(
    rf"\)?{_ALTERNATIVES}\s+(?i:(?:is|are|was|would be|seems)\s+(?:\w+ly\s+)?not\b|isn['’]t)"
)

_PEOPLE = r"(?:many|some|most|others|people|everyone|everybody|one|you|they|students)\b"
_SAY = r"(?:say|said|think|thought|believe|guess|claim|assume|expect|answer|argue|pick)s?"
_PASSED = r"(?:used to be|(?:(?:was|were)\s+)?(?:once|formerly|previously)|until \w+(?: it was)?)\b"
_AROUND = (
    (
        rf"\b{_PEOPLE}(?:\s+\w+){{0,3}}?\s+{_SAY}\b",
        r"[^.,;:!?\n]{0,40}[.,;:!—–-]{0,2}\s+(?:(?:but|however|yet|though)\b[\s,]*)?"
        r"(?:they|these|those|he|she|it|that|this)(?:['’](?:re|s)|\s+(?:are|is|were|was|would be))"
        rf"\s+(?:all\s+|\w+ly\s+)?(?:{_WRONG}|{_MISTAKE})",
    ),
    (
        rf"\b{_PEOPLE}(?:\s+\w+){{0,3}}?\s+{_SAY}\b",
        r"[.,;:!—–-]{0,2}\s+(?:(?:but|however|yet)\b[\s,]*"
        r"(?:it|that|this|I|the|actually|really|others|some)|(?:but )?in (?:fact|reality))\b",
    ),
    (
        rf"\b{_PASSED}(?!\s+(?:called|known|named))",
        r"[.,;:—–-]{0,2}\s+(?:(?:but|and|it|is|has|become)\b(?:['’]s)?\s+){0,4}"
        r"(?:now|today|nowadays|these days|currently|since then)\b",
    ),
)
"""Words before and behind a value that deny it together: what others say, or was once."""
_DENIED_AROUND = tuple(
    (re.compile(opening + _GAP, re.IGNORECASE), re.compile(_CLOSED + closing, re.IGNORECASE))
    for opening, closing in _AROUND
)


def denial_before(text: str, begin: int) -> re.Match[str] | None:
    """Find what says before a value that it is not the answer; `beside`: in passing."""
    return _DENIED.search(text, max(0, begin - _NEAR), begin)


def is_refuted(text: str, begin: int, end: int) -> bool:
    """Tell whether it is said behind a value, or on both sides of it, that it is not the answer."""
    return _REFUTED.match(text, end) is not None or any(
        closing.match(text, end) and front.search(text, max(0, begin - _NEAR), begin)
        for front, closing in _DENIED_AROUND
    )


def is_denied(text: str, begin: int, end: int) -> bool:
    """Tell whether the letter or number at this place is said not to be the answer."""
    refuted = is_refuted(text, begin, end) or _REFUTED_LETTER.match(text, end) is not None
    return refuted or denial_before(text, begin) is not None
