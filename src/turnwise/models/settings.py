"""Settings of the model, and of a LoRA adapter."""

from typing import Annotated, Literal

from pydantic import Field

from turnwise.models.loading.catalogue import SMOLLM2_VISION, WARMED_UP
from turnwise.settings.needs import ADAPTER, WARM_UP, Lack, Need, Package
from turnwise.settings.section import Idle, Section


class ModelConfig(Section):
    """Policy model."""

    name: str = "tiny"
    """"tiny", "tiny_vlm", "smollm2-135m", "smollm2-135m-vision", a Hugging Face name or folder, or a GGUF file."""
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the parameters; auto: float32 on CPU, bfloat16 with float32 master weights on GPU."""
    chat_template: str | None = None
    """Jinja file with a chat template, for tokenizers without one."""
    train_vision: bool | Literal["only"] | None = None
    """Train the vision tower and its projection, too or (by LoRA) only; none: only that of smollm2-135m-vision."""
    warmup_steps: Annotated[int, Field(ge=0)] = 60
    """tiny, tiny_vlm: steps on random actions; before images 2 x as many on boards, smollm2-135m-vision 8 x."""

    def idle(self) -> Idle:
        names = (*WARMED_UP, SMOLLM2_VISION)
        needless = (f"model.name {self.name}", f"choose {', '.join(names)}")
        return {} if self.name in names else {"warmup_steps": needless}

    def packages(self) -> list[Package]:
        return [Package("A GGUF file", "gguf", "gguf")] if self.name.endswith(".gguf") else []

    def needs(self) -> list[Need]:
        why = "model.train_vision only trains an adapter"
        return [Need(ADAPTER, why, "set model.train_vision to true")] if self.train_vision == "only" else []

    def lacks(self) -> dict[str, Lack]:
        if self.name not in WARMED_UP:
            return {WARM_UP: Lack(f"model.name {self.name}", "has none", f"choose {', '.join(WARMED_UP)}")}
        if not self.warmup_steps:
            return {WARM_UP: Lack("model.warmup_steps 0", "has none", "raise model.warmup_steps")}
        return {}


class LoraConfig(Section):
    """LoRA adapter, trained in place of the model's own weights."""

    rank: Annotated[int, Field(ge=0)] = 0
    """LoRA rank; 0 trains all weights."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """LoRA scaling numerator: updates are scaled by alpha / rank; none uses 2 x rank."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get an adapter, such as q_proj; default: every linear layer but the head."""

    def packages(self) -> list[Package]:
        return [Package("lora.rank", "peft", "lora")] if self.rank else []

    def lacks(self) -> dict[str, Lack]:
        return {} if self.rank else {ADAPTER: Lack("lora.rank", "is 0", "raise lora.rank")}

    def idle(self) -> Idle:
        return {} if self.rank else dict.fromkeys(("alpha", "targets"), ("lora.rank 0", "raise lora.rank"))
