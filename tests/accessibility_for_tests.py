"""Find what a page lacks for people who cannot see it, see it badly, or use no mouse."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

MIN_CONTRAST = 4.5
"""WCAG 2.2, level AA, for text of normal size."""

FIND_PROBLEMS = """(least) => {
    const problems = [];
    const visible = (each) => each.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    const name = (each) => (
        each.getAttribute("aria-label") ??
        (each.labels?.length ? [...each.labels].map((label) => label.textContent).join(" ") : null) ??
        each.getAttribute("alt") ?? (each.textContent.trim() || each.title || "")
    ).trim();
    for (const each of document.querySelectorAll("button, a[href], input, select, textarea, img:not([alt='']), iframe"))
        if (visible(each) && !name(each)) problems.push(`no name: ${each.outerHTML.slice(0, 120)}`);
    for (const each of document.querySelectorAll("[tabindex]"))
        if (each.tabIndex > 0) problems.push(`order of its own: ${each.outerHTML.slice(0, 120)}`);
    const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
    for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) problems.push(`id twice: ${id}`);
    for (const each of document.querySelectorAll("[aria-describedby]"))
        for (const id of each.getAttribute("aria-describedby").split(" "))
            if (!document.getElementById(id)) problems.push(`describedby nothing: ${id}`);
    const headings = document.querySelectorAll("h1").length;
    if (headings !== 1) problems.push(`${headings} headings of level 1`);
    if (!document.title || !document.documentElement.lang) problems.push("no title or language");

    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].map((part, at) => (at === 3 ? part / 255 : part));
    };
    const over = (top, below) => top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
    const background = (each) => {
        const layers = [];
        for (let at = each; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
        return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255]);
    };
    const light = (colour) => colour
        .map((part) => part / 255)
        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const ignored = ":disabled, svg, .hidden, .skip, option";
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const each = node.parentElement;
        if (!node.textContent.trim() || !visible(each) || each.closest(ignored)) continue;
        const below = background(each), own = getComputedStyle(each);
        const [dark, bright] = [light(over(rgba(own.color), below)), light(below)].sort((one, other) => one - other);
        const contrast = (bright + 0.05) / (dark + 0.05);
        if (contrast < least) problems.push(`contrast ${contrast.toFixed(2)}: ${node.textContent.trim().slice(0, 60)}`);
    }
    for (const each of document.querySelectorAll(".bar, .bar nav")) {
        const overflows = each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX === "visible";
        if (visible(each) && overflows) problems.push(`wider than its place: <${each.localName}>`);
    }
    if (document.documentElement.scrollWidth > innerWidth) problems.push("scrolls sideways");
    return [...new Set(problems)];
}"""


def find_accessibility_problems(page: "Page") -> list[str]:
    """Return missing names, low contrast, a tab order of its own, overlaps and sideways scrolling."""
    problems: list[str] = page.evaluate(FIND_PROBLEMS, MIN_CONTRAST)
    return problems
