from __future__ import annotations

from inspect import cleandoc

from safepoint.tools.signature import Docstring

SUMMARY = "Look for books.\n\nOnly those in stock."

GOOGLE = """Look for books.

    Only those in stock.

    Args:
        title (str, optional): Words of the title,
            in any order.

            Case does not matter.
        limit: How many.
        *tags: Any tags.
        kind (Callable[[int], str]): What kind: hard or soft.

    Returns:
        The books.
    """

NUMPY = """Look for books.

    Only those in stock.

    Parameters
    ----------
    title : str, optional
        Words of the title,
        in any order.

        Case does not matter.
    limit : int
        How many.
    low, high
        The range of prices.

    Returns
    -------
    list
        The books.
    """

SPHINX = """Look for books.

    Only those in stock.

    :param title: Words of the title,
        in any order.
    :type title: str
    :param int limit: How many.
    :keyword dict[str, int] prices: By shop.
    :returns: The books.
    :raises KeyError: If there is none.
    """


def test_google_style_is_split_and_other_sections_stay() -> None:
    doc = Docstring.parse(cleandoc(GOOGLE))
    assert doc.description == f"{SUMMARY}\n\nReturns:\n    The books."
    assert doc.parameters == {
        "title": "Words of the title, in any order. Case does not matter.",
        "limit": "How many.",
        "tags": "Any tags.",
        "kind": "What kind: hard or soft.",
    }


def test_numpy_style_is_split_and_other_sections_stay() -> None:
    doc = Docstring.parse(cleandoc(NUMPY))
    assert doc.description == f"{SUMMARY}\n\nReturns\n-------\nlist\n    The books."
    assert doc.parameters == {
        "title": "Words of the title, in any order. Case does not matter.",
        "limit": "How many.",
        "low": "The range of prices.",
        "high": "The range of prices.",
    }


def test_sphinx_style_is_split_and_other_fields_stay() -> None:
    doc = Docstring.parse(cleandoc(SPHINX))
    assert doc.description == f"{SUMMARY}\n\n:returns: The books.\n:raises KeyError: If there is none."
    assert doc.parameters == {
        "title": "Words of the title, in any order.",
        "limit": "How many.",
        "prices": "By shop.",
    }


def test_text_after_the_parameters_stays() -> None:
    for section in ("Args:\n    x: One.", "Parameters\n----------\nx : int\n    One.\n", ":param x: One."):
        doc = Docstring.parse(f"Add.\n\n{section}\n\nUse it with care.")
        assert (doc.description, doc.parameters) == ("Add.\n\nUse it with care.", {"x": "One."}), section


def test_a_docstring_without_parameters_stays_as_it_is() -> None:
    for text in (
        "Add.",
        "Add.\n\nNote: it is slow.",
        "Parameters matter.",
        "Args:\nnone at all",
        "See below.\n\n    Args: in code\n\nThe end.",
        "Parameters\n\nare what they are",
    ):
        doc = Docstring.parse(text)
        assert (doc.description, doc.parameters) == (text, {}), text


def test_a_docstring_of_parameters_alone_has_no_description() -> None:
    assert Docstring.parse("Args:\n    x: One.") == Docstring("", {"x": "One."})
    assert Docstring.parse("") == Docstring("", {})


def test_a_parameter_without_words_has_no_meaning() -> None:
    assert Docstring.parse("Add.\n\nArgs:\n    x:\n    y (int):\n        The second.").parameters == {
        "y": "The second."
    }
