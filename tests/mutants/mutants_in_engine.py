"""Mutants of turnwise.engine, models, record and cluster, where they affect training or observations."""

from mutant_for_tests import mutants

SAMPLING = ("engine/test_sampling.py", "engine/test_native.py")
VISION = ("models/test_vision.py",)
WHOLE_IMAGES = ("models/test_whole_images.py",)

CONSTRAINTS = ("engine/test_constraints.py",)
CONSTRAINED_TURNS = ("training/test_constrained_turns.py",)

FORKS = ("engine/test_fork.py", "engine/test_engine_contract.py")

IN_ENGINE = (
    *mutants(
        "engine/cpu/runner.py",
        FORKS,
        ("forks have an empty cache", "self._cache.copy(slot.index, [fork.index], cached)", "pass"),
        ("forks compute their context again", "del fork.pending[:cached]\n        fork.length = cached", "pass"),
        ("forks have a prefix that they did not copy", "and slot.prefix.length <= cached:", ":"),
        ("forks place text after images by its index", "fork.shift = end - cached", "pass"),
    ),
    *mutants(
        "engine/paged/page_table.py",
        FORKS,
        ("pages of forks are freed with the session", "self._owners[page] += 1", "pass"),
        (
            "forks write into the page of the session",
            "max(0, len(fork.ids) - 1)) // PAGE",
            "len(fork.ids)) // PAGE + 1",
        ),
        within="share_pages",
    ),
    *mutants(
        "engine/vllm/engine.py",
        FORKS,
        ("forks begin without a context", "self.state, key, self._context[:length]", "self.state, key"),
        ("forks ignore the length", "self.state, key, self._context[:length]", "self.state, key, self._context"),
    ),
    *mutants(
        "engine/cpu/runner.py",
        CONSTRAINTS,
        ("constrained requests sample from free logits", "batch.rows[index] = len(logits) + len(sets)", "pass"),
        ("constraints do not advance", "request.matcher.accept(token)", "pass"),
        ("constrained requests are drafted", "            return []\n        left", "            pass\n        left"),
    ),
    *mutants(
        "engine/paged/runner.py",
        CONSTRAINTS,
        ("the next set is computed before the token is known", "if self._pending is None or all(", "if True or all("),
        ("constrained passes sample several tokens", "steps = 1 if constrained else", "steps = 2 if constrained else"),
        ("constraints do not advance", "request.matcher.accept(tokens[0])", "pass"),
    ),
    *mutants(
        "engine/paged/device.py",
        CONSTRAINTS,
        ("free rows keep the sets of earlier ones", "self.allowed.fill_(255)", "pass"),
        ("the sets are not applied", "if constrained and self.allowed is not None:", "if False:"),
    ),
    *mutants(
        "models/allowed_tokens.py",
        (*CONSTRAINTS, *CONSTRAINED_TURNS),
        ("the bits are read backwards", "bits = 1 << torch.arange(8", "bits = 128 >> torch.arange(8"),
        ("free samples in a constrained batch have constraints", "(rows >= 0)[:, None] & ~", "~"),
    ),
    *mutants(
        "models/head.py",
        CONSTRAINED_TURNS,
        (
            "training on a GPU ignores constraints",
            "return logits if allowed is None else",
            "return logits if True else",
        ),
    ),
    *mutants(
        "render/grammar.py",
        (*CONSTRAINTS, "gateway/test_reply_grammar.py"),
        ("failed steps go on", "            if not self._matcher.is_error():\n", "            if True:\n"),
    ),
    *mutants(
        "engine/paged/runner.py",
        VISION,
        (
            "an evicted session keeps the place of its last turn",
            "            slot.placed = 0  #",
            "            pass  #",
        ),
        ("the next turn begins where its index is", "(past, past + slot.shift) if known", "(past, past) if known"),
    ),
    *mutants(
        "engine/cpu/sampling.py",
        SAMPLING,
        (
            "log-probabilities without the temperature",
            "(logits.float() / rows.temperatures[:, None]).log_softmax(dim=-1)",
            "logits.float().log_softmax(dim=-1)",
        ),
        (
            "the token that reaches top_p is cut off",
            "keep = before < top_p[:, None]",
            "keep = before + ordered < top_p[:, None]",
        ),
        ("top_k keeps one more", "ranks < top_k[:, None]", "ranks <= top_k[:, None]"),
        ("every token has the same random number", "addresses + (counters + 1) * GOLDEN", "addresses + GOLDEN"),
    ),
    *mutants(
        "engine/turn.py",
        SAMPLING,
        (
            "a token more than allowed",
            "len(turn.ids) >= turn.sampling.max_tokens",
            "len(turn.ids) > turn.sampling.max_tokens",
        ),
    ),
    *mutants(
        "engine/cpu/runner.py",
        ("engine/test_native.py",),
        ("values of rejected drafts are kept", "values[row : row + taken]", "values[row : row + each.read]"),
        ("values of another slot", "            row += entry.read\n\n    def _take", "\n    def _take"),
    ),
    *mutants(
        "models/critic.py",
        ("models/test_critic.py",),
        ("a new critic has an opinion", "    nn.init.zeros_(head.weight)\n", ""),
    ),
    *mutants(
        "models/critic.py",
        ("training/test_utterance_critic.py",),
        (
            "the critic trains the policy's trunk",
            "torch.set_grad_enabled(self.own_trunk and torch.is_grad_enabled())",
            "torch.set_grad_enabled(torch.is_grad_enabled())",
        ),
        (
            "the target reads an older policy",
            "copy.deepcopy(self, {id(self.trunk): self.trunk})",
            "copy.deepcopy(self)",
        ),
        ("V is read after the utterance", "head(states) for head", "head(utterances) for head"),
    ),
    *mutants(
        "record/run_folder.py",
        ("record/test_run_folder.py",),
        (
            "an interrupted evaluation stays in the index",
            '("evaluation" not in row or (row["evaluation"], row["step"]) in evaluated)',
            "True",
        ),
        ("an interrupted evaluation keeps its file", "if path not in kept:", "if False:"),
        ("evaluations among the training rows", 'entry.get("evaluation") == evaluation', "True"),
        ("an evaluation counts as a step", 'self.trajectories.glob("step_*")', 'self.trajectories.glob("*")'),
    ),
    *mutants(
        "models/vision/encoder.py",
        VISION,
        ("text after an image counts its tokens", "positions[:, span.end :] += shift", "pass"),
        ("the next turn counts an image's tokens", "            end += shift", "            pass"),
        (
            "rows and columns are swapped",
            "grid_of(time, rows // merge_size, columns // merge_size)",
            "grid_of(time, columns // merge_size, rows // merge_size)",
        ),
        ("features of old weights stay", "if version != self._version:", "if self._version < 0:"),
        (
            "inexact batches of a frozen tower",
            "1 < size <= len(alike) and self._is_exact",
            "1 < size <= len(alike) or self._is_exact",
        ),
        ("a frozen tower runs on single images", "1 < size <= len(alike) and", "False and"),
        ("images of other grids share a batch", "*inputs[GRIDS][0].tolist())", "inputs[GRIDS][0].prod().item())"),
        ("exactness with other threads", "case = torch.get_num_threads(), *layout", "case = layout"),
        ("a frozen tower trains", "parameter.requires_grad_(False)", "parameter.requires_grad_(True)"),
    ),
    *mutants(
        "engine/cpu/runner.py",
        VISION,
        ("copies of a context forget its images' sizes", "= source.length, source.shift", "= source.length, 0"),
    ),
    *mutants(
        "models/head.py",
        VISION,
        ("image tokens are sampled", "layer.never_sampled, NEVER)", "layer.never_sampled, 0.0)"),
        ("image tokens are sampled from the output head", "self.never_sampled, NEVER)", "self.never_sampled, 0.0)"),
    ),
    *mutants(
        "models/vision/architectures.py",
        VISION,
        ("video tokens are sampled", "(config.image_token_id, getattr(", "(config.image_token_id, None and getattr("),
    ),
    *mutants(
        "models/vision/whole_images.py",
        WHOLE_IMAGES,
        ("images see the next row", ".cumsum(0) - 1] = False", ".cumsum(0) - 1] &= True"),
        ("images see the token after them", "(~goes_on).nonzero()", "goes_on.nonzero()"),
        ("passes end inside images", "        end -= 1", "        break"),
    ),
    *mutants(
        "models/attention/packed.py",
        WHOLE_IMAGES,
        ("images in shared prompts are causal", "_pad_ahead(ahead, slice(done), self.prefixes)", "None"),
        ("images in rows are causal", "_pad_ahead(ahead, slice(start, start + self.rows.tokens), self.rows)", "None"),
    ),
    *mutants(
        "models/attention/varlen.py",
        WHOLE_IMAGES,
        ("images are causal on a GPU", "self.ahead = ahead", "self.ahead = None"),
        ("images are causal backward", "softcap_grad = _scores(q, k, ahead,", "softcap_grad = _scores(q, k, None,"),
    ),
    *mutants(
        "engine/paged/runner.py",
        WHOLE_IMAGES,
        ("images enter the cache in parts", "                end = end_before_image(ids, end)", "                pass"),
    ),
    *mutants(
        "engine/paged/reference.py",
        WHOLE_IMAGES,
        ("images are causal in pages", "seen = None if ahead is None else ahead[tokens]", "seen = None"),
    ),
    *mutants(
        "models/vision/processor.py",
        VISION,
        ("all tokens of an image are its first", "first - index", "first"),
    ),
    *mutants(
        "models/weights.py",
        ("models/test_weights.py",),
        (
            "frozen parameters are copied again",
            "own is new or (self._sources.has(name, new) and self._copies.has(name, own))",
            "own is new",
        ),
        ("loaded weights are not copied", " and seen[1] == tensor._version", ""),
        ("copied bytes are not counted", "            self.copied_bytes += own.nbytes\n", ""),
        ("weights of another model are not copied", "seen[0]() is tensor and ", ""),
        ("what overwrote a copy stays", " and self._copies.has(name, own))", ")"),
        ("trained parameters are copied once", "if not new.requires_grad:", "if True:"),
    ),
    *mutants(
        "engine/vllm/weights.py",
        ("engine/test_vllm_images.py",),
        (
            "frozen vision towers are published again",
            "if not all(self._seen.has(*item) for item in tower.items()):",
            "if True:",
        ),
        (
            "loaded vision towers are not published",
            "if not all(self._seen.has(*item) for item in tower.items()):",
            "if not self.number:",
        ),
        (
            "trained vision towers are published once",
            "if any(parameter.requires_grad for parameter in tower.values()):",
            "if False:",
        ),
        (
            "adapters of vision towers are not merged",
            "dict(merge_adapter(frozen, self._adapter))",
            "{checkpoint_name(base_name(n)): each for n, each in frozen.items() if not _is_update(n)}",
        ),
    ),
    *mutants(
        "engine/vllm/in_process.py",
        ("engine/test_vllm_sleep.py",),
        (
            "restarted engines do not get frozen weights",
            "self._frozen_part, self._asleep = llm, None, None, set()",
            "self._asleep = llm, None, set()",
        ),
        ("features of changed vision towers stay", "if self._reads_images and not has_frozen:", "if False:"),
    ),
    *mutants(
        "cluster/weights.py",
        ("cluster/test_published_weights.py",),
        (
            "frozen weights are stored again",
            "if self._frozen is None or not all(self._seen.has(*entry) for entry in frozen):",
            "if True:",
        ),
        ("loaded weights are not stored", " or not all(self._seen.has(*entry) for entry in frozen)", ""),
    ),
    *mutants(
        "cluster/replica_pool.py",
        ("cluster/test_published_weights.py",),
        ("a new actor has no frozen weights", "replica.frozen == (actor, frozen)", "replica.frozen is not None"),
        ("frozen weights are sent again", "replica.frozen == (actor, frozen)", "False"),
    ),
)
