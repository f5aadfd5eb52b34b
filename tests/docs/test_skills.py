"""The skill for coding agents has the Agent Skills format; test_blocks runs its commands."""

import re
from pathlib import Path

import pytest
import yaml

from pages_for_tests import ROOT, blocks_of, links_of, prose_of
from turnwise.record.catalogue import METRICS

SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_skill_has_name_and_description(skill: Path) -> None:
    _, front_matter, body = skill.read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(front_matter)
    assert fields["name"] == skill.parent.name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 0 < len(fields["description"]) <= 1024
    assert fields.keys() <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert len(body.splitlines()) < 500


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.parent.name)
def test_skill_links_each_of_its_files_and_no_others(skill: Path) -> None:
    """A skill is copied alone: it works without the rest of the repository."""
    files = {str(path.relative_to(skill.parent)) for path in skill.parent.rglob("*") if path.is_file()} - {"SKILL.md"}
    assert {link.partition("#")[0] for link in links_of(skill)} == files
    for file in files:
        assert list(links_of(skill.parent / file)) == []


def test_skill_names_existing_metrics() -> None:
    pages = [page for skill in SKILLS for page in skill.parent.rglob("*.md")]
    texts = [prose_of(page) + page.read_text(encoding="utf-8") for page in pages]
    named = {name for text in texts for name in re.findall(r"\b(?:rollout|train)/\w+", text)}
    assert len(named) > 5 and named <= {metric.name for metric in METRICS}


def test_skill_goes_through_the_steps() -> None:
    commands = "\n".join(block.text for skill in SKILLS for block in blocks_of(skill) if block.language == "bash")
    steps = ("doctor", "envs new", "envs check", "train", "report", "eval")
    assert [step for step in steps if f"turnwise {step}" not in commands] == []
