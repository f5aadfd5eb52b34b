"""What the host tells a zygote before it jails itself."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from turnwise.sandbox.limits import SandboxLimits
from turnwise.sandbox.prefix import Prefix

Tier = Literal["namespaces", "landlock", "unsafe_subprocess"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ZygoteConfig:
    """Sent as the first message over the control socket."""

    tier: Tier
    limits: SandboxLimits
    prefix: Prefix
    host_pid: int
    scratch: str
    """Where sessions get folders of their own, in tiers that have no mounts; empty in the others."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "ZygoteConfig":
        fields = json.loads(text)
        prefix = {name: tuple(value) for name, value in fields["prefix"].items()}
        prefix["links"] = tuple((where, what) for where, what in prefix["links"])
        return cls(**{**fields, "limits": SandboxLimits(**fields["limits"]), "prefix": Prefix(**prefix)})
