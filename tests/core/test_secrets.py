"""Keys of the user's are found, and blanked in whatever a server says."""

import base64
import time

import pytest

from loadstone.core.secrets import blank, blank_bytes, keys_in

KEY = "sk-geheim/1234567890"


def test_words_of_headers_and_of_fields_named_as_keys_are_keys() -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("X-Pass", "geheim-2"), ("X-Team", "team-of")]
    body = {
        "api_key": "field-key-1",
        "user_token": "field-key-2",
        "guided_backend": "xgrammar-x",
        "auth": 5,
    }
    assert keys_in(headers, body) == [KEY, "field-key-1", "field-key-2", "geheim-2"]


def test_keys_may_stand_deep_in_a_body() -> None:
    upstream = {
        "Authorization": f"Bearer {KEY}",
        "model": "some/model-name",
        "secrets": ["secret-1", 2, "secret-2"],
    }
    shape = {"properties": {"api_key": {"type": "a string"}}, "required": ["none-of-it"]}
    assert keys_in([], {"route": [{"headers": upstream}], "schema": shape}) == [
        KEY,
        "secret-1",
        "secret-2",
    ]


def test_a_key_is_blanked_whole_and_where_a_text_was_cut() -> None:
    assert blank(f"no such key: {KEY}, sorry; {KEY}", [KEY]) == "no such key: …, sorry; …"
    assert blank(f"no such key: {KEY[:13]}…", [KEY]) == "no such key: …"
    assert blank(f"no such key: {KEY[:8]}", [KEY]) == "no such key: …"
    assert blank(f"no such key: {KEY[:7]}", [KEY]) == f"no such key: {KEY[:7]}"
    assert blank(KEY[:8], [KEY]) == "…"
    assert blank("whole", []) == "whole"


def test_a_longer_key_goes_before_the_one_within_it() -> None:
    keys = keys_in([("A", f"{KEY}-more"), ("B", KEY)])
    assert blank(f"{KEY}-more", keys) == "…"


def test_however_json_or_a_url_writes_it() -> None:
    key = 'sk-"geheim"/é'
    for spelled in (
        key,
        'sk-\\"geheim\\"/\\u00e9',
        "sk-%22geheim%22%2F%C3%A9",
        'sk-"geheim"\\/é',
        'sk-\\"geheim\\"/é',
    ):
        assert blank_bytes(f"[{spelled}]".encode(), [key]) == "[…]".encode()


def test_a_name_and_password_are_keys_also_decoded() -> None:
    encoded = base64.b64encode(b"somebody:geheim-12345").decode()
    keys = keys_in([("Authorization", f"Basic {encoded}")])
    assert keys == [encoded, "somebody:geheim-12345", "geheim-12345"]
    assert blank(f"user somebody:geheim-12345 ({encoded})", keys) == "user … (…)"
    assert blank("wrong password geheim-12345", keys) == "wrong password …"
    assert keys_in([("Authorization", "Basic not-base64!")]) == ["not-base64!"]
    assert keys_in([("Authorization", "Basic")]) == []


def test_in_other_letters_and_with_space_between() -> None:
    for spelled in (
        KEY.upper(),
        KEY.title(),
        " ".join(KEY),
        KEY[:9] + "\n" + KEY[9:],
        KEY[:9] + "\\n" + KEY[9:],
    ):
        assert blank(f"no such key: {spelled}, sorry", [KEY]) == "no such key: …, sorry"
        assert blank_bytes(f"[{spelled}]".encode(), [KEY]) == "[…]".encode()
    assert blank(f"no such key: {KEY[:13].upper()}…", [KEY]) == "no such key: …"


def test_each_character_in_any_spelling() -> None:
    spelled = "".join(
        f"\\u{ord(each):04X}" if at % 2 else f"%{ord(each):02x}" for at, each in enumerate(KEY)
    )
    assert blank_bytes(f"[{spelled}]".encode(), [KEY]) == "[…]".encode()
    assert blank_bytes(b"[a\\\\b-geheim]", ["a\\b-geheim"]) == "[…]".encode()
    assert blank_bytes(b"[\\ud83d\\ude00-geheim]", ["😀-geheim"]) == "[…]".encode()


