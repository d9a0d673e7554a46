from helpers import ROOT

from memfit.choices import AXES
from memfit.models import MODELS

PAGE = (ROOT / "docs" / "compare.md").read_text()


def test_every_name_and_word_is_in_the_docs():
    names = {model.name for model in MODELS.values() if not model.name.startswith("tiny")}
    words = {word for axis in AXES.values() for word in axis.choices or ()}
    assert [name for name in (*names, *words) if f"`{name}`" not in PAGE] == []
