"""Search: BM25 over titles and features (Robertson and Zaragoza 2009), ties in the order of the catalogue."""

import math
import re
from collections import Counter, defaultdict
from functools import lru_cache

from turnwise.envs.web_shop.catalogue import Product, make_catalogue

K1, B = 1.2, 0.75
MOST_WORDS = 40
"""Of a query: more say nothing new."""
MOST_RESULTS = 50
WORD = re.compile(r"[a-z0-9]+")


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


class Ranking:
    def __init__(self, products: tuple[Product, ...]) -> None:
        self.products = products
        texts = [words_of(_indexed(product)) for product in products]
        mean = sum(map(len, texts)) / len(texts)
        known = Counter(word for text in texts for word in set(text))
        self._postings: dict[str, list[tuple[int, float]]] = {word: [] for word in known}
        for place, text in enumerate(texts):
            norm = K1 * (1 - B + B * len(text) / mean)
            for word, count in Counter(text).items():
                rarity = math.log(1 + (len(texts) - known[word] + 0.5) / (known[word] + 0.5))
                self._postings[word].append((place, rarity * count * (K1 + 1) / (count + norm)))

    def search(self, query: str) -> tuple[Product, ...]:
        """The best first, each with at least one word of the query."""
        scores: defaultdict[int, float] = defaultdict(float)
        for word in sorted(set(words_of(query)[:MOST_WORDS])):
            for place, score in self._postings.get(word, ()):
                scores[place] += score
        best = sorted(scores, key=lambda place: (-round(scores[place], 9), place))[:MOST_RESULTS]
        return tuple(self.products[place] for place in best)


def _indexed(product: Product) -> str:
    values = " ".join(value for _, offered in product.options for value in offered)
    return f"{product.title} {product.kind.department} {' '.join(product.attributes)} {values}"


@lru_cache(maxsize=8)
def ranking_of(number: int, size: int) -> Ranking:
    return Ranking(make_catalogue(number, size))
