"""A command line into words, the way a POSIX shell quotes them; nothing is expanded or run."""

from __future__ import annotations

import re

__all__ = ["QuoteError", "split_words"]

# One alternative per piece; every one is linear, whatever follows it.
_PIECE = re.compile(
    r"(?P<join>\\\n)"
    r"|\\(?P<escaped>.)"
    r"|'(?P<single>[^']*)'"
    r'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"'
    r"|(?P<gap>[\s;&|]+)"
    r"|(?P<plain>[^\s'\"\\;&|]+)"
    r"|(?P<open>['\"\\])",
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r"\\(\n|[$`\"\\])")


class QuoteError(ValueError):
    """A quote is opened and never closed; ``after`` is the flag in front of it, or empty."""

    def __init__(self, line: int, after: str) -> None:
        """Keep the 1-based line of the quote and the flag in front of it."""
        self.line = line
        self.after = after
        where = f"{after}: " if after else ""
        super().__init__(f"{where}the quote or backslash on line {line} is not closed")


def split_words(text: str) -> list[str]:
    r"""Split a command line into words.

    Single quotes, double quotes and backslashes quote; a backslash before a newline continues the line; ``#`` at the
    start of a word comments out the rest of the line; ``;``, ``&`` and ``|`` end a word. ``$VAR`` stays as it is.

    Raises:
        QuoteError: a quote is not closed.
    """
    text = text.replace("\r\n", "\n")
    words: list[str] = []
    word: list[str] | None = None
    position = 0
    while position < len(text):
        if word is None and text[position] == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        piece = _PIECE.match(text, position)
        if piece is None or piece.lastgroup == "open":
            flag = next((item for item in reversed(words) if item.startswith("-") and item.isprintable()), "")
            raise QuoteError(text.count("\n", 0, position) + 1, flag[:80])
        position = piece.end()
        if piece.lastgroup == "gap":
            if word is not None:
                words.append("".join(word))
            word = None
        elif piece.lastgroup != "join":
            word = [] if word is None else word
            word.append(_content(piece))
    if word is not None:
        words.append("".join(word))
    return words


def _content(piece: re.Match[str]) -> str:
    content = piece[piece.lastgroup or 0]
    if piece.lastgroup == "double":
        return _IN_DOUBLE.sub(lambda found: "" if found[1] == "\n" else found[1], content)
    return content
