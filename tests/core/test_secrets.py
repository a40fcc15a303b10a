"""Keys of the user's are found, and blanked in whatever a server says."""

from loadstone.core.secrets import blank, blank_bytes, keys_in

KEY = "sk-geheim/1234567890"


def test_words_of_headers_and_of_fields_named_as_keys_are_keys() -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("X-Pass", "geheim-2"), ("X-Team", "team-of")]
    body = {"api_key": "field-key-1", "user_token": "field-key-2", "guided_backend": "xgrammar-x", "auth": 5}
    assert keys_in(headers, body) == [KEY, "field-key-1", "field-key-2", "geheim-2"]


def test_keys_may_stand_deep_in_a_body() -> None:
    upstream = {"Authorization": f"Bearer {KEY}", "model": "some/model-name", "secrets": ["secret-1", 2, "secret-2"]}
    shape = {"properties": {"api_key": {"type": "a string"}}, "required": ["none-of-it"]}
    assert keys_in([], {"route": [{"headers": upstream}], "schema": shape}) == [KEY, "secret-1", "secret-2"]


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
