"""The system message: rules, actions, limits as they are in use, and the answer format."""

from turnwise.envs.answers import format_answer
from turnwise.envs.text_env import TextEnv


def system_prompt(env: TextEnv) -> str:
    """Equal for all episodes of equal parameters. Terse: a model of under a million parameters reads it on a CPU."""
    lines = [env.rules()]
    if env.action_names and not shows_examples(env):
        lines.append(f"Actions: {', '.join(env.action_names)}.")
    lines += [limits_text(env), format_text(env)]
    return "\n".join(line for line in lines if line)


def limits_text(env: TextEnv) -> str:
    """Both kinds of limit, a turn's and the episode's, so that neither is taken for the other."""
    a_turn = (
        "1 action a turn" if env.max_actions_per_turn == 1 else f"At most {env.max_actions_per_turn} actions a turn"
    )
    total = counted(env.max_turns, "turn")
    if env.max_actions is not None:
        total += f" and {counted(env.max_actions, 'action')}"
    return f"{a_turn}; at most {total} in all."


def shows_examples(env: TextEnv) -> bool:
    return bool(getattr(env.params, "examples", False))


def format_text(env: TextEnv) -> str:
    if shows_examples(env):
        answers = [format_answer([name]) for name in env.action_names]
        if env.max_actions_per_turn > 1:
            answers.append(format_answer([*env.action_names, *env.action_names][:2]))
        return f"Answer with {', '.join(answers[:-1])} or {answers[-1]}."
    example = format_answer(["action"] * min(env.max_actions_per_turn, 2))
    return f"Answer: {example}. You may think first: <think>thoughts</think>."


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
