"""Fenced blocks of the Markdown pages of the repository."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEVELOPMENT = [ROOT / f"{name}.md" for name in ("CONTRIBUTING", "RELEASING", "CHANGELOG")]
NOT_RUN = "<!-- not run -->"


class Block(NamedTuple):
    """A fenced block."""

    language: str
    line: int
    text: str
    skipped: bool
    """Whether the page marks it as not run."""
    follows: bool
    """Whether only blank lines are between this block and the previous one."""


def blocks(page):
    """Return the fenced blocks of a Markdown file, in order."""
    result, lines, start, between = [], page.read_text().splitlines(), None, ""
    for number, line in enumerate(lines):
        if start is None and (fence := re.match(r"```(\S*)", line)):
            start, language = number, fence[1]
        elif start is not None and line == "```":
            text = "\n".join(lines[start + 1 : number]) + "\n"
            result.append(Block(language, start + 1, text, NOT_RUN in between, not between.strip()))
            start, between = None, ""
        elif start is None:
            between += line + "\n"
    return result


def name(path):
    """Return the path of a file in the repository, for test ids and messages."""
    return path.relative_to(ROOT).as_posix()
