from turnwise.core.suggestions import suggest


def test_suggest_finds_a_similar_name() -> None:
    assert suggest("tinny", ["smollm2-135m", "tiny"]) == ' did you mean "tiny"?'


def test_suggest_ignores_case() -> None:
    assert suggest("FROZEN_LAKE", ["bandit", "frozen_lake"]) == ' did you mean "frozen_lake"?'


def test_suggest_lists_options_if_none_is_similar() -> None:
    assert suggest("xyzzy", ["tiny", "bandit"]) == " there are bandit, tiny"


def test_suggest_shortens_long_lists_and_handles_none() -> None:
    assert suggest("?", [f"option{n:02}" for n in range(50)]).endswith("option11, ...")
    assert suggest("?", []) == " there are none"