@pytest.mark.parametrize("key", [KEY, "abcdefgh", "sk-é?>~ÿ/x", "geheim-1234"])
def test_encoded_within_a_longer_text(key: str) -> None:
    for before in ("", "a", "ab", "user:", "alice:ab"):
        for behind in ("", ":x", "-more of it"):
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                text = encode(f"{before}{key}{behind}".encode()).decode()
                left = blank(f"no {text} here", [key])
                assert "…" in left
                assert len(left) <= len(f"no {text} here") - len(key)
    for text in (key.encode().hex(), key.encode().hex().upper()):
        assert blank(f"no {text} here", [key]) == "no … here"
    assert blank(base64.b64encode(key.encode()).decode(), [key]) == "…"


def test_parts_of_a_composite_value_are_blanked_encoded() -> None:
    keys = keys_in([("X", "alice:geheim-1234; session=abcdefgh1234")])
    for part in ("geheim-1234", "abcdefgh1234"):
        assert blank(base64.b64encode(part.encode()).decode(), keys) == "…"
        assert blank(part.encode().hex(), keys) == "…"


def test_what_is_no_key_stays() -> None:
    for body in (b"sk-geheim/123456789", b"sk geheim 1234567890 %20", b"\xff\\u0073k", b""):
        assert blank_bytes(body, [KEY]) == body


def test_pages_are_searched_quickly() -> None:
    page = b'vllm:num_requests_running{engine="0"} 1.0\n' * 25_000  # 1 MB
    begun = time.perf_counter()
    assert blank_bytes(page, [KEY]) == page
    assert blank_bytes(page + b"%", [KEY]) == page + b"%"
    assert blank_bytes(b"s " * 500_000 + b"%", ["ssssssss-s"]) == b"s " * 500_000 + b"%"
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    ("value", "secrets"),
    [
        ("session=abcdefgh1234; theme=dark", ["abcdefgh1234"]),
        ('ApiKey key="geheim-1234"', ["geheim-1234"]),
        ("Signature keyId=abcd12345,signature=QUJDREVGR0hJSg==", ["abcd12345", "QUJDREVGR0hJSg=="]),
        ("alice:geheim-1234", ["geheim-1234"]),
        ("user;geheim-1234;x", ["geheim-1234"]),
        ("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/2015/s3, Signature=5d672d79c1", ["AKIDEXAMPLE", "5d672d79c1"]),
        ("Bearer eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", ["eyJhbGciOi", "c2lnbmF0dXJl"]),
        ("sid=ab%2Fcd%2Fefgh", ["ab/cd/efgh", "ab%2Fcd%2Fefgh"]),
    ],
)  # fmt: skip
def test_every_part_of_a_composite_value_is_a_key(value: str, secrets: list[str]) -> None:
    keys = keys_in([("X", value)])
    for secret in secrets:
        assert blank(f"{secret} is not valid", keys) == "… is not valid"
    for name in ("signature", "keyId", "session", "Credential"):
        assert blank(f"{name} is bad", keys) == f"{name} is bad"


@pytest.mark.parametrize(
    "body",
    [
        {"auth": {"value": "geheim-1234"}},
        {"auth": {"a": [{"b": "user:geheim-1234"}]}},
        {"headers": ["Authorization: Bearer geheim-1234"]},
        {"upstream": '{"api_key": "geheim-1234"}'},
        {"headers": [{"name": "X-Api-Key", "value": "geheim-1234"}]},
        {"headers": [["Cookie", "sid=geheim-1234"]]},
    ],
)
def test_keys_stand_in_a_body_in_many_forms(body: object) -> None:
    assert "geheim-1234" in keys_in([], body)


def test_a_schema_of_keys_has_none() -> None:
    schema = {"properties": {"api_key": {"type": "string", "description": "whatever-it-is"}}}
    assert keys_in([], schema) == []
