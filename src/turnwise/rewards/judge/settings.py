"""Settings of a judge in a recipe. They say where the key of its endpoint is, never the key itself."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from turnwise.network.secrets import check_variable_name
from turnwise.settings.section import Positive, Section

LOCAL = "local"
NOT_LOCAL = ("key_env", "key_file", "timeout_s", "retries")
"""Settings that only endpoints use."""


class JudgeSettings(Section):
    model: Annotated[str, Field(min_length=1)]
    """Model name at the endpoint; with endpoint = "local" a name or folder as for model.name."""
    rubric: Annotated[str, Field(min_length=1)]
    """Criterion in plain words, such as "cites its source"."""
    endpoint: str = ""
    """OpenAI-compatible URL; empty: $OPENAI_BASE_URL, or else OpenAI; "local" loads the model in this process."""
    key_env: str = ""
    """Name of the environment variable that holds the key; empty: OPENAI_API_KEY, if it is set."""
    key_file: str = ""
    """File that holds the key; an alternative to key_env."""
    mode: Literal["absolute", "pairwise", "relative"] = "absolute"
    """absolute: each answer alone; pairwise: members of a group, two at a time; relative: a whole group in one call."""
    shows: Literal["answer", "episode"] = "answer"
    """Input of a judge in a rubric: the question and the answer, or the whole episode."""
    against: str = ""
    """Column of the task row with a reference answer for a judge in a rubric; empty: none."""
    scale: tuple[float, float] = (0.0, 10.0)
    """Lowest and highest score, which become 0 and 1."""
    opponents: Annotated[int, Field(ge=0)] = 0
    """Opponents of each member in pairwise mode, about; 0: all others."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of the judge."""
    max_tokens: Positive = 512
    """Tokens of one answer of the judge, at most."""
    max_chars: Annotated[int, Field(ge=500)] = 20_000
    """Characters of one member that the judge is shown; the middle of longer texts is cut."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Time limit of one request, in seconds."""
    concurrency: Positive = 16
    """Concurrent requests, at most."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """Retries after transient failures."""
    asks: Annotated[int, Field(ge=1, le=10)] = 3
    """Times that the judge is asked while its answer cannot be read."""
    max_calls: Positive = 10_000
    """Budget of the run: requests, including retries."""
    max_tokens_total: Positive = 20_000_000
    """Budget of the run: prompt and completion tokens."""
    cache: str = ""
    """Folder of cached answers; empty: in turnwise's cache, shared by all runs."""
    device: str = "auto"
    """Device of a local model."""

    @field_validator("key_env")
    @classmethod
    def _is_variable_name(cls, value: str) -> str:
        return check_variable_name(value) if value else value

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.scale[0] >= self.scale[1]:
            raise ValueError("scale must be a lower number followed by a higher one")
        if self.key_env and self.key_file:
            raise ValueError("give key_env or key_file, not both")
        unused = [name for name in NOT_LOCAL if name in self.model_fields_set]
        if self.endpoint == LOCAL and unused:
            raise ValueError(f'{unused[0]} has no effect: it is for endpoints, and endpoint is "{LOCAL}"')
        if self.opponents and self.mode != "pairwise":
            raise ValueError('opponents has no effect: it is for mode = "pairwise"')
        return self
