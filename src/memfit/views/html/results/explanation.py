"""Why memory ran out, as a page: what was in use, what was not usable, and what would help."""

from __future__ import annotations

from memfit.explain import Explanation
from memfit.units import format_bytes
from memfit.views.explanation import (
    about_batches,
    categories_of,
    explained_headline,
    explained_sentences,
    is_enough,
    remedies_title,
    spare_bytes,
    unusable_title,
)
from memfit.views.html.document import document
from memfit.views.html.markup import Markup, dotted, element, join, table
from memfit.views.html.peak import swatch
from memfit.views.html.results.pictures import bar
from memfit.views.html.results.sections import headline, section, sentences
from memfit.views.verdicts import coverage_words
from memfit.views.words.moments import name_op
from memfit.views.words.recipe import recipe_line


def explanation_page(explanation: Explanation, name: str) -> str:
    """One HTML file that needs nothing else."""
    fits = True if is_enough(explanation) else False if explanation.ran_out else None
    seen = coverage_words(explanation.covered)
    told = [
        *(line for line in (recipe_line(explanation.about), seen) if line),
        *explained_sentences(explanation),
        *explanation.notes,
        *about_batches(explanation),
    ]
    parts = [headline(explained_headline(explanation), fits=fits), sentences(told)]
    if not is_enough(explanation):
        columns = [_categories(explanation), _owners(explanation), _unusable(explanation)]
        parts += [_remedies(explanation), section("In use then", element("div", *columns, class_="columns")), _blocks(explanation)]
    return document(name, "memfit explain", parts)


def _remedies(explanation: Explanation) -> Markup:
    if not explanation.remedies:
        return join()
    capacity = explanation.capacity
    whole = max(capacity or 0, *(remedy.smallest_fit for remedy in explanation.remedies))
    rows = []
    for remedy in explanation.remedies:
        word, kind = {True: ("yes", "fits"), False: ("no", "fails"), None: ("?", "quiet")}[remedy.served]
        spare = spare_bytes(explanation, remedy)
        rows.append(
            (
                element("span", word, class_=kind),
                remedy.what,
                bar(remedy.smallest_fit, whole, "good" if remedy.served else "poor", None if remedy.kind == "gpu" else capacity),
                format_bytes(remedy.smallest_fit),
                "" if spare is None else format_bytes(spare),
                format_bytes(remedy.peak_allocated),
            )
        )
    headings = ("fits", "with", "", "smallest fit>", "to spare>", "allocated>")
    title = remedies_title(explanation)
    return section(title, table(title, headings, rows, class_="cells"))


def _categories(explanation: Explanation) -> Markup:
    found = categories_of(explanation)
    if not found:
        return join()
    total = sum(size for _, _, size in found)
    rows = [
        (
            label if category is None else swatch(category),
            bar(size, found[0][2], f"c-{'other' if category is None else category.name.lower()}"),
            format_bytes(size),
            f"{size / total:.1%}",
        )
        for category, label, size in found
    ]
    return element("div", element("h3", "By category"), table("In use, by category", ("category", "", "bytes>", "share>"), rows))


def _owners(explanation: Explanation) -> Markup:
    by = "module" if explanation.knows_modules else "place in the code"
    unowned = "outside all modules" if explanation.knows_modules else "no stack was recorded"
    rows = [
        (dotted(owner.owner or unowned), f"{owner.num_members:,}", format_bytes(owner.size_bytes))
        for owner in explanation.holdings.owners[:20]
    ]
    return element("div", element("h3", f"By {by}"), table(f"In use, by {by}", (by, "number>", "bytes>"), rows))


def _unusable(explanation: Explanation) -> Markup:
    if not explanation.unusable:
        return join()
    rows = [
        (group.reason, format_bytes(group.size_bytes), f"{group.num_pieces:,}", format_bytes(group.largest_piece))
        for group in explanation.unusable
    ]
    title = unusable_title(explanation)
    return element("div", element("h3", title), table(title, ("because it is", "bytes>", "pieces>", "largest>"), rows))


def _blocks(explanation: Explanation) -> Markup:
    """A snapshot knows neither category nor operator."""
    known = explanation.knows_modules
    rows = [
        (
            format_bytes(block.size_bytes),
            *((block.category, dotted(name_op(block.op))) if known else ()),
            dotted(block.owner),
        )
        for block in explanation.holdings.blocks
    ]
    headings = ("bytes>", *(("category", "operator", "belongs to") if known else ("made at",)))
    return section("The largest blocks", table("The largest blocks", headings, rows, class_="tall"))
