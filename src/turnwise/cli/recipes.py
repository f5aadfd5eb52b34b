"""turnwise recipes"""

from turnwise.cli.options import command_app
from turnwise.cli.show import line, table
from turnwise.recipes.configure import find_method, find_recipe, list_recipes, method_names

app = command_app("recipes", "[NAME]")


@app.default
def recipes(name: str | None = None, /, *, algos: bool = False) -> None:
    """List the presets, or show one.

    Parameters
    ----------
    name
        Print this recipe's file. `turnwise train NAME --dry-run` prints it with all defaults.
    algos
        List the published methods instead, which any recipe takes as --algo.preset METHOD.
    """
    if algos:
        show_methods(name)
        return
    if name is not None:
        line(find_recipe(name).text.rstrip())
        return
    rows = [(recipe.name, recipe.environment, recipe.summary) for recipe in list_recipes()]
    table(("recipe", "environment", "what it does"), rows)
    line("\nturnwise recipes NAME shows one; turnwise train NAME runs it")
    line("turnwise recipes --algos lists the methods for --algo.preset")


def show_methods(name: str | None) -> None:
    if name is not None:
        line(find_method(name).text.rstrip())
        return
    table(("method", "what it is"), [(each, find_method(each).summary) for each in method_names()])
    line("\nturnwise recipes --algos METHOD shows one; turnwise train RECIPE --algo.preset METHOD uses it")
