"""What a purchase is worth, 0 to 1, by the formula of WebShop (Yao et al. 2022, arXiv 2207.01206).

    r = r_type * (attributes that match + options that match + price is right) / (attributes + options + 1)

r_type is 1 for the kind that was asked for, 0.5 for another of the same department, 0.1 where only a word of the
titles is shared, else 0. The published one estimates this from texts and categories; here it is known.
"""

from collections.abc import Mapping

from turnwise.envs.web_shop.catalogue import Product, Wish
from turnwise.envs.web_shop.ranking import words_of


def score(wish: Wish, bought: Product, chosen: Mapping[str, str]) -> float:
    """`chosen`: values of options by name, as they were when it was bought."""
    attributes = sum(attribute in bought.attributes for attribute in wish.attributes)
    options = sum(chosen.get(name) == value for name, value in wish.options)
    price = bought.cents <= wish.dollars * 100
    return type_match(wish, bought) * (attributes + options + price) / (len(wish.attributes) + len(wish.options) + 1)


def type_match(wish: Wish, bought: Product) -> float:
    if bought.kind == wish.kind:
        return 1.0
    if bought.kind.department == wish.kind.department:
        return 0.5
    return 0.1 if set(words_of(bought.title)) & set(words_of(wish.target.title)) else 0.0
