"""Edits replace spans of a text and keep its lines, whatever their nesting and order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_strategy import examples

from safemodules.rewriting.edits import Breaks, Edit, Kept, render, unified_diff


def test_without_edits_the_text_stays():
    assert render("ä = 1\n".encode(), []) == "ä = 1\n"


def test_a_span_is_replaced():
    assert render(b"x += 1\n", [Edit(0, 6, ("x = f(x, ", Kept(5, 6), ")"))]) == "x = f(x, 1)\n"


def test_a_span_is_deleted():
    assert render(b"a + b", [Edit(1, 5, ())]) == "a"


def test_offsets_are_bytes():
    data = "é = '±'; h += len(é)  # ÷\n".encode()
    start, end = data.index(b"h"), data.index(b"  #")
    edit = Edit(start, end, ("h = f(h, ", Kept(data.index(b"len"), end), ")"))
    assert render(data, [edit]) == "é = '±'; h = f(h, len(é))  # ÷\n"


def test_an_edit_inside_a_kept_span_is_made():
    data = b"f(g(x))"
    outer = Edit(0, 7, ("F(", Kept(2, 6), ")"))
    inner = Edit(2, 6, ("G(", Kept(4, 5), ")"))
    innermost = Edit(4, 5, ("y",))
    assert render(data, [innermost, outer, inner]) == "F(G(y))"


def test_an_edit_in_a_span_that_is_not_kept_is_dropped():
    outer = Edit(0, 7, ("F(", Kept(2, 3), ")"))
    assert render(b"f(x, y)", [outer, Edit(5, 6, ("z",))]) == "F(x)"


def test_a_span_kept_twice_is_edited_twice():
    outer = Edit(0, 4, (Kept(2, 3), ", ", Kept(2, 3)))
    assert render(b"f(x)", [outer, Edit(2, 3, ("y",))]) == "y, y"


def test_adjacent_edits_do_not_disturb_each_other():
    assert render(b"abcd", [Edit(2, 4, ("Z",)), Edit(0, 2, ("A",))]) == "AZ"


def test_insertions_before_and_behind_a_replaced_span():
    edits = [Edit(1, 2, ("B",)), Edit(1, 1, ("<",)), Edit(2, 2, (">",))]
    assert render(b"abc", edits) == "a<B>c"


def test_an_insertion_at_the_start_of_an_edit_inside_a_kept_span():
    outer = Edit(0, 3, ("F", Kept(1, 2)))
    assert render(b"abc", [outer, Edit(1, 1, ("<",)), Edit(1, 2, ("B",))]) == "F<B"


def test_insertions_at_one_offset_stand_in_the_order_of_their_ranks():
    edits = [Edit(1, 1, (str(rank),), rank) for rank in (10, 2, 30, 4)]
    assert render(b"ab", edits) == render(b"ab", edits[::-1]) == "a241030b"


def test_the_same_edit_given_twice_is_made_once():
    assert render(b"ab", [Edit(1, 1, ("-",)), Edit(1, 1, ("-",))]) == "a-b"


def test_breaks_give_the_line_breaks_of_a_span():
    data = b"x \\\n += \\\n 1\ny"
    edit = Edit(0, 12, ("x = f(x, (", Breaks(1, 11), Kept(11, 12), "))"))
    assert render(data, [edit]) == "x = f(x, (\n\n1))\ny"


def test_missing_line_breaks_go_before_the_last_bracket():
    assert render(b"f(\n x,\n)\n", [Edit(0, 8, ("g(", Kept(4, 5), ")"))]) == "g(x\n\n)\n"


@pytest.mark.parametrize("text", ["a\nb", "\n"], ids=["between", "alone"])
def test_an_edit_that_adds_a_line_is_refused(text):
    with pytest.raises(AssertionError, match="number of lines"):
        render(b"abc", [Edit(1, 2, (text,))])


@pytest.mark.parametrize(
    "edits",
    [
        [Edit(0, 3, ("A",)), Edit(2, 4, ("B",))],
        [Edit(0, 3, (Kept(0, 3),)), Edit(2, 4, ("B",))],
        [Edit(0, 2, ("A",)), Edit(0, 2, ("B",))],
        [Edit(0, 4, (Kept(1, 3),)), Edit(2, 4, ("B",)), Edit(1, 3, ("C",))],
        [Edit(2, 9, ("A",))],
    ],
    ids=["crossing", "crossing a kept span", "same span", "crossing inside", "beyond the end"],
)
def test_overlapping_edits_are_refused(edits):
    with pytest.raises(AssertionError, match="overlap"):
        render(b"abcdef", edits)


def test_the_difference_names_the_file_and_both_lines():
    text = unified_diff("/x/y.py", "a\nb\n", "a\nc")
    assert text == "--- a//x/y.py\n+++ b//x/y.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n".replace("//", "/")


# -- random edits ---------------------------------------------------------------------------


@st.composite
def spans(draw, start, end, depth=3):
    """Sorted disjoint spans of a text, each with such spans inside it."""
    cuts = draw(st.lists(st.integers(start, end), max_size=6, unique=True).map(sorted))
    made = []
    for left, right in zip(cuts[::2], cuts[1::2], strict=False):
        inside = draw(spans(left, right, depth - 1)) if depth and draw(st.booleans()) else []
        made.append((left, right, inside))
    return made


def flattened(tree):
    for start, end, inside in tree:
        yield start, end, inside
        yield from flattened(inside)


TEXTS = st.text(alphabet="ab (\n±é𝛼", min_size=1, max_size=40)


def byte_offsets(text):
    return [len(text[:i].encode()) for i in range(len(text) + 1)]


@given(st.data(), TEXTS)
@examples(60)
def test_edits_that_keep_their_span_reproduce_the_text(data, text):
    at = byte_offsets(text)
    tree = data.draw(spans(0, len(text)))
    edits = [Edit(at[s], at[e], (Kept(at[s], at[e]),)) for s, e, inside in flattened(tree)]
    assert render(text.encode(), data.draw(st.permutations(edits))) == text


@given(st.data(), TEXTS)
@examples(60)
def test_edits_that_wrap_their_span_wrap_it_wherever_they_are_nested(data, text):
    at = byte_offsets(text)
    tree = data.draw(spans(0, len(text)))
    unique = {(s, e) for s, e, _ in flattened(tree)}
    edits = [Edit(at[s], at[e], ("[", Kept(at[s], at[e]), "]")) for s, e in unique]

    def wrapped(start, end, inside):
        pieces, position = [], start
        for s, e, deeper in inside:
            while [(s, e)] == [span[:2] for span in deeper]:
                deeper = deeper[0][2]
            pieces += [text[position:s], "[", wrapped(s, e, deeper), "]"]
            position = e
        return "".join([*pieces, text[position:end]])

    expected = wrapped(0, len(text), tree)
    assert render(text.encode(), data.draw(st.permutations(edits))) == expected


@given(st.data(), TEXTS)
@examples(60)
def test_edits_that_drop_their_span_keep_the_number_of_lines(data, text):
    at = byte_offsets(text)
    tree = data.draw(spans(0, len(text), depth=0))
    edits = [Edit(at[s], at[e], ("(", ")")) for s, e, _ in tree]
    made = render(text.encode(), edits)
    assert made.count("\n") == text.count("\n")
    assert made.count("(") == text.count("(") - sum(text[s:e].count("(") for s, e, _ in tree) + len(
        tree
    )
