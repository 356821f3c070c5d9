"""Numbers that a notebook computed and other pages of the book quote."""

from __future__ import annotations

PREFIX = "application/papermill.record/"  # a kind of output that no notebook shows


def quote(**texts: object) -> None:
    """Leave texts in a cell's output, unseen, for pages of the book to quote by name.

    A page shows one with the role ``glue:text`` and the address ``notebook.ipynb::name:s``. Jupyter, Colab
    and the notebook's own page show nothing.

    Args:
        texts: by name, what is shown; numbers are shown as they print, so round or format them first.

    Raises:
        ValueError: if there is nothing to quote, or a text is empty.

    Source: the outputs of scrapbook, as MyST-NB reads them.

    >>> quote(peak="12.0 MB")  # doctest: +SKIP
    """
    from IPython.display import display  # only a notebook quotes; the package does not need IPython

    if not texts:
        raise ValueError("texts must name at least one number to quote, as in quote(peak='12.0 MB')")
    for name, text in texts.items():
        if not str(text).strip():
            raise ValueError(f"texts must not be empty, got {text!r} for {name}")
        metadata = {"scrapbook": {"name": name, "mime_prefix": PREFIX}}
        quoted = {f"{PREFIX}text/plain": repr(str(text))}  # MyST-NB reads it as a literal of Python
        display(quoted, raw=True, metadata=metadata)  # type: ignore[no-untyped-call]
