from loadstone.workload.word_list import WORDS


def test_words_are_distinct_short_and_plain() -> None:
    assert len(WORDS) == len(set(WORDS)) == 1024
    assert all(
        word.isascii() and word.isalpha() and word.islower() and 3 <= len(word) <= 9
        for word in WORDS
    )
    assert {"time", "people", "water", "house"} <= set(WORDS)
