"""Thank-you notes that a judge scores. A program stands in for the judge model, so that this runs without a key.

    python examples/judged_writing/writer.py

With a judge of your own: OPENAI_API_KEY=... python writer.py --judge gpt-5-mini
"""

import argparse
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import turnwise as tw

GIFTS = ("book", "cake", "card", "game")
RUBRIC = "A polite thank-you note: it thanks, names the gift and has no rude word. Short is fine."
KIND_WORDS, RUDE_WORDS = ("thanks", "good", "like"), ("boring", "wrong", "none")
NOTE = re.compile(r"<<<BEGIN agent \w+>>>\n(.*?)\n<<<END", re.DOTALL)
"""The text of the agent in the request for the judge."""


class Writer(tw.TextEnv):
    """Write a thank-you note for the gift."""

    max_turns = 1

    def reset(self, rng: random.Random) -> str:
        self.gift = rng.choice(GIFTS)
        return f"The gift: {self.gift}"

    def step(self, action: str) -> tw.Outcome:
        """Pay nothing: the reward is the judge's. Success is a check that the judge knows nothing of."""
        words = action.split()
        good = "thanks" in words and self.gift in words and not set(words) & set(RUDE_WORDS)
        return tw.won(reward=0.0) if good else tw.lost()

    def random_action(self, rng: random.Random) -> str:
        """Draw three words: `tiny` knows none, and learns these in its warm-up."""
        return " ".join(rng.choices((*KIND_WORDS, *RUDE_WORDS, *GIFTS), k=3))


def score(request: str, note: str) -> int:
    """Score a note from 0 to 10, as the rubric says: the stand-in for a judge model."""
    words, gift = re.findall(r"\w+", note), re.search(r"The gift: (\w+)", request)
    polite = 3 * any(word in words for word in KIND_WORDS) + 2 * ("thanks" in words)
    rude = 5 * any(word in words for word in RUDE_WORDS)
    return max(0, polite + 5 * (gift is not None and gift[1] in words) - rude)


class Judge(BaseHTTPRequestHandler):
    """Answer chat completions with scores, in the form that turnwise asks a judge for."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = request["messages"][-1]["content"]
        note = NOTE.search(text)
        said = "OK" if note is None else json.dumps({"reason": "words", "score": score(text, note[1])})
        message = {"role": "assistant", "content": said}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: Any) -> None:
        """Print nothing."""


@contextmanager
def serve_judge() -> Iterator[str]:
    """Serve the stand-in on a free port; yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


SETTINGS: dict[str, Any] = {
    "model": "tiny",
    "model__warmup_steps": 120,
    "steps": 25,
    "rollout__groups": 16,
    "rollout__group_size": 8,
    "rollout__max_new_tokens": 16,
    "rollout__max_tokens": 256,
    "algo__advantage": "grpo",
    "algo__kl_coef": 0.05,
    "algo__kl_estimator": "k2",
    "train__learning_rate": 1e-3,
    "train__optimizer": "muon",
    "train__optimizer__learning_rate": 0.01,
    "train__mini_batch": 64,
    "name": "judged-writing",
}


def train(judge: dict[str, Any], **settings: Any) -> tw.Run:
    """Train a writer of notes with the scores of this judge."""
    return tw.train(env=Writer, reward__judges=[{"rubric": RUBRIC, "name": "note"} | judge], **SETTINGS | settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judge", help="model of the judge; default: the stand-in")
    given = parser.parse_args()
    if given.judge:
        train({"model": given.judge})
    else:
        with serve_judge() as url:
            train({"model": "stand-in", "endpoint": url})
