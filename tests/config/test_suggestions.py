"""What was probably meant by a name that does not exist."""

import pytest

from stability.config.suggestions import LONG_LIST, meant, must_be_one_of, near

NORMS = ["deepnorm", "none", "peri", "plain", "post", "pre"]


@pytest.mark.parametrize(
    ("word", "names", "found"),
    [
        ("prre", NORMS, ["pre"]),
        ("Pre", NORMS, ["pre"]),
        ("pre-LN", NORMS, ["pre"]),
        ("he", ["kaiming", "lecun"], ["kaiming"]),
        ("he", ["lecun"], []),
        ("float16", ["bf16", "fp16"], ["fp16"]),
        ("norm", NORMS, ["deepnorm"]),
        ("zzz", NORMS, []),
        ("n", ["deepnorm"], []),
    ],
)
def test_names_near_a_word(word, names, found):
    assert near(word, names) == found


def test_the_likeliest_comes_first_and_no_more_are_given_than_asked_for():
    names = ["post-needs-warmup", "warmup", "warmup-changes"]
    assert near("warmup", names, count=2) == ["warmup", "warmup-changes"]
    assert len(near("warmup", names, count=3)) == 3
    assert meant("warmup", names) == "did you mean warmup?" and meant("zzz", names) == ""


def test_a_short_list_is_printed_whole_and_a_long_one_where_nothing_is_near():
    assert must_be_one_of("prre", NORMS) == (
        "must be one of deepnorm, none, peri, plain, post, pre; did you mean pre?"
    )
    many = [f"name{i:02}" for i in range(LONG_LIST + 1)]
    assert must_be_one_of("name3", many).startswith(f"is none of the {len(many)} names; did you")
    assert must_be_one_of("zzz", many) == f"must be one of {', '.join(many)}"
    assert must_be_one_of("name3", many[:LONG_LIST]).startswith("must be one of name00,")
