"""Mutants of turnwise.rewards."""

from mutant_for_tests import mutants

WORTH = ("rewards/test_reward_details.py",)
SCORING = (
    *WORTH,
    "rewards/test_rubrics.py",
    "rewards/test_scoring.py",
    "rewards/test_scoring_groups.py",
    "rewards/test_functions.py",
)
PARTS = (*WORTH, "rewards/test_rubrics.py")
CODE = (*WORTH, "rewards/test_unit_tests.py")
SQL = (*WORTH, "rewards/test_sql_results.py")
REASONING = ("envs/test_reasoning.py",)
SVG = ("envs/test_svg_reconstruction.py",)
JUDGES = ("rewards/test_judge_groups.py",)
STATES = ("envs/test_state_judge.py",)

IN_REWARDS = (
    *mutants(
        "envs/reasoning.py",
        REASONING,
        (
            "facts are counted once",
            "2 * (described_facts & state_facts).total()",
            "2 * len(described_facts & state_facts)",
        ),
        ("false facts cost nothing", "total = described_facts.total()", "total = state_facts.total()"),
        ("any fact counts", "(described_facts & state_facts)", "(described_facts | state_facts)"),
        ("the first section counts", "reversed(read_sections(text))", "read_sections(text)"),
        ("a section may be of any length", "len(section) > MAX_SECTION_CHARS", "False"),
    ),
    *mutants(
        "envs/state_rewards.py",
        STATES,
        (
            "a prediction is compared with the state before",
            '"observation": before, "prediction": after',
            '"observation": before, "prediction": before',
        ),
        (
            "a description is compared with the state after",
            '"observation": before, "prediction": after',
            '"observation": after, "prediction": after',
        ),
        ("the weights of states are not read", 'getattr(self._env.params, f"{name}_reward") * score', "score"),
        ("an invalid turn's prediction is scored", 'if not acted and "prediction" in texts:', "if False:"),
        ("all states are described", 'predicted=name == "prediction"', "predicted=False"),
        within="StateRewards",
    ),
    *mutants(
        "rewards/judge/client.py",
        (*STATES, "rewards/test_judge_endpoint.py"),
        ("images are not part of the key", "hashlib.sha256(part.data).hexdigest()", '"image"'),
        ("a deterministic judge is asked in vain again", "if key in self._failures:", "if False:"),
        ("judges that sample are not asked again", "self._settings.temperature == 0 or", "True or"),
    ),
    *mutants(
        "rewards/judge/prompts.py",
        STATES,
        ("a description is not fenced", "fence.wrap(AGENT, description.text, settings.max_chars)", "description.text"),
        within="state_prompt",
    ),
    *mutants(
        "rewards/scoring.py",
        STATES,
        ("states are judged where success alone is read", "if _first_part_only.get():", "if False:"),
        within="score_states",
    ),
    *mutants(
        "envs/svg_reconstruction/env.py",
        SVG,
        ("every turn pays its whole score", "max(0.0, score - self.best_score), max", "score, max"),
        ("a worse picture becomes the best", "max(score, self.best_score)", "score"),
        ("the weights are swapped", "weight * structure + (1", "weight * pixels + (1"),
        ("the renderer of answers sees targets", "self.renderers.targets.render", "self.renderers.answers.render"),
        ("tasks depend on the limits", '(*TextEnv.view_params, "timeout_s", "memory_mb")', "TextEnv.view_params"),
    ),
    *mutants(
        "envs/svg_reconstruction/scoring.py",
        SVG,
        ("pixels score below 0", "float(max(0.0, 1.0 - error / blank))", "float(1.0 - error / blank)"),
        ("two shapes pair with one", "and not taken >> index & 1", ""),
        ("further shapes cost nothing", "/ (len(shapes) + len(target))", "/ (2 * len(target))"),
        ("shapes of other kinds are alike", "one.kind != other.kind or", ""),
        ("colours do not count", "+ 1 - difference) / 2", "+ 1) / 2"),
    ),
    *mutants(
        "envs/svg_reconstruction/renderer.py",
        SVG,
        ("forged pixels are cut to size", "size + 1)", "size)"),
        ("a session draws for ever", "and slot.num_pictures < MAX_PICTURES", ""),
        ("a session draws once", "slot.session = session", "pass"),
    ),
    *mutants(
        "rewards/scoring.py",
        SCORING,
        ("the format penalty is a bonus", "tuple(reward - penalty for", "tuple(reward + penalty for"),
        ("valid turns are penalised", "format_penalty if turn.invalid else 0.0", "format_penalty"),
        ("invalid turns are not penalised", "format_penalty if turn.invalid else 0.0", "0.0"),
        ("reward weights are not read", "[weights[name] * reward for", "[reward for"),
        ("the recorded penalty has the wrong sign", "0.0 - sum(penalties)", "sum(penalties)"),
        ("a group of one goes on", "len(members) < min(MIN_MEMBERS, size)", "len(members) < 1"),
        ("the environment's weight is not read", "and rewards.weights[ENV] == 1.0", ""),
        (
            "the environment's reward is recorded with its penalty",
            "totals = {name: sum(turns) for name, turns in named.items()}",
            "totals = {name: sum(turns) for name, turns in {ENV: member.turn_rewards, **named}.items()}",
        ),
        (
            "turns are added up",
            "return tuple(map(sum, zip(*weighted, strict=True)))",
            "return (*[0.0] * (len(weighted[0]) - 1), sum(map(sum, weighted)))",
        ),
        ("a part may give NaN", "if not math.isfinite(score):", "if math.isinf(score):"),
        (
            "an unavailable part fails the environment",
            "raise _reward_failure(name, failure) from failure\n    except FOREIGN",
            "raise EnvironmentFailure(str(failure)) from failure\n    except FOREIGN",
        ),
        ("success takes more than the bound", ">= success_at", "> success_at"),
    ),
    *mutants(
        "rewards/functions.py",
        SCORING,
        ("the outcome counts at every turn", "([0.0] * turns + [plain])[1:]", "[plain] * turns"),
        ("the outcome counts at the first turn", "([0.0] * turns + [plain])[1:]", "([plain] + [0.0] * turns)[:turns]"),
        ("too many numbers are cut off", "if len(plain) != turns:", "if len(plain) < turns:"),
        ("rewards may be infinite", "if not all(map(math.isfinite, numbers)):", "if any(map(math.isnan, numbers)):"),
    ),
    *mutants(
        "rewards/text_answers.py",
        PARTS,
        ("f1 is halved", "2 * shared / (len(words)", "shared / (len(words)"),
        ("half of the answer is enough", "shared > precision * len(words)", "shared >= precision * len(words)"),
        ("articles count", "if word not in ARTICLES] or words)", "] or words)"),
        ("the bound itself is too little", "share >= at_least", "share > at_least"),
        ("thousands are two numbers", 'THOUSANDS.sub("", text.lower())', "text.lower()"),
        (
            "repeated words count again",
            "shared = (Counter(words) & Counter(expected)).total()",
            "shared = sum(word in expected for word in words)",
        ),
    ),
    *mutants(
        "rewards/text_answers.py",
        PARTS,
        ("every accepted answer must match", "return max(exact_match(", "return min(exact_match("),
    ),
    *mutants(
        "rewards/text_answers.py",
        PARTS,
        ("length is a bonus", "0.0 - min(1.0, max(", "min(1.0, max("),
        ("length is measured by the hard limit", "over / (self.hard - self.soft)", "over / self.hard"),
        ("the last n-gram is not counted", "range(len(units) - self.n + 1)", "range(len(units) - self.n)"),
        ("repetition is a bonus", "0.0 - (1 - len(set(ngrams)) / len(ngrams))", "(1 - len(set(ngrams)) / len(ngrams))"),
    ),
    *mutants(
        "rewards/text_answers.py",
        PARTS,
        ("search and full match swapped", 'self.match == "full"', 'self.match != "full"'),
    ),
    *mutants(
        "rewards/rubric.py",
        PARTS,
        ("the environment's words are the agent's", ' if message.role == "assistant"]', "]"),
    ),
    *mutants(
        "rewards/unit_tests.py",
        CODE,
        ("the first block is tested", "blocks[-1] if blocks", "blocks[0] if blocks"),
    ),
    *mutants(
        "rewards/unit_tests.py",
        CODE,
        ("a difference is taken for equality", "ast.Eq | ast.Is)", "ast.Eq | ast.Is | ast.NotEq)"),
        ("the first function is called", "found[-1] if found", "found[0] if found"),
        ("a list is one argument", "if isinstance(arguments, list) else", "if isinstance(arguments, tuple) else"),
    ),
    *mutants(
        "rewards/unit_tests.py",
        CODE,
        ("what was printed first counts", "line.startswith(MARK)][-count:]", "line.startswith(MARK)][:count]"),
        (
            "missing results pass",
            "found + [NO_RESULT] * (count - len(found))",
            "found + found[:1] * (count - len(found))",
        ),
        ("an error is a value", "return ExpressionResult(fine is True, text)", "return ExpressionResult(True, text)"),
    ),
    *mutants(
        "rewards/sql_results.py",
        SQL,
        (
            "fewer rows are enough",
            "if len(actual.rows) != len(expected.rows):",
            "if len(actual.rows) > len(expected.rows):",
        ),
        ("rows are compared in order where nobody asked", "    if ordered:\n", "    if not ordered:\n"),
        ("an inner ORDER BY counts", "if depth == 0:", "if depth >= 0:"),
        ("one row answers for two", "        del left[match]\n", ""),
        (
            "ids are rounded",
            "isinstance(one, int) and isinstance(other, int)",
            "isinstance(one, str) and isinstance(other, str)",
        ),
        ("a result that was cut short is compared", "if not (actual.complete and expected.complete) or", "if"),
    ),
    *mutants(
        "rewards/judge/judges.py",
        JUDGES,
        ("the second order counts for the wrong one", "(first + 1 - second) / 2", "(first + second) / 2"),
        ("a verdict at the first turn", "(*zeros[1:], reward)", "(reward, *zeros[1:])"),
        (
            "twins lose against each other",
            "won = [TIE * duplicates for duplicates in met]",
            "won = [0.0 * duplicates for duplicates in met]",
        ),
        ("an opponent's share is the member's own", "(other, one, 1 - share)", "(other, one, share)"),
    ),
    *mutants(
        "rewards/judge/prompts.py",
        (*JUDGES, "rewards/test_judge_hostile.py", "rewards/test_judge_endpoint.py"),
        ("the scale does not begin at its low end", "(score - low) / (high - low)", "score / high"),
        ("the winner loses", '{"1": 1.0, "2": 0.0,', '{"1": 0.0, "2": 1.0,'),
        ("scores beyond the scale pass", "if not low <= score <= high:", "if not low <= score:"),
    ),
    *mutants(
        "rewards/judge/budget.py",
        ("rewards/test_judge_endpoint.py",),
        (
            "requests under way cost nothing",
            "self._max_tokens - self.counts.tokens - self._reserved",
            "self._max_tokens - self.counts.tokens",
        ),
        ("a call too many", "if self.counts.calls >= self._max_calls:", "if self.counts.calls > self._max_calls:"),
    ),
)
