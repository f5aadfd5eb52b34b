"""turnwise models"""

from turnwise.cli.options import command_app
from turnwise.cli.show import line, table
from turnwise.models.loading.catalogue import CATALOGUE, OTHER_SOURCES

app = command_app("models", "")


@app.default
def models() -> None:
    """List the models that have a short name."""
    rows = [
        (entry.name, entry.parameters, entry.source, "yes" if entry.cached else "no", entry.note) for entry in CATALOGUE
    ]
    table(("model", "parameters", "from", "here", "what it is"), rows)
    line(f"\n{OTHER_SOURCES}; turnwise train RECIPE --model.name NAME")
