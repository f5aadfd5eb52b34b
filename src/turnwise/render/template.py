"""The tokenizer's chat template as a function from messages to text."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerFast

from turnwise.core.errors import UserError

MEND = "give another with --model.chat_template FILE"


class RefusedError(Exception):
    """The template will not render these messages, or does not show all of them."""


class ChatTemplate:
    """Renders plain dictionaries. What it raises tells a template that cannot be used from one that says no."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not tokenizer.chat_template:
            raise UserError("the tokenizer has no chat template: set --model.chat_template FILE (a Jinja file)")
        self._tokenizer = tokenizer

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), prompt: bool = True
    ) -> str:
        """The text of `messages`, with the generation prompt unless `prompt` is False."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, add_generation_prompt=prompt, tokenize=False
            )
        except TemplateSyntaxError as error:
            raise UserError(f"the chat template is broken at line {error.lineno}: {error.message}; {MEND}") from error
        except Exception as error:  # a template is a program: it may divide by zero, recurse or ask for all memory
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise RefusedError(" ".join(f"{kind}{error}".split())) from error
        return text
