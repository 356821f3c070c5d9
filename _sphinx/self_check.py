r"""A claim that the reader judges before the answer is shown.

    :::{self-check} A checkpoint every $\sqrt n$ stages is optimal.
    :answer: false

    The reasons, with figures, citations and all else that a page may hold.
    :::

(Colons, since the first line of a fence of backticks can hold no code.)

The page asks for a verdict with radio buttons in a fieldset whose legend is the claim, says in a live region
whether it is right, and opens the answer. It needs no kernel and no network, and keeps nothing. Without
JavaScript the buttons stay hidden, and the answer is behind a fold that the browser itself opens.
"""

from __future__ import annotations

from html import escape
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

ANSWERS = {"true": "True", "false": "False", "depends": "It depends"}


class Check(nodes.General, nodes.Element):  # type: ignore[misc]
    """One claim with its answer."""


class Claim(nodes.Part, nodes.TextElement):  # type: ignore[misc]
    """What is claimed."""


class Answer(nodes.Part, nodes.Element):  # type: ignore[misc]
    """What is said of it, folded at first."""


class SelfCheck(SphinxDirective):
    """The directive: the claim is its argument, all on one line, and the answer its content."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"answer": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the claim and its answer."""
        answer = self.options.get("answer")
        if answer not in ANSWERS:
            raise self.error(f":answer: must be one of {', '.join(ANSWERS)}, got {answer!r}")
        if not self.content:
            raise self.error("a claim needs an answer below it")
        number = self.env.new_serialno("self-check") + 1
        check = Check(answer=answer, number=number, ids=[f"claim-{number}"])
        self.set_source_info(check)
        words, messages = self.state.inline_text(" ".join(self.arguments[0].split()), self.lineno)
        claim = Claim(self.arguments[0], "", *words)
        self.set_source_info(claim)
        reasons = Answer()
        self.state.nested_parse(self.content, self.content_offset, reasons)
        truth = nodes.strong("", f"{ANSWERS[answer]}.")
        if isinstance(reasons[0], nodes.paragraph):
            reasons[0].insert(0, [truth, nodes.Text(" ")])
        else:
            reasons.insert(0, nodes.paragraph("", "", truth))
        check += [claim, reasons]
        return [check, *messages]


def visit_check(self: HTML5Translator, node: Check) -> None:
    """Open the box."""
    self.body.append(self.starttag(node, "div", CLASS="self-check"))


def depart_check(self: HTML5Translator, node: Check) -> None:
    """Close it."""
    self.body.append("</div>\n")


def visit_claim(self: HTML5Translator, node: Claim) -> None:
    """Open the form; the claim is the name of its group of buttons."""
    number = f'<span class="self-check-number">Claim {node.parent["number"]}</span>'
    self.body.append(f'<form autocomplete="off"><fieldset><legend>{number} ')


def depart_claim(self: HTML5Translator, node: Claim) -> None:
    """Write the buttons, hidden until the script can read them, and the place of the verdict."""
    check = node.parent
    buttons = "".join(
        f'<label><input type="radio" name="claim-{check["number"]}" value="{value}"'
        f"{' data-right' if value == check['answer'] else ''}> {escape(word)}</label>"
        for value, word in ANSWERS.items()
    )
    self.body.append(
        f'</legend><div class="self-check-choices" hidden>{buttons}<button type="submit">Check</button></div>'
        '</fieldset><p class="self-check-verdict" role="status"></p></form>\n'
    )


def visit_answer(self: HTML5Translator, node: Answer) -> None:
    """Open the fold."""
    self.body.append("<details><summary>The answer</summary>\n")


def depart_answer(self: HTML5Translator, node: Answer) -> None:
    """Close it."""
    self.body.append("</details>\n")


def add_files(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load style and script on the pages that hold a claim."""
    if doctree is not None and next(iter(doctree.findall(Check)), None) is not None:
        app.add_css_file("self_check.css")
        app.add_js_file("self_check.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_node(Check, html=(visit_check, depart_check))
    app.add_node(Claim, html=(visit_claim, depart_claim))
    app.add_node(Answer, html=(visit_answer, depart_answer))
    app.add_directive("self-check", SelfCheck)
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
