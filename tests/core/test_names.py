from turnwise.core.suggestions import suggest


def test_a_near_name_is_suggested() -> None:
    assert suggest("tinny", ["smollm2-135m", "tiny"]) == ' did you mean "tiny"?'


def test_case_does_not_matter() -> None:
    assert suggest("FROZEN_LAKE", ["bandit", "frozen_lake"]) == ' did you mean "frozen_lake"?'


def test_where_nothing_is_near_the_options_are_listed_in_order() -> None:
    assert suggest("xyzzy", ["tiny", "bandit"]) == " there are bandit, tiny"


def test_a_long_list_is_cut_and_an_empty_one_said() -> None:
    assert suggest("?", [f"option{n:02}" for n in range(50)]).endswith("option11, ...")
    assert suggest("?", []) == " there are none"
