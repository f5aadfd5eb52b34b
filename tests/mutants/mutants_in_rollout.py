"""Mutants of turnwise.rollout: episodes, contexts, groups, tasks."""

from mutant_for_tests import mutants

CONTEXTS = ("rollout/test_episode.py", "rollout/test_contexts.py")
SUMMARY = ("rollout/test_context_summary.py",)
WINDOW = ("rollout/test_context_window.py",)
MEMORY = ("rollout/test_context_turn.py",)
COLLECT = ("rollout/test_collect.py",)
TASKS = ("rollout/test_tasks.py",)
BRANCHES = ("evaluation/test_branches.py",)

IN_ROLLOUT = (
    *mutants(
        "rollout/episode.py",
        CONTEXTS,
        ("a new context goes on with the old one's cache", "restart=not pending.extends", "restart=False"),
        ("invalid answers are not marked", "invalid=step.invalid", "invalid=False"),
        ("turns of a new context extend the old one", "extends=extends", "extends=True"),
        (
            "log-probabilities are lost",
            "action_logprobs=completion.logprobs",
            "action_logprobs=(0.0,) * len(completion.ids)",
        ),
    ),
    *mutants(
        "rollout/episode.py",
        (*CONTEXTS, *SUMMARY),
        (
            "a full context is asked again",
            "pending.context_length < self.max_tokens",
            "pending.context_length <= self.max_tokens",
        ),
        (
            "the last turn overruns the context",
            "most = min(most, self.max_tokens - pending.context_length)",
            "most = min(most, self.max_tokens)",
        ),
        (
            "a summary has a turn's budget",
            "self.sampling.max_tokens if pending.max_new_tokens is None else pending.max_new_tokens",
            "self.sampling.max_tokens",
        ),
    ),
    *mutants(
        "rollout/context.py",
        (*WINDOW, *CONTEXTS),
        (
            "sampled tokens take no room",
            "pending.context_length + len(turn.action_ids) + len(ids)",
            "pending.context_length + len(ids)",
        ),
        ("an opening without a system message is lost", "if keep_opening or not system", "if keep_opening"),
        (
            "an empty observation opens no turn",
            "return tuple(messages) or (EMPTY_OBSERVATION,)",
            "return tuple(messages)",
        ),
        (
            "a new context is counted on top of the old",
            "extends=False, context_length=len(ids))",
            "extends=False, context_length=pending.context_length + len(ids))",
        ),
    ),
    *mutants(
        "rollout/context_modes.py",
        (*WINDOW, *CONTEXTS),
        ("the window slides a turn early", "first_shown <= self._turns:", "first_shown < self._turns:"),
        (
            "observations before their actions",
            "for part in (turn.action_ids, shown.ids)",
            "for part in (shown.ids, turn.action_ids)",
        ),
        (
            "a turn too many is kept",
            "first_shown=len(turns) - self._turns)",
            "first_shown=len(turns) - self._turns - 1)",
        ),
    ),
    *mutants(
        "rollout/context_modes.py",
        SUMMARY,
        ("a summary a token late", "grown.context_length >= self.tokens", "grown.context_length > self.tokens"),
        (
            "a summary every turn after the first",
            "len(grown.observations) - grown.first_shown >= self.turns",
            "len(grown.observations) >= self.turns",
        ),
        ("the thinking is part of the summary", '.rpartition("</think>")[2]', ""),
        ("later turns keep the summary's budget", "is_summary=False, max_new_tokens=None", "is_summary=False"),
        (
            "the hook reads the last observation",
            "return messages[: len(messages) - len(pending.observations[-1].messages)]",
            "return messages",
        ),
    ),
    *mutants(
        "rollout/context_modes.py",
        MEMORY,
        ("all turns are remembered", "first = max(0, len(turns) - count)", "first = 0"),
        ("the oldest turns are remembered", "for entry in reversed(entries):", "for entry in entries:"),
        ("turns are numbered from 0", "enumerate(both, 1)", "enumerate(both, 0)"),
        ("memory is longer than allowed", "chars -= len(kept[-1]) + len(SEPARATOR)", "chars -= len(kept[-1])"),
    ),
    *mutants(
        "rollout/collect.py",
        COLLECT,
        ("a group of one is trained", "len(left) >= min(2, group_size)", "len(left) >= 1"),
        ("groups of one task sample alike", "first = drawn[name] * group_size", "first = 0"),
        (
            "failures are counted as the other kind",
            "if isinstance(failure, InfrastructureFailure):",
            "if not isinstance(failure, InfrastructureFailure):",
        ),
        ("all episodes at once", "asyncio.Semaphore(max(1, self.in_flight // many))", "asyncio.Semaphore(total)"),
        ("members share their randomness", "member=index, attempt=attempt", "member=0, attempt=attempt"),
    ),
    *mutants(
        "user_code/source_location.py",
        COLLECT,
        (
            "an environment's error is the run's",
            'raise EnvironmentFailure(f"{where} raised {describe_bug(error)}") from error',
            "raise",
        ),
    ),
    *mutants(
        "rollout/failures.py",
        COLLECT,
        (
            "an infrastructure failure draws other randomness",
            "            last = failure\n        except EnvironmentFailure",
            "            last, attempt = failure, attempt + 1\n        except EnvironmentFailure",
        ),
        (
            "an environment's failure meets the same randomness",
            "last, attempt = failure, attempt + 1",
            "last = failure",
        ),
        ("an attempt too few", "range(attempts)", "range(attempts - 1)"),
    ),
    *mutants(
        "rollout/tasks.py",
        (*TASKS, "rollout/test_counted_tasks.py"),
        ("a refill draws the first tasks again", "][start:]", "][:count]"),
        ("the same task twice in a step", "[position] = 0.0", "[position] += 0.0"),
        (
            "every step draws the same tasks",
            'address("task", self.run_seed, step, index)',
            'address("task", self.run_seed, index)',
        ),
        (
            "environments have held-out tasks of their own numbers",
            "(number // many, self.mix[number % many])",
            "(number, self.mix[number % many])",
        ),
        ("a step meets rows again", "rng.randrange(position, size)", "rng.randrange(size)"),
        (
            "training tasks are evaluated",
            "split=split, seed=seed_for(split, index)",
            'split=split, seed=seed_for("train", index)',
        ),
    ),
    *mutants(
        "rollout/tasks.py",
        TASKS,
        ("solved tasks are drawn most", "4 * rate * (1 - rate)", "rate"),
        ("the floor is a ceiling", "max(MIN_WEIGHT, 4", "min(MIN_WEIGHT, 4"),
        ("old tries are never forgotten", "MEMORY * tries + len(", "tries + len("),
    ),
    *mutants(
        "rollout/failures.py",
        ("rollout/test_failures.py",),
        (
            "the share that may be lost stops the run",
            "dropped > MAX_DROPPED_SHARE * total",
            "dropped >= MAX_DROPPED_SHARE * total",
        ),
        ("old steps are held against the run", "deque(maxlen=WINDOW_STEPS)", "deque()"),
    ),
    *mutants(
        "rollout/selfplay.py",
        ("rollout/test_matches.py",),
        (
            "the policy plays its opponent's side",
            "self.policy if side in collected or self.opponent is None else self.opponent",
            "self.policy",
        ),
    ),
    *mutants(
        "rollout/matches.py",
        ("rollout/test_matches.py",),
        ("sides are swapped", "running[tasks.index(key.task)]", "running[1 - tasks.index(key.task)]"),
    ),
    *mutants(
        "rollout/roles.py",
        ("rollout/test_roles.py",),
        ("a frozen policy is not used", "self.frozen.get(role, self.policy)", "self.policy"),
        ("one role's task alone is a match", "return len(self.trained)", "return 1"),
    ),
    *mutants(
        "rollout/collect.py",
        ("rollout/test_roles.py",),
        ("a role without a turn is trained", "is not None and not trajectory.never_acted)", "is not None)"),
        ("a role without a turn is lost", "total - unplayed - sum(", "total - sum("),
    ),
    *mutants(
        "rollout/tasks.py",
        ("rollout/test_matches.py",),
        ("the second side is never played", "as_player(task, number % 2)", "as_player(task, 0)"),
        ("a refill draws the same matches", "start // players, success_counts", "0, success_counts"),
    ),
    *mutants(
        "envs/roles/match.py",
        ("envs/test_roles_env.py",),
        ("rewards are lost", "self._rewards[role] += to_float(reward)", "self._rewards[role] = 0.0"),
        ("an observation is shown again", "self._unseen.pop(role, [])", "self._unseen.get(role, [])"),
        ("the role that acted acts again", "(roles.index(actor) + 1) % len(roles)", "roles.index(actor)"),
        ("a role that left is waited for", "self._scripted.add(role)", "pass"),
    ),
    *mutants(
        "rollout/held_env.py",
        ("rollout/test_held_env.py",),
        ("a call goes on after the end", "self._running.cancel()", "pass"),
        ("a long episode is not cut", "self._new_clock() if self._per_call else self._clock", "self._new_clock()"),
        ("time is counted twice", "clock.outside_s - before_s", "clock.outside_s + before_s"),
    ),
    *mutants(
        "rollout/chat_episode.py",
        ("rollout/test_chat_episode.py",),
        (
            "the endpoint may overrun the context",
            "max_tokens=min(limits.sampling.max_tokens, limits.max_tokens - used)",
            "max_tokens=limits.sampling.max_tokens",
        ),
        ("every turn has the same seed", 'address("chat", key.address, len(turns))', 'address("chat", key.address)'),
        ("the model does not see what it said", "        history.append(reply.message)\n", ""),
    ),
    *mutants(
        "rollout/recorded.py",
        BRANCHES,
        ("a record answers in any context", "tuple(ids) != turn.context_ids or ", ""),
        ("all branches sample the same tokens", "* MAX_BRANCHES + number", "* MAX_BRANCHES"),
        ("a branch forgets the last token of its context", "context[self._held :]", "context[self._held + 1 :]"),
    ),
    *mutants(
        "evaluation/replay.py",
        BRANCHES,
        ("branches repeat the luck of the record", "if self._left == 0 and", "if self._left == -1 and"),
        ("a turn is lost where success never fell", "if largest > 0 else", "if largest >= 0 else"),
    ),
)
