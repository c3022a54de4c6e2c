"""Every part says where it comes from."""

import pytest

from stability.config.knobs import GROUPS
from stability.parts.published import Published, said
from tiny import classes

KINDS = [group for group in GROUPS if group != "model"]
PARTS = [(kind, cls) for kind in KINDS for cls in sorted(classes(kind), key=repr)]
FACTS = ("source", "reported", "combine")


@pytest.mark.parametrize(("group", "cls"), PARTS, ids=lambda p: getattr(p, "__name__", p))
def test_every_option_of_conf_states_its_own_source(group, cls):
    assert issubclass(cls, Published)
    assert said(cls, "source")


@pytest.mark.parametrize(("group", "cls"), PARTS, ids=lambda p: getattr(p, "__name__", p))
def test_facts_are_one_line_of_text(group, cls):
    for fact in FACTS:
        text = vars(cls).get(fact, "")
        assert isinstance(text, str)
        assert text == text.strip()
        assert "\n" not in text


def test_a_class_does_not_state_what_its_parent_states():
    class Parent(Published):
        source, reported = "arXiv:1706.03762", "a result"

    class Child(Parent):
        source = "arXiv:2002.04745"

    assert [said(Parent, fact) for fact in FACTS] == ["arXiv:1706.03762", "a result", ""]
    assert [said(Child, fact) for fact in FACTS] == ["arXiv:2002.04745", "", ""]
