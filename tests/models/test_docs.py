from helpers import ROOT

from memfit.models import catalog
from memfit.models.recipe import CHOICES

PAGE = (ROOT / "docs" / "compare.md").read_text()


def test_every_name_and_word_is_in_the_docs():
    names = {model.name for model in catalog.MODELS.values() if not model.name.startswith("tiny")}
    words = {word for allowed in CHOICES.values() for word in allowed if word}
    assert [name for name in (*names, *words) if f"`{name}`" not in PAGE] == []
