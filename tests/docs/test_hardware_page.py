"""The table of docs/hardware.md is what `turnwise doctor --plan` prints."""

import re

import pytest

from pages_for_tests import ROOT
from turnwise.cli.main import main

MEASURES = {"A": "activations recomputed", "K": "KV cache released", "H": "optimizer states on the host"}


def cells() -> dict[tuple[str, int, int], str]:
    """Return the cells of the first table by shape, LoRA rank and GPU memory."""
    page = (ROOT / "docs/hardware.md").read_text(encoding="utf-8").partition("## Seconds per step")[0]
    sizes = [
        int(size) for size in re.findall(r"(\d+) GiB \|", next(line for line in page.splitlines() if "12 GiB" in line))
    ]
    table, shape = {}, ""
    for line in page.splitlines():
        if row := re.match(
            r"\| [\d.]+[MB](?: \(`(?P<shape>.+?)`\))?, (?P<weights>all|LoRA of rank 16) \|(?P<cells>.*)\|$", line
        ):
            shape = row["shape"] or shape
            rank = 0 if row["weights"] == "all" else 16
            table |= {
                (shape, rank, size): cell.strip() for size, cell in zip(sizes, row["cells"].split("|"), strict=True)
            }
    return table


def test_table_has_all_models() -> None:
    assert len(cells()) == 6 * 2 * 7


@pytest.mark.parametrize(
    "cell", [("smollm2-135m", 16, 12), ("qwen2.5-1.5b", 0, 24), ("qwen2.5-7b", 0, 48), ("qwen2.5-7b", 16, 141)]
)
def test_cell_is_the_plan(cell: tuple[str, int, int], capsys: pytest.CaptureFixture[str]) -> None:
    shape, rank, size = cell
    main(["doctor", "--plan", "--shape", shape, "--gpu-memory", str(size), "--lora.rank", str(rank)])
    output = " ".join("".join(capsys.readouterr()).split())
    needed = re.search(r"needs ([\d.]+) GiB", output)
    measures = " ".join(letter for letter, text in MEASURES.items() if text in output) or "yes"
    assert cells()[cell] == (needed[1] if needed else measures)
