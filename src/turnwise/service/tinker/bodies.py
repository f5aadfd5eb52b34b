"""JSON bodies of the API's requests, apart from /asample."""

from typing import Any

from pydantic import Field, ValidationError

from turnwise.service.tinker.errors import ApiError
from turnwise.service.tinker.sampling import Strict
from turnwise.service.tinker.trained_model import AdamParams


class OptimizerConfig(Strict):
    type: str = "adamw"
    version: int | None = None


class LoraConfig(Strict):
    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateSession(Strict):
    tags: list[str]
    user_metadata: dict[str, Any] | None = None
    sdk_version: str
    project_id: str | None = None
    display_name: str | None = None
    type: str = "create_session"


class SessionBody(Strict):
    session_id: str
    type: str = ""


class CreateModel(Strict):
    session_id: str
    model_seq_id: int = Field(ge=0, lt=2**31)
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    """None: all weights are trained."""
    optimizer_config: OptimizerConfig = OptimizerConfig()
    type: str = "create_model"


class CreateSamplingSession(Strict):
    session_id: str
    sampling_session_seq_id: int = Field(ge=0, lt=2**31)
    base_model: str | None = None
    model_path: str | None = None
    type: str = "create_sampling_session"


class SamplingSessionBody(Strict):
    sampling_session_id: str
    type: str = ""


class ModelBody(Strict):
    model_id: str
    type: str = ""


class ModelRequest(Strict):
    """A request that runs in the order of its model's `seq_id`."""

    model_id: str
    seq_id: int = Field(ge=1, lt=2**31)


class OptimStep(ModelRequest):
    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None
    type: str = "optim_step"


class SaveWeights(ModelRequest):
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: str = "save_weights"


class SaveForSampler(ModelRequest):
    path: str | None = None
    sampling_session_seq_id: int | None = Field(None, ge=0, lt=2**31)
    kind: str = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    type: str = "save_weights_for_sampler"


class SaveExternal(ModelRequest):
    path: str
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None
    type: str = "save_weights_external"


class LoadWeights(Strict):
    """Loads weights into a model, or creates one from them if it has a `session_id` in place of a `model_id`."""

    model_id: str | None = None
    seq_id: int | None = Field(None, ge=1, lt=2**31)
    session_id: str | None = None
    model_seq_id: int | None = Field(None, ge=0, lt=2**31)
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: str = "load_weights"


class RetrieveFuture(Strict):
    request_id: str
    allow_metadata_only: bool = False


class WeightsInfoBody(Strict):
    tinker_path: str


class FinishSession(Strict):
    reason: dict[str, Any] | None = None
    detail: str | None = None


def read_body(kind: type[Any], body: dict[str, Any]) -> Any:
    """Return the body as a model of this type. Raises ApiError, which names the first field that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ApiError(422, f"{where[:100]}: {first['msg'][:200]}.") from None
