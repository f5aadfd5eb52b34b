"""turnwise recipes"""

from turnwise.cli.options import command_app
from turnwise.cli.show import line, table
from turnwise.recipes.presets import find_recipe, list_recipes

app = command_app("recipes", "[NAME]")


@app.default
def recipes(name: str | None = None, /) -> None:
    """List the presets, or show one.

    Parameters
    ----------
    name
        Print this recipe's file. `turnwise train NAME --dry-run` prints it with all defaults.
    """
    if name is not None:
        line(find_recipe(name).text.rstrip())
        return
    rows = [(recipe.name, recipe.environment, recipe.summary) for recipe in list_recipes()]
    table(("recipe", "environment", "what it does"), rows)
    line("\nturnwise recipes NAME shows one; turnwise train NAME runs it")
