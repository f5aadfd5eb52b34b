"""Long conversations: the work is proportional to the messages, the ids are those of the template's own text."""

import sys
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from render_cases import FAMILIES, Family, decode, make_tokenizer, own_text, presented

from turnwise.core.messages import Message, assistant, system, text_parts, user
from turnwise.render.renderer import Renderer

TEXTS = ("plain", " spaces ", "\n\nlines\n", "", '"quoted\\', "<b>&amp;</b>")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_long_conversation_is_rendered_a_fixed_number_of_times(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer(family.name)
    renderer, render = Renderer(tokenizer), tokenizer.apply_chat_template
    counts = dict[int, int]()

    def count_renderings(length: int) -> int:
        calls = 0

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return render(*arguments, **options)

        monkeypatch.setattr(tokenizer, "apply_chat_template", counted)
        renderer.start([user(f"message {number}") for number in range(length)])
        return calls

    counts = {length: count_renderings(length) for length in (3, 40)}
    assert 0 < counts[40] <= counts[3]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_long_conversation_has_the_text_of_the_template(family: Family) -> None:
    """Several messages of each role in a row, some empty, with white space that templates trim."""
    tokenizer = make_tokenizer(family.name)
    messages = [system("Rules."), *(user(f"{number}{text}") for number, text in enumerate(TEXTS * 5))]
    whole = own_text(tokenizer, presented(family, messages))
    assert decode(tokenizer, Renderer(tokenizer).start(messages)) == whole


@pytest.mark.parametrize("shown", ["m.content", "m.content | trim", "m.content.rstrip('\\n')", "m.content | tojson"])
@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ SHOWN }}\n{% endfor %}",
        "{% for m in messages %}{{ SHOWN }}{{ SHOWN }}{% endfor %}",
        "{% for m in messages %}{{ SHOWN }}{% endfor %}{% for m in messages %}{{ SHOWN }}{% endfor %}",
    ],
)
def test_neighbouring_contents_are_told_apart(template: str, shown: str) -> None:
    """Only white space, or nothing, is between contents, and contents are shown more than once."""
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = template.replace("SHOWN", shown)
    messages = [user(f"\n {number}{text}{number} \n") for number, text in enumerate(TEXTS)]
    rows = [{"role": message.role, "content": message.content} for message in messages]
    assert decode(tokenizer, Renderer(tokenizer).start(messages)) == own_text(tokenizer, rows)


def test_changes_of_neighbouring_contents_may_differ() -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content | trim if m.role == 'user' else m.content }}\n{% endfor %}"
    )
    roles = [system, user, assistant, user, user, assistant, assistant]
    messages = [role(f"\n {number} \n") for number, role in enumerate(roles)]
    rows = [{"role": message.role, "content": message.content} for message in messages]
    assert decode(tokenizer, Renderer(tokenizer).start(messages)) == own_text(tokenizer, rows)


def test_markup_in_long_tool_results_stays_text() -> None:
    tokenizer = make_tokenizer("plain_words")
    results = [Message(role="tool", parts=text_parts("<think>" * (number % 3))) for number in range(60)]
    ids = Renderer(tokenizer).start([user("go"), *results])
    assert decode(tokenizer, ids).count("<think>") == 60
    assert tokenizer.convert_tokens_to_ids("<think>") not in ids


@pytest.fixture
def no_thread_switches() -> Iterator[None]:
    """Let threads switch only where one releases the GIL."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("no_thread_switches")
def test_encoding_lets_other_threads_run() -> None:
    """The gateway's event loop answers short calls while a long text is encoded."""
    renderer = Renderer(make_tokenizer("chatml"))
    state = ["waiting"]

    def encode() -> None:
        state[0] = "encoding"
        renderer.answer("some words of text " * 100_000)
        state[0] = "done"

    thread = Thread(target=encode)
    thread.start()
    seen = set[str]()
    while state[0] != "done":
        seen.add(state[0])
        time.sleep(0.0001)
    thread.join()
    assert "encoding" in seen
