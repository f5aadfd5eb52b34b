"""The text of an HTML page, by the standard library's parser: its title, and its sections with their headings."""

from html.parser import HTMLParser

from turnwise.tools.search.types import one_line

SKIPPED = frozenset({"script", "style", "template", "noscript", "svg", "nav", "footer", "select", "button"})
HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
ENDS_LINE = frozenset({"br", "li", "tr", "td", "th", "dt", "dd"})
ENDS_PARAGRAPH = frozenset(
    {
        "p",
        "div",
        "section",
        "article",
        "aside",
        "header",
        "main",
        "body",
        "ul",
        "ol",
        "dl",
        "table",
        "pre",
        "blockquote",
    }
    | {"figure", "figcaption", "hr", "form", "fieldset", "details", "summary", "address", "caption"}
)
"""All other tags stand within a line and end no word."""
PERMALINK = "¶"


class _HtmlReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.sections: list[tuple[str, list[str]]] = [("", [])]
        """Heading and pieces of text, in the order of the page."""
        self._skipping: list[str] = []
        self._main: list[str] = []
        self._within: str | None = None
        self._held: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipping:
            self._skipping += [tag] * (tag == self._skipping[0])
            return
        if tag in SKIPPED:
            self._skipping = [tag]
            return
        if self._main:
            self._main += [tag] * (tag == self._main[0])
        elif tag == "main" or ("role", "main") in attrs:
            self._main, self.sections = [tag], [("", [])]
        if tag in ENDS_PARAGRAPH or tag in HEADINGS:
            self.end_heading()  # of which the end was forgotten
        if tag == "title" or tag in HEADINGS:
            self._within, self._held = tag, []
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            self._skipping = self._skipping[:-1] if tag == self._skipping[0] else self._skipping
            return
        if tag == self._within:
            self.end_heading()
        self._break(tag)
        if self._main and tag == self._main[0]:
            self._main.pop()
            if not self._main:
                self._skipping = ["\0"]  # what follows the main part is no part of it

    def end_heading(self) -> None:
        text = one_line("".join(self._held).replace(PERMALINK, ""))
        if self._within == "title":
            self.title = self.title or text
        elif self._within is not None:
            self.sections.append((text, []))
        self._within = None

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        if self._within is not None:
            self._held.append(data)
        else:
            self._say(data)

    def _break(self, tag: str) -> None:
        if tag in ENDS_PARAGRAPH:
            self._say("\n\n")
        elif tag in ENDS_LINE:
            self._say("\n")

    def _say(self, text: str) -> None:
        self.sections[-1][1].append(text)


def read_html(page: str) -> tuple[str, list[tuple[str, str]]]:
    """(title, sections as (heading, text)). Any text is a page: broken markup gives what can be read of it.

    Where a page marks its main part, only that is read: menus around it are the same on every page.
    """
    reader = _HtmlReader()
    reader.feed(page)
    reader.close()
    reader.end_heading()
    sections = [(heading, "".join(pieces).replace(PERMALINK, "")) for heading, pieces in reader.sections]
    return reader.title, [(heading, text) for heading, text in sections if text.strip()]
