from turnwise.text.suggestions import suggest


def test_suggest_finds_a_similar_name() -> None:
    assert suggest("tinny", ["smollm2-135m", "tiny"]) == ' did you mean "tiny"?'


def test_suggest_ignores_case() -> None:
    assert suggest("FROZEN_LAKE", ["bandit", "frozen_lake"]) == ' did you mean "frozen_lake"?'


def test_suggest_finds_a_name_by_a_part_of_it() -> None:
    options = ["gae", "bi_level_gae", "reinforce_pp_baseline", "reinforce"]
    assert suggest("baseline", options) == ' did you mean "reinforce_pp_baseline"?'
    assert suggest("bi_", options) == ' did you mean "bi_level_gae"?'
    assert suggest("ppo_with_gae_critic", options) == ' did you mean "gae"?'


def test_suggest_lists_options_if_none_is_similar() -> None:
    assert suggest("xyzzy", ["tiny", "bandit"]) == " there are bandit, tiny"


def test_suggest_shortens_long_lists_and_handles_none() -> None:
    assert suggest("?", [f"option{n:02}" for n in range(50)]).endswith("option39, ...")
    assert suggest("?", []) == " there are none"
