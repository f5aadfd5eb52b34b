"""A judged run in a process of its own, for a test that kills it: FOLDER URL, and "resume" to go on with it."""

import sys
from pathlib import Path

from runs_for_tests import quiet, small
from turnwise.core.errors import UserError
from turnwise.recipes.run import train


def main(folder: Path, url: str, resume: bool) -> None:
    judge = {"model": "m", "rubric": "says much", "endpoint": url, "cache": str(folder / "verdicts")}
    judge |= {"mode": "relative", "concurrency": 1, "max_calls": 5}
    config = small(folder, reward__judges=(judge,), train__steps=50, eval__every=0, checkpoint__every=100)
    try:
        train(config, resume=resume, console=quiet())
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["resume"])
