"""Blocks of a screenshot of a page of the shop: they show all that the page's text says."""

from turnwise.envs.web_shop.pages import BACK, BUY, FEATURES, PREVIOUS, Page, ProductPage, ResultsPage, SearchPage
from turnwise.pictures.web_page import Block, Blocks, Buttons, Heading, Item, Paragraph, SearchField


def page_blocks(page: Page) -> Blocks:
    match page:
        case SearchPage():
            return Heading(text="Search page"), SearchField(hint="Search for products")
        case ResultsPage():
            items = (Item(button=each.code, text=each.title, price=each.price) for each in page.shown)
            return Paragraph(text=page.head), Buttons(names=page.navigation), *items
        case ProductPage():
            return _product_blocks(page)


def _product_blocks(page: ProductPage) -> Blocks:
    product = page.product
    blocks: list[Block] = [Heading(text=product.title, price=product.price)]
    blocks += [Buttons(label=name, names=values, selected=page.selected.get(name)) for name, values in product.options]
    if page.show_features:
        blocks.append(Paragraph(text=f"Features: {', '.join(product.attributes)}"))
    return *blocks, Buttons(names=(BACK, PREVIOUS, FEATURES, BUY), main=BUY)
