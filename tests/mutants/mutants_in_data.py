"""Mutants of turnwise.data and of the core types that it reads: masks, packing, order."""

from mutant_for_tests import mutants

PACKING = ("data/test_packing.py", "data/test_shared_prompts.py")
SAMPLES = ("data/test_samples.py",)

IN_DATA = (
    *mutants(
        "data/packing.py",
        ("training/test_constrained_turns.py",),
        ("constraints keep the order of the samples", "_pack_allowed(ordered)", "_pack_allowed(samples)"),
        ("free samples get the sets of others", "if allowed_set else -1", "if allowed_set else 0"),
    ),
    *mutants(
        "data/packing.py",
        PACKING,
        ("logits of the token itself", "sources=sampled_at - 1", "sources=sampled_at"),
        ("the last prompt token is shared", "else len(sample)) - 1", "else len(sample))"),
        ("positions restart behind a shared prompt", "torch.arange(start, end)", "torch.arange(end - start)"),
        (
            "scores come back in packing order",
            "sorted(zip(batch.order, parts, strict=True), key=lambda pair: pair[0])",
            "zip(batch.order, parts, strict=True)",
        ),
        ("end values before the last token", "ends=starts + lengths - 1", "ends=starts + lengths - 2"),
        ("common tokens behind a difference are shared", ".long().cumprod(0).sum()", ".long().sum()"),
        ("a micro-batch is smaller than allowed", "tokens + cost > max_tokens", "tokens + cost >= max_tokens"),
        ("a prompt that is not there is not paid for", "            cost = len(samples[index])\n", ""),
        (
            "turn ids in another order",
            "[sample.turn_ids for sample in bare]",
            "[sample.sample.turn_ids for sample in samples]",
        ),
        (
            "the sampler's log-probabilities are the old ones",
            "[sample.sampler_logprobs for sample in bare]",
            "[sample.old_logprobs for sample in ordered]",
        ),
        (
            "temperatures in another order",
            "[sample.temperatures for sample in ordered]",
            "[sample.temperatures for sample in samples]",
        ),
        ("short beginnings have a row of their own", "length >= SHORTEST_PREFIX]", "length >= 0]"),
    ),
    *mutants(
        "data/samples.py",
        SAMPLES,
        (
            "the context is trained",
            "(-1, segment.first_turn + index)",
            "(segment.first_turn + index, segment.first_turn + index)",
        ),
        ("turns are counted anew in each segment", "segment.first_turn + index", "index"),
        ("the temperature is lost", "(1.0, turn.temperature)", "(1.0, 1.0)"),
        ("image tokens are trained", "mask = turn_ids >= 0", "mask = (turn_ids >= 0) | (np.array(ids) < 0)"),
    ),
    *mutants(
        "data/samples.py",
        ("data/test_token_table.py",),
        ("a later segment overwrites the first", "starts.append(counts[sample.trajectory])", "starts.append(0)"),
        (
            "the mask has a column too many",
            "torch.arange(self.shape[1]) < self.counts",
            "torch.arange(self.shape[1]) <= self.counts",
        ),
    ),
    *mutants(
        "data/samples.py",
        ("training/test_masks.py",),
        ("other parts are selected", "if span.name in names:", "if span.name not in names:"),
        (
            "a span lacks its last token",
            "chosen[span.start : span.end] = [True] * (span.end - span.start)",
            "chosen[span.start : span.end - 1] = [True] * (span.end - 1 - span.start)",
        ),
    ),
    *mutants(
        "data/demonstrations.py",
        ("data/test_demonstrations.py", "data/test_shared_prompts.py", "data/test_conversation_files.py"),
        ("the context is imitated", "[-1] * len(context) + [turn ", "[turn] * len(context) + [turn "),
        (
            "the turn's end comes twice",
            "renderer.extend(exchange.messages, Stop.EOS)",
            "renderer.extend(exchange.messages, Stop.LENGTH)",
        ),
        ("answers of the prompt are imitated", "[turn if exchange.trained else -1]", "[turn]"),
    ),
    *mutants(
        "data/conversations.py",
        ("data/test_conversation_files.py",),
        ("earlier messages are shown again", "        shown = []\n", ""),
        ("answers of the prompt are trained", "((message, False) for message, _ in context)", "context"),
    ),
    *mutants(
        "render/chat_rows.py",
        ("data/test_conversation_files.py", "envs/test_task_conversations.py"),
        ("a weight of 0 is ignored", 'row.get("weight") != 0', "True"),
        ("the same image is shown again", "self._taken += 1", "self._taken = 1"),
        (
            "images follow the text",
            "parts = (*(self.take() for _ in range(left)), *message.parts)",
            "parts = (*message.parts, *(self.take() for _ in range(left)))",
        ),
        ("images are read from anywhere", "if not is_inside:", "if False:"),
    ),
    *mutants(
        "data/replay.py",
        ("data/test_replay.py",),
        ("duplicates are added", "        if digest in self._known:\n            return False\n", ""),
        ("the oldest are kept", "self._all[-self.capacity :]", "self._all[: self.capacity]"),
        ("the step itself is kept", "entry.step >= step)", "entry.step > step)"),
        ("a part that is still needed is deleted", "behind > total - self.capacity", "behind > total"),
        (
            "images of episodes that left are kept",
            "for entry in self.entries:\n            codes",
            "for entry in self._all:\n            codes",
        ),
        ("equal rewards are a pair", "max(rewards) > min(rewards)", "len(rewards) > 1"),
        (
            "the worse one comes first",
            "if first.total_reward > second.total_reward",
            "if first.total_reward < second.total_reward",
        ),
    ),
    *mutants(
        "data/replay_files.py",
        ("data/test_replay.py",),
        ("a partial line counts", '                if not line.endswith(b"\\n"):\n                    break\n', ""),
        ("arrays without a line stay", "            os.truncate(path, size)\n", ""),
        ("changed log-probabilities pass", "    if logprobs is not None:\n", "    if False:\n"),
        (
            "reference log-probabilities of the first entry",
            "file.seek(LOGPROB_BYTES * entry.first_logprob)",
            "file.seek(0)",
        ),
    ),
    *mutants(
        "data/episodes.py",
        ("data/test_text_episodes.py",),
        (
            "a failure counts as a success",
            "Status.SUCCEEDED if success else Status.FAILED",
            "Status.SUCCEEDED",
        ),
        ("a reward of 0 counts as a success", "rewards[-1] > 0", "rewards[-1] >= 0"),
        ("a termination counts as a time limit", ' and not _is_last_true(row.get("terminations"))', ""),
        ("the reward comes first", "(*[0.0] * (answers - 1), total)", "(total, *[0.0] * (answers - 1))"),
    ),
    *mutants(
        "data/demonstrations.py",
        ("data/test_text_episodes.py",),
        (
            "every episode is a task of its own",
            'address("opening", list(turns[0].context_ids))',
            'address("opening", [list(turn.action_ids) for turn in turns])',
        ),
    ),
    *mutants(
        "run/stored_images.py",
        ("run/test_visual_data.py",),
        ("the ids of another processor pass", "if recorded != given:", "if False:"),
        ("the list of images is not read", "if turn.images != find_images(turn.context_ids):", "if False:"),
        ("images of all episodes are copied", "self._files.keys() & set(hashes)", "self._files.keys()"),
    ),
    *mutants(
        "run/datasets.py",
        ("run/test_visual_data.py",),
        ("tokens of images are imitated", "min(turn.action_ids, default=0) < 0", "False"),
        ("the placeholder of images is a token", " and token_id != placeholder", ""),
        ("a killed fill keeps its episodes", "        replay.discard_from(0)  # of a fill that was killed\n", ""),
        ("the buffer grows on disk", "            replay.prune(0)\n", ""),
    ),
    *mutants(
        "run/datasets.py",
        ("run/test_data_tools.py",),
        ("greedy episodes count as sampled", '"" if sampler.is_exact else', '"" if True else'),
        ("an unknown sampler counts as exact", "        if sampler is None:\n", "        if False:\n"),
    ),
    *mutants(
        "run/stored_sources.py",
        ("run/test_data_tools.py",),
        ("evaluations of old runs count as training", 'if "evaluation" in row:', "if False:"),
    ),
    *mutants(
        "user_code/source_location.py",
        ("envs/test_picture_env.py",),
        ("a broken image ends the run", 'raise EnvironmentFailure(f"{where}: {error}") from error', "raise"),
    ),
    *mutants(
        "pictures/image.py",
        ("pictures/test_image.py",),
        ("16-bit images are white", "value / 256", "value"),
        ("photos lie on their side", "UPRIGHT.get(image.getexif().get(ORIENTATION))", "None"),
        ("animated images move in the viewer", ' and not getattr(image, "is_animated", False)', ""),
    ),
    *mutants(
        "pictures/image_store.py",
        ("pictures/test_image_store.py",),
        ("a changed image passes", "if image_hash(data) != file.stem:", "if False:"),
    ),
    *mutants(
        "core/trajectory.py",
        ("record/test_trajectories.py",),
        ("greedy samples are exact", "self.temperature > 0 and ", ""),
        ("samples with top-k are exact", " and self.top_k == 0", ""),
    ),
    *mutants(
        "core/trajectory.py",
        (*SAMPLES, "training/test_update.py", "training/test_utterance_critic.py", "rollout/test_context_summary.py"),
        ("every segment begins with turn 0", "first_turn=start", "first_turn=0"),
        (
            "a turn limit is bootstrapped",
            "(Status.TRUNCATED_TOKENS, Status.TRUNCATED_TIME, Status.TRUNCATED_LIMIT)",
            "(Status.TRUNCATED_TOKENS, Status.TRUNCATED_TIME, Status.TRUNCATED_LIMIT, Status.TRUNCATED_TURNS)",
        ),
        (
            "an imported time limit is an end",
            "self is Status.TRUNCATED_LIMIT or (bootstrap and self.cut_short)",
            "bootstrap and self.cut_short",
        ),
        ("summaries count as turns", "sum(not turn.is_summary for turn in self.turns)", "len(self.turns)"),
    ),
)
