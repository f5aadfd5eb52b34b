"""Mutants of turnwise.service: the training service."""

from mutant_for_tests import mutants

LOSSES = ("service/test_tinker_losses.py",)
SERVER = ("service/test_tinker_server.py",)
RESTARTS = ("service/test_tinker_restarts.py",)

IN_SERVICE = (
    *mutants(
        "service/tinker/losses.py",
        LOSSES,
        ("cross-entropy has the other sign", "return -logprobs * inputs", "return logprobs * inputs"),
        ("the ratio of importance sampling is inverted", "return -(logprobs - inputs", "return -(-logprobs + inputs"),
        ("PPO takes the larger objective", "torch.minimum(", "torch.maximum("),
        ("CISPO's ratio has a gradient", "inputs[CLIP_HIGH]).detach() * logprobs", "inputs[CLIP_HIGH]) * logprobs"),
        ("DRO rewards distance", '["advantages"] - penalty', '["advantages"] + penalty'),
        (
            "GSPO counts tokens outside of the mask",
            "torch.stack([difference * mask, mask])",
            "torch.stack([difference, mask])",
        ),
        (
            "GSPO's ratio has no gradient",
            "(mean + logprobs - logprobs.detach())",
            "(mean + logprobs.detach() - logprobs.detach())",
        ),
    ),
    *mutants(
        "service/tinker/batches.py",
        LOSSES,
        (
            "targets are predicted from the wrong positions",
            "sources=torch.arange(sum(lengths))",
            "sources=torch.arange(sum(lengths)).flip(0)",
        ),
        ("offsets count numbers", ".cumsum(0).mul(4)", ".cumsum(0).mul(1)"),
    ),
    *mutants(
        "training/optimizer.py",
        LOSSES,
        ("the decay rates of a step are ignored", 'group |= {"betas": betas, ', "group |= {"),
    ),
    *mutants(
        "service/tinker/server.py",
        SERVER,
        ("any key is right", "        if not owners:\n", "        if not self._keys:\n"),
    ),
    *mutants(
        "service/tinker/store.py",
        SERVER,
        ("models have no owner", "if not rows or owner not in (None, rows[0][1]):", "if not rows:"),
    ),
    *mutants(
        "service/tinker/service.py",
        SERVER,
        ("requests are taken in any order", 'if kind != "sample" and 0 < seq <=', 'if kind != "sample" and 0 > seq >='),
        ("a number stands for any request", "if known != hash_body(body):", 'if known == b"":'),
    ),
    *mutants(
        "service/tinker/adapters.py",
        SERVER,
        ("the active adapter stays", "            self.model.set_adapter(name)\n", "            pass\n"),
    ),
    *mutants(
        "service/tinker/backend.py",
        RESTARTS,
        (
            "requests since the saved state are lost",
            "for request in self._store.to_replay(stored.id, stored.saved_seq):",
            "for request in ():",
        ),
        (
            "a saved state is not loaded",
            "        if stored.saved_seq >= 0:\n",
            "        if stored.saved_seq > 10**9:\n",
        ),
    ),
)
