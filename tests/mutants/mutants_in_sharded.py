"""Mutants of the learner of several ranks, and of its optimizer."""

from mutant_for_tests import mutants

PASSES = ("training/test_sharded_passes.py",)
SHARDED = ("training/test_sharded.py",)

IN_SHARDED = (
    *mutants(
        "training/sharded.py",
        PASSES,
        ("padding is trained", "_without_weights(batches[index]) if padding else batches[index]", "batches[index]"),
        (
            "padding trains the critic",
            "weights=torch.zeros_like(batch.weights), value_weights=value_weights)",
            "weights=torch.zeros_like(batch.weights))",
        ),
        ("only the first micro-batch's gradients are reduced", "number == len(passes) or", "number == 1 or"),
        (
            "the result of padding counts too",
            "            if not batch_pass.padding:\n    ",
            "            if True:\n    ",
        ),
        (
            "the mismatch is counted on rank 0 alone",
            "        if scores:\n",
            "        if scores and not self.sharding.rank:\n",
        ),
        ("scores of tokens are returned unasked", "scores if tokens else {}", "scores"),
        ("one rank, so that batches are not split evenly", "return self.sharding.ranks", "return 1"),
        ("the value head is a shard", "{name: self.sharding.gather(tensor) for", "{name: tensor for"),
        ("optimizer states are not checked", ', *self.state_dict()["tensors"].values()]', "]"),
        ("skipped steps are forgotten", '"skipped_steps": skipped_steps}', '"skipped_steps": 0}'),
        ("rank 0 gets the largest batch of every round", "            tokens[rank] += sizes[batch_pass.index]\n", ""),
        ("rounds of unequal sizes", "key=lambda index: (-sizes[index], index)", "key=lambda index: index"),
        ("padding by the largest batch", "Pass(order[-1], padding=True)", "Pass(order[0], padding=True)"),
    ),
    *mutants(
        "training/sharded.py",
        SHARDED,
        ("frozen weights are not published", ", self.learner.named_weights(trained=False))", ")"),
        (
            "weights are published in float32",
            "self.sharding.gather(parameter).to(plain[name].dtype)",
            "self.sharding.gather(parameter)",
        ),
    ),
    *mutants(
        "training/sharded_optimizer.py",
        PASSES,
        ("each rank clips by its own norm", "self.sharding.sum(own.double().square()).sqrt().to(own)", "own"),
        ("a rank alone finds weights that are not finite", "if float(sharding.sum(bad)):", "if float(bad):"),
    ),
    *mutants(
        "training/sharded_optimizer.py",
        SHARDED,
        ("master weights are not saved", "enumerate(self.parameters) if self.saves_weights else ()", "()"),
        ("master weights are not loaded", "                parameter.copy_(tensors[name])", "                pass"),
        ("rank 0 orthogonalises all matrices", "if owner == sharding.rank:", "if sharding.rank == 0:"),
        ("every matrix is that of rank 0", "sharding.scatter(matrix, owner)", "sharding.scatter(matrix, 0)"),
    ),
)
