"""What a recipe says of a judge. The key to its endpoint is never in there: only where to find it."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from turnwise.config.secrets import name_of_variable
from turnwise.config.section import Positive, Section

LOCAL = "local"
NOT_LOCAL = ("key_env", "key_file", "timeout_s", "retries")
"""Of requests over a wire."""


class JudgeSettings(Section):
    model: Annotated[str, Field(min_length=1)]
    """The judge, by the endpoint's name for it; with endpoint = "local" a model name or folder as model.name takes."""
    rubric: Annotated[str, Field(min_length=1)]
    """What is asked for, in words."""
    endpoint: str = ""
    """An OpenAI-compatible URL; empty: $OPENAI_BASE_URL, or else OpenAI's own; "local": the model is loaded here."""
    key_env: str = ""
    """The NAME of the environment variable that holds the key; empty: OPENAI_API_KEY, where it is set."""
    key_file: str = ""
    """A file that holds the key, instead."""
    mode: Literal["absolute", "pairwise", "relative"] = "absolute"
    """Each answer against the rubric; members of a group against each other, two at a time; all of a group at once."""
    shows: Literal["answer", "episode"] = "answer"
    """What an absolute judge of a rubric sees: the question and the answer, or all of the episode."""
    against: str = ""
    """A column of the row with a reference answer that an absolute judge of a rubric is shown; empty: none."""
    scale: tuple[float, float] = (0.0, 10.0)
    """The lowest and the highest score, which become 0 and 1."""
    opponents: Annotated[int, Field(ge=0)] = 0
    """Pairwise: how many others each member meets, about; 0: all."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_tokens: Positive = 512
    """Of one answer of the judge."""
    max_chars: Annotated[int, Field(ge=500)] = 20_000
    """Of one member that the judge is shown; the middle of longer texts is left out."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Of one request."""
    concurrency: Positive = 16
    """Requests at the same time."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """After a failure that may pass."""
    asks: Annotated[int, Field(ge=1, le=10)] = 3
    """How often the judge is asked while its answer cannot be read."""
    max_calls: Positive = 10_000
    """Budget of the run: requests that are sent, those that are sent again included."""
    max_tokens_total: Positive = 20_000_000
    """Budget of the run: tokens that the judge reads and writes."""
    cache: str = ""
    """The folder where answers are kept, so that nothing is paid for twice; empty: in turnwise's cache."""
    device: str = "auto"
    """Where a local model runs."""

    @field_validator("key_env")
    @classmethod
    def _a_name(cls, value: str) -> str:
        return name_of_variable(value) if value else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.scale[0] >= self.scale[1]:
            raise ValueError("scale must go from a lower number to a higher one")
        if self.key_env and self.key_file:
            raise ValueError("give key_env or key_file, not both")
        unread = [name for name in NOT_LOCAL if name in self.model_fields_set]
        if self.endpoint == LOCAL and unread:
            raise ValueError(f'{unread[0]} has no effect: it is for endpoints, and endpoint is "{LOCAL}"')
        if self.opponents and self.mode != "pairwise":
            raise ValueError('opponents has no effect: it is for mode = "pairwise"')
        return self
