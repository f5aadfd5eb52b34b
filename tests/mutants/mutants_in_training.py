"""Mutants of turnwise.training: the step itself, not only its formulas."""

from mutant_for_tests import mutants

STEP = ("training/test_step_gradients.py",)
LOOP = ("training/test_step_loop.py",)
OPTIMIZER = ("training/test_optimizer.py", "training/test_step_optimizer.py", "training/test_learner.py")
GATHER = ("training/test_rollout_stage.py", "training/test_step_groups.py")

IN_TRAINING = (
    *mutants(
        "training/objective.py",
        STEP,
        (
            "entropy bonus with the wrong sign",
            "- self.algo.entropy_coef * entropy",
            "+ self.algo.entropy_coef * entropy",
        ),
        ("KL with the wrong sign", "tokens + kl_coef * kl", "tokens - kl_coef * kl"),
        (
            "KL of the other direction",
            "self.kl_estimator(logprobs, batch.ref_logprobs)",
            "self.kl_estimator(batch.ref_logprobs, logprobs)",
        ),
        ("entropy replaces the loss", "tokens = tokens + kl_coef * kl", "tokens = result.token_loss + kl_coef * kl"),
        ("a mean over the micro-batch", "(batch.weights * tokens).sum()", "(batch.weights * tokens).mean()"),
        (
            "no correction is applied",
            'self.correction is not CORRECTIONS["none"]',
            'self.correction is CORRECTIONS["none"]',
        ),
        ("value_coef is not read", "self.algo.value_coef * (batch", "(batch"),
        ("the critic has the policy's weights", "batch.value_weights * token_loss", "batch.weights * token_loss"),
        (
            "the sampler is the old policy",
            "sampler_logprobs=batch.sampler_logprobs",
            "sampler_logprobs=batch.old_logprobs",
        ),
        (
            "all segments share one ratio",
            "torch.repeat_interleave(counts).to(logprobs.device)",
            "torch.zeros_like(batch.turn_ids)",
        ),
    ),
    *mutants(
        "training/update.py",
        (*STEP, "training/test_update.py"),
        ("skip_idle looks at the last token only", "bool(sample.advantages.any())", "bool(sample.advantages[-1])"),
        (
            "a step after each micro-batch",
            "        if samples:\n            step_metrics.append(",
            "            step_metrics.append(",
        ),
        ("metrics are sums", "float(value) / tokens for", "float(value) for"),
        ("epochs in the same order", "settings.run_seed, step, epoch)", "settings.run_seed, step)"),
        (
            "the loss has the advantage's mask",
            "weights = _weights(estimated, chosen, [estimated.loss_masks[",
            "weights = _weights(estimated, chosen, [estimated.advantage_masks[",
        ),
        (
            "the critic has the loss's mask",
            "_weights(estimated, chosen, [estimated.advantage_masks[",
            "_weights(estimated, chosen, [estimated.loss_masks[",
        ),
        (
            "weights are those of other tokens",
            "torch.zeros(len(in_mask)).masked_scatter(in_mask, weights)",
            "torch.zeros(len(in_mask)).masked_scatter(in_mask.flip(0), weights)",
        ),
        (
            "mismatch of the last mini-batch",
            "first = steps[0]",
            "first = steps[-1]",
        ),
    ),
    *mutants(
        "training/update.py",
        LOOP,
        ("the filter's scale is dropped in update", "learner.step(rate_scale=rate_scale)", "learner.step()"),
    ),
    *mutants(
        "training/estimate.py",
        (*STEP, *LOOP),
        (
            "hidden tokens discount",
            "and settings.advantage_tokens is not sampled",
            "and settings.advantage_tokens is sampled",
        ),
        (
            "KL in the reward from the sampler's log-probabilities",
            "settings.kl_in_reward(old_logprobs,",
            "settings.kl_in_reward(own,",
        ),
        ("KL in the reward ignores its coefficient", "table.mask, coefficients.kl.value)", "table.mask, 1.0)"),
        (
            "old log-probabilities are always the sampler's",
            'torch.cat(scores["logprobs"]) if "logprobs" in scores else sampler_logprobs',
            "sampler_logprobs",
        ),
        (
            "the adaptive gamma is not used",
            'algo.model_copy(update={"gamma_turn": discount.gamma})',
            "algo",
        ),
    ),
    *mutants(
        "training/estimate.py",
        ("training/test_step_critic.py", "training/test_update.py", "training/test_masks.py"),
        ("hidden tokens have an advantage", "torch.where(chosen, result.advantages, 0.0)", "result.advantages"),
        ("every end is bootstrapped", "float(last[index]) if each.status.cut_short else 0.0", "float(last[index])"),
        (
            "bootstrap after the first segment",
            'zip(samples, scores["end_values"], strict=True)',
            'zip(samples[::-1], scores["end_values"][::-1], strict=True)',
        ),
        ("what a limit cut is never dropped", 'truncated == "drop" and', 'truncated == "dropped" and'),
        ("what sampled nothing is trained", "if trajectory.num_sampled and not", "if not"),
        (
            "values of the engine are ignored",
            "if settings.needs.values and settings",
            "if not settings.needs.values and settings",
        ),
        ("values are missing at one turn", "if any(len(turn.values) !=", "if all(len(turn.values) !="),
    ),
    *mutants(
        "training/loop.py",
        LOOP,
        ("the filter's scale is dropped in loop", "rollout.rate_scale, statistics)", "1.0, statistics)"),
        (
            "KL in the reward also in the loss",
            "if self.estimate_settings.kl_in_reward is None else 0.0",
            "if True else 0.0",
        ),
        (
            "adaptive coefficients stay as they were",
            "coefficients=result.coefficients.numbers(),",
            "coefficients=state.coefficients,",
        ),
        (
            "adaptive coefficients are never restored",
            "self.coefficients.restore(state.coefficients) if state.coefficients else self.coefficients",
            "self.coefficients",
        ),
        ("a rollback does not lower the learning rate", "rate_scale=state.rate_scale)", "rate_scale=1.0)"),
        (
            "the schedule stands still",
            "StepSettings(step=state.step,",
            "StepSettings(step=0,",
        ),
        ("filtered groups are trained", "estimate(rollout.kept,", "estimate(rollout.groups,"),
        (
            "tokens do not know their policy",
            "await self.engine.publish(version, self.learner.weights())",
            "await self.engine.publish(0, self.learner.weights())",
        ),
        (
            "the curriculum sees only what was trained",
            "curriculum.update(success_counts, rollout.groups)",
            "curriculum.update(success_counts, rollout.kept)",
        ),
    ),
    *mutants(
        "training/rollout_stage.py",
        GATHER,
        ("more groups are trained than asked for", "totals.kept[: self.groups]", "totals.kept"),
        ("a refill draws the same tasks", "start=number * self.groups", "start=0"),
        ("a refill too many", "if len(totals.kept) >= self.groups:", "if len(totals.kept) > self.groups:"),
        ("no refill", "range(1 + self.refill)", "range(1)"),
        (
            "dropped members are not counted",
            "totals.dropped.dropped += round.episodes - count_members(round.scored.groups)",
            "totals.dropped.dropped += 0",
        ),
    ),
    *mutants(
        "training/rollout_stage.py",
        GATHER,
        ("entropy scores summed", "return totals / owners.bincount(minlength=len(trajectories))", "return totals"),
        (
            "groups ranked by the last turn",
            "[each.total_reward for each in trajectories]",
            "[each.turn_rewards[-1] for each in trajectories]",
        ),
        ("the filter keeps what it should drop", "strict=True) if keep]", "strict=True) if not keep]"),
    ),
    *mutants(
        "training/update.py",
        ("training/test_step_statistics.py",),
        (
            "tokens outside of the loss are selected",
            "loss.select(_pick(inputs, trained), objective.algo, draws[trained])",
            "loss.select(inputs, objective.algo, draws)[trained]",
        ),
        (
            "the covariance of the old policy",
            'torch.cat(score_samples(bare, learner, Needs(logprobs=True), micro_tokens)["logprobs"])',
            "old_logprobs",
        ),
    ),
    *mutants(
        "training/estimate.py",
        LOOP,
        (
            "the adaptive gamma lost on restore",
            'self.discount and replace(self.discount, gamma=numbers["gamma_turn"])',
            "self.discount",
        ),
        ("the KL coefficient lost on restore", 'replace(self.kl, value=numbers["kl_coef"])', "self.kl"),
        ("a moved discount loses the KL coefficient", "replace(moved, discount=", "replace(self, discount="),
    ),
    *mutants(
        "training/diagnostics.py",
        ("training/test_gradient_metrics.py", "training/test_step_diagnostics.py"),
        (
            "MI scores the text after the thinking",
            "turn.action_ids[: thoughts[0].end]",
            "turn.action_ids[thoughts[0].end :]",
        ),
        (
            "MI's matrix transposed",
            "for reasoning in members for prompt in members",
            "for prompt in members for reasoning in members",
        ),
        ("MI of means", "[each.sum() for each in scores]", "[each.mean() for each in scores]"),
        ("the entropy's gradient holds the task's", '"entropy": without_task,', '"entropy": samples,'),
        ("the KL's gradient holds the task's", '"kl": without_task}', '"kl": samples}'),
    ),
    *mutants(
        "training/learner.py",
        ("training/test_step_critic.py", "training/test_learner.py", "training/test_gradient_metrics.py"),
        (
            "the measurement leaves its objective behind",
            "self.objective, self.settings = objective, settings\n\n",
            "self.settings = settings\n\n",
        ),
        (
            "the head critic's end values reversed",
            "self._run(trunk_hidden, self.model, batch, keep)",
            "self._run(trunk_hidden, self.model, batch, torch.cat([batch.sources, batch.ends.flip(0)]))",
        ),
        (
            "the trunk critic's end values reversed",
            "self.critic(batch, keep)",
            "self.critic(batch, torch.cat([batch.sources, batch.ends.flip(0)]))",
        ),
        ("the trunk learns while the critic warms up", "hidden if self.policy_learns else hidden.detach()", "hidden"),
        (
            "the policy learns while the critic warms up",
            "            loss = loss.new_zeros(())\n",
            "            pass\n",
        ),
        (
            "the critic warms up a step too long",
            "self.settings.step >= self.critic_warmup_steps",
            "self.settings.step > self.critic_warmup_steps",
        ),
        (
            "the critic's state is not saved",
            'tensors |= {f"critic.{name}": value for name, value in self.critic.state_dict().items()}',
            "pass",
        ),
    ),
    *mutants(
        "models/sharding.py",
        ("training/test_sharded.py",),
        ("gradients are averaged over the ranks", "            each.set_gradient_divide_factor(1.0)\n", ""),
        ("ranks keep their own sums", "        if self.ranks > 1:\n", "        if False:\n"),
        ("shards are read from the wrong rank", "src_data_rank=source)", "src_data_rank=0)"),
    ),
    *mutants(
        "training/sharded.py",
        ("training/test_sharded.py",),
        ("padding is trained", "_without_weights(batches[index]) if padding else batches[index]", "batches[index]"),
        ("only the first micro-batch's gradients are reduced", "number == len(passes) or", "number == 1 or"),
    ),
    *mutants(
        "training/sharded_optimizer.py",
        ("training/test_sharded.py",),
        ("each rank clips by its own norm", "self.sharding.sum(own.double().square()).sqrt().to(own)", "own"),
        ("a rank alone finds weights that are not finite", "if float(sharding.sum(bad)):", "if float(bad):"),
        ("master weights are not saved", "enumerate(self.parameters) if self.saves_weights else ()", "()"),
    ),
    *mutants(
        "recipes/build_learner.py",
        ("training/test_step_critic.py", "training/test_learner.py", "training/test_gradient_metrics.py"),
        (
            "the reference follows the policy",
            "reference=copy_model(model).requires_grad_(False) if",
            "reference=model if",
        ),
    ),
    *mutants(
        "training/learner.py",
        (*LOOP, *STEP),
        (
            "the filter's scale leaves the critic out",
            "self._step(self.critic_optimizer, rate_scale)",
            "self._step(self.critic_optimizer, 1.0)",
        ),
        ("the critic's loss is maximised", "loss + value_term", "loss - value_term"),
        ("a rollback does not lower the learning rate", "self.settings.rate_scale)", "1.0)"),
    ),
    *mutants(
        "training/estimate.py",
        ("training/test_step_critic.py",),
        ("end values in packing order", "[part[index] for index in batch.order]", "part"),
    ),
    *mutants(
        "training/optimizer.py",
        OPTIMIZER,
        ("warm-up starts at 0", "(step + 1) / (self.warmup_steps + 1)", "step / (self.warmup_steps + 1)"),
        ("small gradients are scaled up", "share.clamp(max=1.0)", "share"),
        ("non-finite gradients are stepped on", "finite = math.isfinite(norm)", "finite = True"),
        ("the schedule overshoots", "(1 - self.final_share) * left", "left"),
        (
            "gradients stay for the next step",
            "        self.masters.drop_gradients()\n        return norm, finite",
            "        return norm, finite",
        ),
        (
            "clipping at the square of the norm",
            "self.settings.max_grad_norm / (total + 1e-6)",
            "self.settings.max_grad_norm / (total * total + 1e-6)",
        ),
    ),
    *mutants(
        "training/optimizer.py",
        LOOP,
        (
            "the scale of the learning rate is not read",
            '["lr"] = rate * self.share(training_step) * scale',
            '["lr"] = rate * self.share(training_step)',
        ),
        within="Optimizer",
    ),
    *mutants(
        "training/master_weights.py",
        ("training/test_master_weights.py",),
        (
            "only the last micro-batch's gradient counts",
            "self._sums[number] += parameter.grad",
            "self._sums[number] = parameter.grad.float()",
        ),
        ("masters are lost on restore", "tensors[str(number)] if tensors else own", "own"),
    ),
    *mutants(
        "training/optimizer.py",
        ("training/test_muon.py",),
        ("momentum swapped", 'lerp_(gradient, 1 - group["momentum"])', 'lerp_(gradient, group["momentum"])'),
        ("weight decay dropped", 'weights.mul_(1 - group["lr"] * group["weight_decay"])', "pass"),
        ("wide matrices get the larger step", "rows / columns", "columns / rows"),
    ),
    *mutants(
        "training/estimate.py",
        ("training/test_token_rewards.py", "training/test_step_rewards.py"),
        (
            "the format penalty lost with combine=each",
            "return trajectory.rewards[name] + penalty",
            "return trajectory.rewards[name]",
        ),
        ("every reward has the format penalty", "if name == ENV else 0.0", "if name else 0.0"),
        ("the outcome is scaled with the process", "placed - outcomes, table.mask) + outcomes", "placed, table.mask)"),
        ("only the last turn is normalised", "normalise(turns.sum(dim=1), scope", "normalise(turns[:, -1], scope"),
        (
            "reward weights in another order",
            "torch.tensor(list(settings.each.values()))",
            "torch.tensor(list(settings.each.values())[::-1])",
        ),
        ("unknown states are one state", "-1 if state is None else indices", "0 if state is None else indices"),
    ),
    *mutants(
        "training/step_record.py",
        ("training/test_token_statistics.py",),
        ("the last epoch is recorded", "{}).setdefault(name, values)", "{}).update({name: values})"),
    ),
    *mutants(
        "training/sft.py",
        ("training/test_sft.py",),
        ("demonstrations are unlearnt", "advantages=ones,", "advantages=-ones,"),
        ("the loss is a sum", "weights=ones / tokens", "weights=ones"),
        (
            "every epoch in the same order",
            'random_stream("sft", settings.seed, epoch)',
            'random_stream("sft", settings.seed)',
        ),
        (
            "the last demonstrations are left out",
            "return -(-demonstrations // settings.batch) *",
            "return demonstrations // settings.batch *",
        ),
    ),
    *mutants(
        "training/checkpoints.py",
        LOOP,
        ("the worst policy is kept as the best", "return success > (", "return success < ("),
    ),
    *mutants(
        "training/checkpoints.py",
        ("training/test_checkpoints.py",),
        ("the oldest checkpoints are kept", "<= step][-self.keep_last :]", "<= step][: self.keep_last]"),
        ("damaged files are loaded", "if _digest(folder / name) != digest:", "if not (folder / name).exists():"),
        (
            "the oldest checkpoint is the newest",
            "for each in reversed(step_folders(folder)):",
            "for each in step_folders(folder):",
        ),
    ),
    *mutants(
        "training/objective.py",
        ("training/test_mismatch.py", "training/test_step_diagnostics.py"),
        ("differences cancel out", "distance = difference.abs()", "distance = difference"),
        ("the 99th percentile is the 90th", "round(0.99 * len(distance))", "round(0.9 * len(distance))"),
        ("ratios of tokens", "sums.index_add(0, owners, difference)", "difference"),
    ),
    *mutants(
        "training/diagnostics.py",
        ("training/test_alarm_watcher.py", "recipes/test_rollback.py"),
        ("a second rollback does not lower the rate", "rate_scale=RATE_CUT * state.rate_scale", "rate_scale=RATE_CUT"),
        ("a rollback keeps later checkpoints", "    checkpoints.drop_after(kept[0])\n", ""),
        (
            "a rollback to the newest",
            "restore(str(kept[0]), replace(read_state(kept[0]),",
            "restore(str(kept[-1]), replace(read_state(kept[-1]),",
        ),
    ),
    *mutants(
        "training/update.py",
        ("training/test_offline_update.py",),
        ("pairs are split over optimizer steps", "group if whole_groups else index", "index"),
        ("one group", "group=estimated.group_ids[estimated.samples[index].trajectory]", "group=0"),
        (
            "the reference is the policy",
            "ref_logprobs=gather_sampled(bare, references)[trained]",
            "ref_logprobs=logprobs[trained]",
        ),
    ),
    *mutants(
        "training/offline.py",
        ("training/test_offline_update.py",),
        ("every step draws the same", "(self.run_seed, step)", "(self.run_seed,)"),
        (
            "log-probabilities of the first segment",
            "torch.cat(parts).tolist()",
            "(parts[0].tolist() * 99)[: entry.num_sampled]",
        ),
        (
            "equal rewards make a pair",
            "(not needs_pair or has_pair(members, pair_gap))",
            "True",
        ),
    ),
    *mutants(
        "training/warmup.py",
        ("training/test_warmup.py",),
        ("random play is unlearnt", "(-logprobs.mean()).backward()", "logprobs.mean().backward()"),
    ),
    *mutants(
        "training/selfplay.py",
        ("training/test_snapshots.py",),
        (
            "the newest snapshot does not count",
            "range(max(first, 0), newest + 1, self.every)",
            "range(max(first, 0), newest, self.every)",
        ),
        ("a rung plays against itself", "return self.at(step - 1)", "return self.at(step)"),
    ),
    *mutants(
        "training/utterance_critic.py",
        ("training/test_utterance_critic.py",),
        ("the target is not frozen", "*fresh], by_target=True)", "*fresh])"),
        ("the target never moves", "        self.move_target()\n", ""),
        (
            "the target follows at once",
            "self.critic.parameters()], self.target_rate)",
            "self.critic.parameters()], 1.0)",
        ),
        (
            "the next state of another turn",
            "torch.cat([estimates.v[1:count], torch.zeros(1, 2)])",
            "estimates.v[:count]",
        ),
        (
            "turns of two trajectories are joined",
            "for turn in trajectory.turns[:-1]] + [0.0]",
            "for turn in trajectory.turns]",
        ),
        ("a summary costs a turn", "1.0 if turn.is_summary else gamma", "gamma"),
        ("an unknown next state counts as an end", "[not (bootstrap and trajectory.status.cut_short)]", "[True]"),
        ("Q is read before the last token", "batch.sources[ends.to(device)] + 1", "batch.sources[ends.to(device)]"),
        (
            "a wrong turn boundary",
            "changes = (turns[1:] != turns[:-1]) | (owners[1:] != owners[:-1])",
            "changes = owners[1:] != owners[:-1]",
        ),
        ("V learns from what was played", "estimates.q[count:] if fresh else estimates.q", "estimates.q[chosen]"),
        ("V moves away from Q", "expectile_loss(part_v_targets - values.v", "expectile_loss(values.v - part_v_targets"),
        ("the averages are lost", '            average.copy_(parts["average"][str(number)])\n', "            pass\n"),
    ),
    *mutants(
        "training/archer.py",
        ("training/test_archer.py",),
        (
            "the stored utterance is part of the state",
            "state = stored.ids[: stored.start].tolist()",
            "state = stored.ids.tolist()",
        ),
        ("a fresh utterance at the state of another decision", "decision=decision,", "decision=0,"),
        ("the baseline is added", "per_token - baseline", "per_token + baseline"),
        ("fresh utterances repeat in every step", "round=step,", "round=0,"),
        (
            "the step's episodes are not added",
            "            self.replay.add(trajectory, step=step)\n",
            "            pass\n",
        ),
        ("a rewind keeps the next step", "self.replay.discard_from(step + 1)", "self.replay.discard_from(step + 2)"),
        (
            "the critic is not trained",
            "metrics |= train_critic(self.critic, batches, fresh, step)",
            "pass",
        ),
    ),
    *mutants(
        "training/archer_offline.py",
        ("training/test_archer_offline.py",),
        (
            "the critic is not trained",
            "draw_batches(self.replay, settings, step), fresh,",
            "[], [],",
        ),
        ("awac values the data", "settings, step), fresh,", "settings, step), [],"),
        ("advantages of the returns", "utterance_advantages(estimates, settings.algo)", "stored.discounted_returns()"),
    ),
)
