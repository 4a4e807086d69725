"""The directive ``command-line``: every command, from the parser that the program uses."""

import argparse
import re

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from safemodules.cli.application import build_parser


class CommandLine(Directive):
    """A section for each command: what it does, its usage and its arguments."""

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        (commands,) = (
            action
            for action in build_parser()._actions
            if isinstance(action, argparse._SubParsersAction)
        )
        return [_section(name, parser) for name, parser in commands.choices.items()]


def _section(name: str, parser: argparse.ArgumentParser) -> nodes.section:
    section = nodes.section(ids=[f"safemodules-{name}"], names=[f"safemodules {name}"])
    section += nodes.title("", "", nodes.literal(text=f"safemodules {name}"))
    first, *others = (parser.description or "").split("\n\n")
    section += _paragraph(f"{first[:1].upper()}{first[1:]}.")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    section += nodes.literal_block(usage, usage, language="text")
    section += [_paragraph(text) for text in others]
    arguments = nodes.definition_list()
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            arguments += _argument(parser, action)
    section += arguments
    return section


def _paragraph(text: str) -> nodes.paragraph:
    """Make a paragraph, with options and what stands in backquotes as code."""
    paragraph = nodes.paragraph()
    for part in re.split(r"(`[^`]+`|(?<!\S)--[\w-]+)", " ".join(text.split())):
        is_code = part.startswith(("`", "--"))
        paragraph += nodes.literal(text=part.strip("`")) if is_code else nodes.Text(part)
    return paragraph


def _argument(
    parser: argparse.ArgumentParser, action: argparse.Action
) -> nodes.definition_list_item:
    formatter = parser._get_formatter()
    shown = formatter._format_action_invocation(action)
    text = formatter._expand_help(action)
    return nodes.definition_list_item(
        "",
        nodes.term("", "", nodes.literal(text=shown)),
        nodes.definition("", _paragraph(text)),
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
