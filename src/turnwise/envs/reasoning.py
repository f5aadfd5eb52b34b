"""Visual reasoning as in VAGEN: the reply describes the state (grounding), predicts the next one, or both.

    grounding         <think><observation>facts</observation><reasoning>...</reasoning></think><answer>...</answer>
    world_modelling   <think><reasoning>...</reasoning><prediction>facts</prediction></think><answer>...</answer>
    both              all three sections

A state is a set of facts, one per line, as `TextEnv.state_text` returns them. Each turn pays weight * F1 of the facts
in a section against those of the true state: before the actions for `<observation>`, after them for `<prediction>`.
Without `state_text` a judge, who sees the observation, scores the sections instead of the F1.
"""

import re
from collections import Counter
from typing import Literal

from turnwise.render.parse import read_sections

ReasoningFormat = Literal["free", "grounding", "world_modelling", "both"]
SECTIONS: dict[ReasoningFormat, tuple[str, ...]] = {
    "free": (),
    "grounding": ("observation",),
    "world_modelling": ("prediction",),
    "both": ("observation", "prediction"),
}
"""Sections of the reply that hold a state."""
REWARD_NAMES = {"observation": "grounding", "prediction": "prediction"}
"""Name of each section's reward."""
MAX_SECTION_CHARS = 20_000
"""A longer section scores 0."""


def formats_with(section: str) -> tuple[ReasoningFormat, ...]:
    """Return the formats of replies that have this section."""
    return tuple(form for form, states in SECTIONS.items() if section in states or (states and section == "reasoning"))


def read_section(text: str, name: str) -> str | None:
    """Return the last section of this name in a reply; None if there is none, or if it is too long to be scored.

    Sections are those of the token masks: closed, inside closed thinking, and not inside another section.
    """
    section = next((section for section_name, section in reversed(read_sections(text)) if section_name == name), None)
    return None if section is None or len(section) > MAX_SECTION_CHARS else section


def fact_f1(described: str, state: str) -> float:
    """Return the F1 of two texts as multisets of lines, ignoring case, order, spaces and punctuation at line ends.

    F1 = 2 |D and S| / (|D| + |S|): 1 only for exactly the facts of the state; each false fact costs as much as a
    missing one, so listing every possible fact does not pay. Two empty texts are equal.
    """
    described_facts, state_facts = _facts(described), _facts(state)
    total = described_facts.total() + state_facts.total()
    return 2 * (described_facts & state_facts).total() / total if total else 1.0


def _facts(text: str) -> Counter[str]:
    lines = (re.sub(r"\s+", " ", line).strip(" \t.,;:-*").casefold() for line in text.splitlines())
    return Counter(line for line in lines if line)


def format_reasoning(form: ReasoningFormat, thought: str, observation: str, prediction: str) -> str:
    """Return the inside of `<think>`, for demonstrations."""
    sections = {"observation": observation, "reasoning": thought, "prediction": prediction}
    shown = [name for name in sections if name == "reasoning" or name in SECTIONS[form]]
    return "".join(f"<{name}>{sections[name]}</{name}>" for name in shown)


def describe_format(form: ReasoningFormat, answer: str, example: str) -> str:
    """Return the line of the prompt that states the format. `answer`: the answer's form; `example`: a fact, or none."""
    inside = format_reasoning(form, "thoughts", "facts you see", "facts after your actions")
    return (
        f"Answer: <think>{inside}</think>{answer}. Write one fact per line{f', as in: {example}' if example else '.'}"
    )
