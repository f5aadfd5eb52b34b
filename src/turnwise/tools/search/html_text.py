"""Extract the title and the sections of an HTML page with the standard library's parser."""

from html.parser import HTMLParser

from turnwise.text.truncation import one_line

SKIPPED = frozenset({"script", "style", "template", "noscript", "svg", "nav", "footer", "select", "button"})
HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
ENDS_LINE = frozenset({"br", "li", "tr", "td", "th", "dt", "dd"})
_PARAGRAPHS = """
p div section article aside header main body ul ol dl table pre blockquote figure figcaption hr form fieldset details
summary address caption
"""
ENDS_PARAGRAPH = frozenset(_PARAGRAPHS.split())
"""All other tags are inline and do not separate words."""
PERMALINK = "¶"


class _HtmlReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.sections: list[tuple[str, list[str]]] = [("", [])]
        """Heading and pieces of text, in page order."""
        self._skipping: list[str] = []
        self._main: list[str] = []
        self._heading_tag: str | None = None
        self._heading: list[str] = []

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
            self.end_heading()  # whose end tag is missing
        if tag == "title" or tag in HEADINGS:
            self._heading_tag, self._heading = tag, []
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skipping:
            self._skipping = self._skipping[:-1] if tag == self._skipping[0] else self._skipping
            return
        if tag == self._heading_tag:
            self.end_heading()
        self._break(tag)
        if self._main and tag == self._main[0]:
            self._main.pop()
            if not self._main:
                self._skipping = ["\0"]  # skip everything after the main part

    def end_heading(self) -> None:
        text = one_line("".join(self._heading).replace(PERMALINK, ""))
        if self._heading_tag == "title":
            self.title = self.title or text
        elif self._heading_tag is not None:
            self.sections.append((text, []))
        self._heading_tag = None

    def handle_data(self, data: str) -> None:
        if self._skipping:
            return
        if self._heading_tag is not None:
            self._heading.append(data)
        else:
            self._add(data)

    def _break(self, tag: str) -> None:
        if tag in ENDS_PARAGRAPH:
            self._add("\n\n")
        elif tag in ENDS_LINE:
            self._add("\n")

    def _add(self, text: str) -> None:
        self.sections[-1][1].append(text)


def read_html(page: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the title and the sections as (heading, text). Broken markup is read as far as possible.

    If a page marks its main part, only that is read, since menus are the same on every page.
    """
    reader = _HtmlReader()
    reader.feed(page)
    reader.close()
    reader.end_heading()
    sections = [(heading, "".join(pieces).replace(PERMALINK, "")) for heading, pieces in reader.sections]
    return reader.title, [(heading, text) for heading, text in sections if text.strip()]
